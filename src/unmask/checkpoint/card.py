"""A model card, whose numbers come from the checkpoint itself, and a provenance without the paths of one machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Literal

import torch

from unmask.checkpoint.adapters import TENSORS
from unmask.checkpoint.io import CARD, FILES, Checkpoint
from unmask.core.files import sha256_file, write_text
from unmask.models.denoiser import is_causal
from unmask.models.family import config_to_json, family_of, plain, trainable
from unmask.models.lora import base_of, config_of

TEMPLATE = """# {name}

{about}

| | |
|---|---|
{facts}

## Use
```
{command}
```
In Python: `unmask.load("{name}")`.

## Limits
{limits}

## Files, by sha256
```
{hashes}
```
"""
LIMITS = {
    False: "It writes and fills in text like the text it read, of {length} tokens at most. It follows no instructions, "
    "its facts are not to be relied on, and nothing filters what it says: words and views are those of its sources.",
    True: "It scores texts of {length} tokens at most, and knows the kind of text it read: a low score means like that "
    "text, not good. `unmask sample` is for masked models and refuses it.",
}


def portable(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """The same facts, with every absolute path cut down to its last part."""

    def clean(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: clean(item) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [clean(item) for item in value]
        if isinstance(value, str):
            kinds = (PurePosixPath(value), PureWindowsPath(value))
            return next((path.name for path in kinds if path.is_absolute()), value)
        return value

    return {name: clean(value) for name, value in provenance.items()}


def write_card(
    checkpoint: Checkpoint, folder: Path, *, about: str, licence: str | None, weights: Literal["ema", "raw"] = "ema",
    dtype: torch.dtype | None = None, name: str | None = None,
) -> None:  # fmt: skip
    """The card of the checkpoint whose `weights` were written to `folder` in `dtype`, and which others load as
    `name`."""
    dtype = dtype or next(plain(checkpoint.model).parameters()).dtype
    causal, length = is_causal(plain(checkpoint.model)), checkpoint.model.length
    facts = {**dict(_model(checkpoint, dtype)), **dict(_training(checkpoint.provenance, dtype, weights))}
    if licence:
        facts["licence"] = licence
    files, name = [folder / file for file in (FILES["ema"], TENSORS, "tokenizer.json")], name or folder.name
    hashes = [f"{sha256_file(file)}  {file.name}" for file in files if file.is_file()]
    text = TEMPLATE.format(
        name=name, about=about, facts="\n".join(f"| {name} | {value} |" for name, value in facts.items()),
        command=_command(name, causal), limits=LIMITS[causal].format(length=length), hashes="\n".join(hashes),
    )  # fmt: skip
    write_text(folder / CARD, text)


def _command(name: str, causal: bool) -> str:
    if causal:
        # no bundled text is named: nobody here knows what the model has read, and held-out text must be new to it
        return f"unmask evaluate --models teacher=MODEL --judge {name} --data CORPUS"
    return f"unmask sample --model {name} --steps 16 --watch"


def _model(checkpoint: Checkpoint, dtype: torch.dtype) -> Iterator[tuple[str, str]]:
    """What it is."""
    model = plain(checkpoint.model)
    if base := base_of(model):
        trained, config = sum(value.numel() for value in trainable(model).values()), config_of(model)
        yield "adapter", f"LoRA of rank {config.r} on {base.source}: {trained:,} parameters beside it"
    count = sum(parameter.numel() for parameter in model.parameters())
    kind = "causal: reads from left to right" if is_causal(model) else "diffusion: writes in any order"
    yield "kind", kind
    if checkpoint.process.name != "masked":
        yield "process", checkpoint.process.name
    yield "parameters", f"{count:,}, stored as {str(dtype).removeprefix('torch.')}"
    shape = ", ".join(f"{name} {value}" for name, value in config_to_json(model).items())
    yield "shape", f"{family_of(model).name}: {shape}"


def _training(provenance: Mapping[str, Any], dtype: torch.dtype, weights: str) -> Iterator[tuple[str, str]]:
    """How it came to be, as far as its provenance tells."""
    config = provenance.get("config") or {}
    if (distillation := provenance.get("distillation")) is not None:
        teacher = (config.get("facts") or {}).get("teacher") or {}
        yield "distilled", f"from {teacher.get('source', 'a teacher')} by {distillation['method']}"
        settings = [f"{name} {distillation[name]:.4g}" for name in ("delta", "tau") if name in distillation]
        each = f"the last with {' and '.join(settings)}" if settings else "all alike"
        yield "rounds", f"{distillation['round']} of {distillation['round_steps']:,} steps, {each}"
    elif "objective" in config:
        yield "objective", config["objective"]["name"]
    if isinstance(start := (config.get("facts") or {}).get("from"), Mapping):
        yield "start", f"from {start['source']}" + (f", after {start['step']:,} steps" if start["step"] else "")
    if "trainer" in config and "step" in provenance:
        options, length, step = config["trainer"], config["data"]["length"], provenance["step"]
        seen = step * options["batch"] * length / 1e6
        yield "training", f"{step:,} steps of {options['batch']} x {length} tokens: {seen:,.1f} million tokens read"
        kept = f"averaged weights (EMA {options['ema']:g})" if weights == "ema" else "raw weights"
        rate = f"learning rate {options['lr']:g} ({options['decay']}), {options['warmup']} steps of warm-up"
        yield "optimiser", f"AdamW, {rate}, {options['precision']}, seed {options['seed']}; {kept}"
        yield "corpus", f"content {config['data']['content']}, tokenizer {config['data']['tokenizer']}"
    if (score := provenance.get("score")) and weights == "ema":  # it was measured on the averaged weights
        kind = "ELBO, an upper bound" if score["kind"] == "elbo" else "negative log-likelihood"
        when = ", before the rounding" if dtype == torch.bfloat16 else ""
        beside = f" ± {score['stderr']:.4f}" if score["stderr"] is not None else ""
        number = f"{score['nats']:.4f}{beside} nats a token"
        yield "held-out text", f"{number} ({kind}; {score['sequences']:,} sequences{when})"
    if "unmask" in provenance:
        commit, _, changes = str(provenance["revision"] or "an installed package").partition("+")
        code = f"unmask {provenance['unmask']} ({commit[:20]}{' with ' if changes else ''}{changes})"
        yield "made", f"by {code}, torch {provenance['torch']}, on {provenance['device']}, {provenance['time'][:10]}"
