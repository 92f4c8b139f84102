"""Save and load checkpoints: our own format, and published ones through their family.

Our format is a folder: config.json (family, shape, process, step law, the sha256 of every other file),
model.safetensors (the EMA, or the only weights), optionally raw.safetensors (of the parameters that were trained),
tokenizer.json, provenance.json. It is written elsewhere and renamed, so a reader finds a whole checkpoint or the one
before it; on loading every hash is checked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from unmask.checkpoint import adapters
from unmask.checkpoint.chain import with_head, with_its_model, with_own_head
from unmask.checkpoint.lightning import read_lightning
from unmask.checkpoint.locate import locate
from unmask.checkpoint.published import (
    Stored,
    check_mask,
    family_that_reads,
    published_tensors,
    published_tokenizer,
    stored_tensors,
)
from unmask.checkpoint.spread import DeviceMap, spread
from unmask.checkpoint.tensors import check_finite, read_tensors, write_tensors
from unmask.core.errors import UserError, check_name, os_errors, reading
from unmask.core.files import check_claim, fresh_folder, kind_of, read_json, sha256_file, write_json, write_text
from unmask.core.plugins import load_plugins
from unmask.data.chat import FILE as SPECIALS
from unmask.data.chat import Messages
from unmask.data.tokenizer import Tokenizer
from unmask.inference.chain import Chain
from unmask.inference.step_law import STEP_LAWS, Factorised, StepLaw, make_step_law, step_law_to_json
from unmask.models.denoiser import Denoiser
from unmask.models.dit.published import GPT2_STATES
from unmask.models.family import FAMILIES, assemble, config_to_json, family_named, family_of, plain
from unmask.models.lora import base_of
from unmask.models.parameters import tensors_of
from unmask.processes import PROCESSES, Masked, Process, process_named
from unmask.processes.process import process_to_json

FORMAT, VERSION = "unmask", 2
WEIGHTS = ("ema", "raw")
FILES = {"ema": "model.safetensors", "raw": "raw.safetensors", "chain": "chain.safetensors"}
CARD = "README.md"
WRITTEN = {  # all that is ever written there
    *FILES.values(), "config.json", "tokenizer.json", SPECIALS, "provenance.json", CARD, adapters.CONFIG,
    adapters.TENSORS,
}  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class Checkpoint:
    """A model with what it takes to use it.

    Args:
        model: a network, or any other Denoiser
        process: how its text is corrupted and recovered
        tokenizer: None only where none is known (toy models)
        provenance: where it came from
        step_law: the joint law of the tokens of one step
        name: what it was loaded as
    """

    model: Denoiser
    process: Process = dataclasses.field(default_factory=Masked)
    tokenizer: Tokenizer | None = None
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    step_law: StepLaw = dataclasses.field(default_factory=Factorised)
    name: str = ""

    def __post_init__(self) -> None:
        if self.tokenizer is None:
            return
        states, mask, tokens = self.model.vocab_size, self.model.mask_id, self.tokenizer
        own = mask is not None and mask < tokens.size and mask == tokens.mask_id  # its mask is one of its tokens
        if tokens.size > states - (mask == states - 1 and not own):
            raise UserError(
                f"the tokenizer {self.tokenizer.name!r} has {self.tokenizer.size} tokens, the model "
                f"{self.model.vocab_size} states with the mask: they do not belong together"
            )

    def chat(self, messages: str | Messages) -> list[int]:
        """The tokens of a message, or of a conversation, in the model's chat format: what its answer is written after.

        Args:
            messages: a text, or `[{"role": "user", "content": "Hello"}, ...]`
        """
        if self.tokenizer is None:
            raise UserError("this model has no tokenizer, so it takes no chat")
        return self.tokenizer.chat(messages)

    def __repr__(self) -> str:
        model, parts = plain(self.model), [Path(self.name).name] if self.name else []
        if isinstance(model, nn.Module):
            parts.append(_short(sum(value.numel() for value in model.parameters())))
        else:
            parts.append(type(model).__name__)
        return f"Checkpoint({', '.join([*parts, self.process.name, f'L={model.length}'])})"


def _short(count: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return str(count)


def save(
    checkpoint: Checkpoint,
    folder: str | Path,
    *,
    raw: Mapping[str, Tensor] | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Write a checkpoint in our format; an older checkpoint of that name is replaced at the very end.

    Args:
        checkpoint: its model holds the weights to use (the EMA, if there is one)
        folder: where to
        raw: the raw weights beside an EMA, of those parameters that have one
        dtype: store the weights in this floating-point type (bfloat16 halves the size)
    """
    model, family = plain(checkpoint.model), family_of(checkpoint.model)
    if family.name not in FAMILIES:
        raise UserError(
            f"a {type(model).__name__} belongs to no registered family: register_family says how to save it"
        )
    folder = Path(folder)
    refuse_to_replace(folder)
    with fresh_folder(folder) as fresh:
        _write_weights(fresh, model, raw, dtype)
        if isinstance(checkpoint.step_law, Chain):
            write_tensors(fresh / FILES["chain"], tensors_of(checkpoint.step_law.head), dtype)
        tokenizer = None if family.adapter else checkpoint.tokenizer  # beside an adapter: that of its model
        if tokenizer is not None:
            write_text(fresh / "tokenizer.json", tokenizer.to_json())
            if tokenizer.specials:
                write_json(fresh / SPECIALS, tokenizer.specials.to_json())
        write_json(fresh / "provenance.json", dict(checkpoint.provenance))
        write_json(
            fresh / "config.json",
            {
                "format": FORMAT,
                "version": VERSION,
                "family": family.name,
                "model": config_to_json(model),
                "adapter": (base := base_of(model)) and vars(base),
                "process": process_to_json(checkpoint.process),
                "step_law": step_law_to_json(checkpoint.step_law),
                "tokenizer": tokenizer.name if tokenizer else None,
                "files": {item.name: sha256_file(item) for item in sorted(fresh.iterdir())},
            },
        )


def _write_weights(folder: Path, model: nn.Module, raw: Mapping[str, Tensor] | None, dtype: torch.dtype | None) -> None:
    """All weights of a network, or of an adapted one the adapter only."""
    if base_of(model):
        adapters.write_adapter(folder, model, raw, FILES["raw"], dtype)
        return
    write_tensors(folder / FILES["ema"], tensors_of(model), dtype)
    if raw is not None:
        write_tensors(folder / FILES["raw"], raw, dtype)


def has_raw(folder: Path) -> bool:
    """Whether a checkpoint of ours still has raw weights beside the averaged ones; somebody may have removed them."""
    listed = read_json(folder / "config.json", "checkpoint config").get("files", {})
    return FILES["raw"] in listed and (folder / FILES["raw"]).is_file()


def refuse_to_replace(folder: Path) -> None:
    """A save replaces a whole folder: only a checkpoint that we could have written, and nothing else, may lie there."""
    ours = check_claim(folder, "checkpoint", option="folder")
    if ours and (others := sorted({path.name for path in folder.iterdir()} - WRITTEN)):
        raise UserError(
            f"{folder} holds {others[0]} beside a checkpoint, which would be lost: move it away, or name another folder"
        )


def load(
    source: str | Path,
    *,
    adapter: str | Path | None = None,
    weights: Literal["ema", "raw"] = "ema",
    revision: str | None = None,
    device: str | torch.device = "cpu",
    device_map: DeviceMap | None = None,
) -> Checkpoint:
    """A checkpoint ready to use, its model in eval mode and in the precision that it was stored in.

    Args:
        source: a folder (ours, a run's, or a published one, see docs/models.md), a Lightning .ckpt file, a bundled
            name, or a hub name; the folder of an adapter that names its base is read with it
        adapter: a LoRA adapter to put on it: a folder that `train --lora` or peft wrote, or a hub name
        weights: the averaged weights or the raw ones, where a checkpoint has both
        revision: of a hub repository
        device: where the model goes
        device_map: over which devices, for a model of transformers: accelerate's auto, balanced or sequential, or which
            part goes where, a device, cpu or disk, such as {"model.layers.1": "disk", "": "cpu"}
    """
    place = _device(device)
    kept: Stored | None = None if device_map is None else {}
    checkpoint = stored(source, adapter=adapter, weights=weights, revision=revision, kept=kept)
    if family_of(checkpoint.model).adapter:
        checkpoint = with_its_model(checkpoint, str(source), load)
    plain(checkpoint.model).eval()
    if device_map is None or kept is None:
        plain(checkpoint.model).to(place)
    else:
        spread(plain(checkpoint.model), device_map, kept)
    return dataclasses.replace(checkpoint, name=str(source if adapter is None else adapter))


def stored(
    source: str | Path, *, adapter: str | Path | None = None, weights: Literal["ema", "raw"] = "ema",
    revision: str | None = None, kept: Stored | None = None,
) -> Checkpoint:  # fmt: skip
    """What `load` reads, on the CPU; of a chain the head alone. `kept` learns where each tensor lies."""
    check_name("weights", weights, WEIGHTS)
    load_plugins()  # its family may be one of an installed package
    if adapter is not None:
        if kept is not None:
            raise UserError("an adapter goes on a model in one place: leave out device_map, or merge it first")
        base = load(source, revision=revision)
        with os_errors("read", adapter), reading(adapter, "the adapter", "restore a copy, or save it again"):
            return _adapted(locate(adapter), weights, base, str(source))
    with os_errors("read", source), reading(source, "the checkpoint", "restore a copy, or save it again"):
        path = locate(source, revision)
        origin = {"source": str(source), "revision": revision, "weights": weights}
        if path.is_dir() and adapters.is_adapter(path):
            return _adapted(path, weights, None, None)
        if path.is_dir():
            return _from_folder(path, weights, origin, kept)
        metadata, tensors = read_lightning(path, weights)
        return _published("dit", metadata, tensors, path, {**origin, "format": "lightning"})


def _device(device: str | torch.device) -> torch.device:
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"no device {str(device)!r} here ({reason}): use 'cpu', or one this torch can see") from error
    return place


def _from_folder(
    folder: Path, weights: Literal["ema", "raw"], origin: Mapping[str, Any], kept: Stored | None
) -> Checkpoint:
    if not (folder / "config.json").exists():
        raise _no_checkpoint(folder)
    config = read_json(folder / "config.json", "checkpoint config")
    if config.get("format") == FORMAT:
        return _from_own(folder, config, weights, kept)
    family = family_that_reads(config, folder)
    if weights == "raw":
        raise _one_set(folder)
    kind = config.get("model_type", "sdtt")  # SDTT's config.json is its Hydra config, which has no such entry
    return _published(family.name, config, published_tensors(folder, kept), folder, {**origin, "format": kind})


def _no_checkpoint(folder: Path) -> UserError:
    if kind_of(folder) == "run":
        return UserError(
            f"{folder} is a run without a checkpoint yet: run the same `unmask train` (or `unmask distill`) command "
            "again, it goes on and writes one"
        )
    return UserError(f"{folder} holds no checkpoint (no config.json): give the folder that a run or `save` wrote")


def _one_set(folder: Path) -> UserError:
    return UserError(f"{folder} holds one set of weights: load it with weights='ema' (--weights ema, the default)")


def _from_own(
    folder: Path, config: Mapping[str, Any], weights: Literal["ema", "raw"], kept: Stored | None
) -> Checkpoint:
    _check_files(folder, config, weights, FILES["ema"])
    tokenizer = None
    if "tokenizer.json" in config["files"]:
        tokenizer = Tokenizer.read(folder / "tokenizer.json", config.get("tokenizer", "custom"))
    process, law, provenance = _beside(folder, config)
    family = family_named(config["family"])
    tensors = stored_tensors(folder / FILES["ema"], kept)
    if weights == "raw":
        tensors |= stored_tensors(folder / FILES["raw"], kept)
    check_finite(tensors, str(folder))
    model: Any = assemble(family, family.config(**config["model"]), tensors, str(folder))
    return _chained(Checkpoint(model, process, tokenizer, provenance, law), folder, config)


def _chained(checkpoint: Checkpoint, folder: Path, config: Mapping[str, Any]) -> Checkpoint:
    """With the head that lies beside it, or that it names, if its step law is a chain."""
    if config["step_law"]["name"] != Chain.name:
        return checkpoint
    if name := config["step_law"].get("from"):
        head = stored(name)
        made = with_head(checkpoint, head.model, dict(head.provenance), str(name))
        return dataclasses.replace(made, step_law=dataclasses.replace(made.step_law, named=str(name)))  # type: ignore[type-var]
    return with_own_head(checkpoint, config["step_law"], read_tensors(folder / FILES["chain"]), str(folder))


def _check_files(folder: Path, config: Mapping[str, Any], weights: Literal["ema", "raw"], ema: str) -> None:
    """Our version, with these weights, and every file as it was written."""
    if config.get("version") != VERSION:
        raise UserError(
            f"{folder} is of format version {config.get('version')}, this unmask reads {VERSION}: "
            "install the release that wrote it"
        )
    files = dict(config["files"])
    if {"ema": ema, "raw": FILES["raw"]}[weights] not in files:
        raise _one_set(folder)
    for name, digest in files.items():
        if weights == "raw" or name != FILES["raw"]:
            path = folder / name
            if not path.is_file():
                raise UserError(f"checkpoint {folder} is incomplete: {name} is missing; copy it again")
            if sha256_file(path) != digest:
                raise UserError(f"checkpoint {folder} is damaged: {name} does not match its sha256; copy it again")


def _beside(folder: Path, config: Mapping[str, Any]) -> tuple[Process, StepLaw, dict[str, Any]]:
    """Process, step law and provenance, as config.json and its neighbours say; a plug-in's must be named."""
    provenance = read_json(folder / "provenance.json", "provenance")
    step_law = dict(config["step_law"])
    for what, name, known in (
        ("model family", config["family"], FAMILIES),
        ("process", config["process"]["name"], PROCESSES),
        ("step law", step_law["name"], STEP_LAWS),
    ):
        if name not in known:
            raise UserError(f"{folder} needs the {what} {name!r}: name the plug-in that has it, with --plugin")
    law = Factorised() if step_law["name"] == Chain.name else make_step_law(step_law.pop("name"), **step_law)
    return process_named(**config["process"]), law, provenance


def _adapted(folder: Path, weights: Literal["ema", "raw"], base: Checkpoint | None, source: str | None) -> Checkpoint:
    """A base, by default the one that the adapter names, with an adapter on it."""
    if not adapters.is_adapter(folder):
        raise UserError(f"{folder} is no adapter (no {adapters.CONFIG}): give the folder that `train --lora` wrote")
    about = read_json(folder / "config.json", "adapter's config") if (folder / "config.json").is_file() else {}
    if about and about.get("format") != FORMAT:
        about = {}
    if base is None:
        source = adapters.base_source(folder, about)
        try:
            base = load(source)
        except UserError as error:
            raise UserError(f"the base of the adapter {folder} cannot be loaded ({error}): if it lies elsewhere, give "
                            "both, load(base, adapter=...) or unmask convert BASE --adapter") from error  # fmt: skip
    if not about:
        if weights == "raw":
            raise _one_set(folder)
        return dataclasses.replace(base, model=adapters.apply_adapter(base.model, folder, {}, adapters.TENSORS, source))
    _check_files(folder, about, weights, adapters.TENSORS)
    file = adapters.TENSORS if weights == "ema" else FILES["raw"]
    model = adapters.apply_adapter(base.model, folder, about, file, source)
    process, law, provenance = _beside(folder, about)
    tokenizer = base.tokenizer
    if tokenizer is None and "tokenizer.json" in about["files"]:
        tokenizer = Tokenizer.read(folder / "tokenizer.json", about["tokenizer"])
    return _chained(Checkpoint(model, process, tokenizer, provenance, law), folder, about)


def _published(
    family: str, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor], path: Path, origin: Mapping[str, Any]
) -> Checkpoint:
    tokenizer = published_tokenizer(path)
    if metadata.get("mask_token_id") is None and tokenizer is not None:
        metadata = {**metadata, "mask_token_id": tokenizer.mask_id}
    kind = family_named(family)
    config, weights = kind.read(metadata, tensors, str(path))
    check_finite(weights, str(path))
    model: Any = assemble(kind, config, weights, str(path))
    if tokenizer is None and model.vocab_size == GPT2_STATES:
        tokenizer = Tokenizer.load("gpt2")
    check_mask(tokenizer, model.mask_id, path)
    return Checkpoint(model, kind.process(config), tokenizer, {**origin, "metadata": dict(metadata)})
