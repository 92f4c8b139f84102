"""Save and load checkpoints: our own format, and the doors to the foreign ones.

Our format is a folder: config.json (shape, schedule, the sha256 of every other file), model.safetensors (the EMA, or
the only weights), optionally raw.safetensors, tokenizer.json, provenance.json. It is written aside and renamed, so a
reader finds a whole checkpoint or the one before it; on loading every hash is checked.

Refuses to know how the model came to be.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from unmask.checkpoint.formats import lightning, mdlm, sdtt
from unmask.checkpoint.formats.foreign import GPT2_STATES, Foreign, check_kind
from unmask.checkpoint.locate import locate
from unmask.checkpoint.tensors import read_tensors, write_tensors
from unmask.core.errors import UserError, os_errors, unknown
from unmask.core.files import fresh_folder, read_json, sha256_file, write_json, write_text
from unmask.data.tokenizer import Tokenizer
from unmask.models.denoiser import Denoiser
from unmask.models.dit.layers import Rotary
from unmask.models.dit.network import DiT, DiTConfig
from unmask.processes.schedule import LogLinear, Schedule, schedule_named

FORMAT, VERSION = "unmask", 1
WEIGHTS = ("ema", "raw")
FILES = {"ema": "model.safetensors", "raw": "raw.safetensors"}
CARD = "README.md"
WRITTEN = {*FILES.values(), "config.json", "tokenizer.json", "provenance.json", CARD}  # all that is ever written there


@dataclasses.dataclass(frozen=True, eq=False)
class Checkpoint:
    """A model with what it takes to use it. The tokenizer is None only where none is known (toy models)."""

    model: Denoiser
    schedule: Schedule = dataclasses.field(default_factory=LogLinear)
    tokenizer: Tokenizer | None = None
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.tokenizer is not None and self.tokenizer.size >= self.model.vocab_size:
            raise UserError(
                f"the tokenizer {self.tokenizer.name!r} has {self.tokenizer.size} tokens, the model "
                f"{self.model.vocab_size} states with the mask: they do not belong together"
            )


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
        raw: the raw weights (a state dict) beside an EMA
        dtype: store the weights in this floating-point type (bfloat16 halves the size)
    """
    model = dit_of(checkpoint)
    folder = Path(folder)
    refuse_to_replace(folder)
    with fresh_folder(folder) as aside:
        write_tensors(aside / FILES["ema"], model.state_dict(), dtype)
        if raw is not None:
            write_tensors(aside / FILES["raw"], raw, dtype)
        if checkpoint.tokenizer is not None:
            write_text(aside / "tokenizer.json", checkpoint.tokenizer.to_json())
        write_json(aside / "provenance.json", dict(checkpoint.provenance))
        schedule = checkpoint.schedule
        write_json(
            aside / "config.json",
            {
                "format": FORMAT,
                "version": VERSION,
                "model": dataclasses.asdict(model.config),
                "schedule": {"name": schedule.name, "eps": schedule.eps},
                "tokenizer": checkpoint.tokenizer.name if checkpoint.tokenizer else None,
                "files": {item.name: sha256_file(item) for item in sorted(aside.iterdir())},
            },
        )


def dit_of(checkpoint: Checkpoint) -> DiT:
    """The checkpoint's network, out of torch.compile's wrapping."""
    model = getattr(checkpoint.model, "_orig_mod", checkpoint.model)
    if not isinstance(model, DiT):
        raise UserError(f"only a DiT can be saved, not a {type(model).__name__}")
    return model


def has_raw(folder: Path) -> bool:
    """Whether a checkpoint of ours still has raw weights beside the averaged ones; somebody may have removed them."""
    listed = read_json(folder / "config.json", "checkpoint config").get("files", {})
    return FILES["raw"] in listed and (folder / FILES["raw"]).is_file()


def refuse_to_replace(folder: Path) -> None:
    """A save replaces a whole folder: only a checkpoint that we could have written, and nothing else, may lie there."""
    with os_errors("write", folder):
        if not folder.exists():
            return
        names = {path.name for path in folder.iterdir()}
    if names and not (FILES["ema"] in names and "config.json" in names and _is_ours_or_damaged(folder)):
        raise UserError(f"{folder} exists and is no checkpoint of ours: name another folder, or remove it first")
    if others := sorted(names - WRITTEN):
        raise UserError(
            f"{folder} holds {others[0]} beside a checkpoint, which would be lost: move it away, or name another folder"
        )


def _is_ours_or_damaged(folder: Path) -> bool:
    """Whether a config.json is ours or MDLM's, which `convert` writes; others' folders have the same file names."""
    try:
        config = read_json(folder / "config.json", "checkpoint config")
    except UserError:
        return True  # of no use to anybody
    return config.get("format") == FORMAT or config.get("model_type") == "mdlm"


def load(
    source: str | Path,
    *,
    weights: Literal["ema", "raw"] = "ema",
    revision: str | None = None,
    device: str | torch.device = "cpu",
) -> Checkpoint:
    """A checkpoint ready to use, its model in eval mode with float32 parameters (float64 stays float64).

    Args:
        source: a folder (ours, a run's, MDLM's or SDTT's), a Lightning .ckpt file, a bundled name, or a hub name
        weights: the averaged weights or the raw ones, where a checkpoint has both
        revision: of a hub repository
        device: where the model goes
    """
    if weights not in WEIGHTS:
        raise unknown("weights", str(weights), WEIGHTS)
    place = _device(device)
    with os_errors("read", source):
        path = locate(source, revision)
        origin = {"source": str(source), "revision": revision, "weights": weights}
        if path.is_dir():
            checkpoint = _from_folder(path, weights, origin)
        else:
            checkpoint = _from_foreign(lightning.read_file(path, weights), path, origin)
    dit_of(checkpoint).to(place).eval()
    return checkpoint


def _device(device: str | torch.device) -> torch.device:
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"no device {str(device)!r} here ({reason}): use 'cpu', or one this torch can see") from error
    return place


def _from_folder(folder: Path, weights: Literal["ema", "raw"], origin: Mapping[str, Any]) -> Checkpoint:
    if not (folder / "config.json").exists():
        raise _no_checkpoint(folder)
    config = read_json(folder / "config.json", "checkpoint config")
    if config.get("format") == FORMAT:
        return _from_own(folder, config, weights)
    check_kind(config, str(folder))  # a checkpoint of another kind is named before anything else about it
    if weights == "raw":
        raise _one_set(folder)
    layout = mdlm if "model_type" in config else sdtt  # SDTT's config.json is its Hydra config
    return _from_foreign(layout.read_folder(folder, config), folder, origin)


def _no_checkpoint(folder: Path) -> UserError:
    if (folder / "run.json").is_file():
        return UserError(
            f"{folder} is a run without a checkpoint yet: run the same `unmask train` (or `unmask distill`) command "
            "again, it goes on and writes one"
        )
    return UserError(f"{folder} holds no checkpoint (no config.json): give the folder that a run or `save` wrote")


def _one_set(folder: Path) -> UserError:
    return UserError(f"{folder} holds one set of weights: load it with weights='ema' (--weights ema, the default)")


def _from_own(folder: Path, config: Mapping[str, Any], weights: Literal["ema", "raw"]) -> Checkpoint:
    if config.get("version") != VERSION:
        raise UserError(
            f"{folder} is of format version {config.get('version')}, this unmask reads {VERSION}: "
            "install the release that wrote it"
        )
    try:
        shape, files = DiTConfig(**config["model"]), dict(config["files"])
        schedule = schedule_named(**config["schedule"])
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{folder}/config.json is damaged ({error}): restore a copy, or save it again") from error
    if FILES[weights] not in files:
        raise _one_set(folder)
    for name, digest in files.items():
        if name != FILES["ema" if weights == "raw" else "raw"]:
            _check_file(folder / name, digest)
    tokenizer = None
    if "tokenizer.json" in files:
        text = (folder / "tokenizer.json").read_text(encoding="utf-8")
        tokenizer = Tokenizer.from_json(text, config.get("tokenizer", "custom"))
    provenance = read_json(folder / "provenance.json", "provenance")
    model = build(shape, read_tensors(folder / FILES[weights]), str(folder))
    return Checkpoint(model, schedule, tokenizer, provenance)


def _check_file(path: Path, digest: str) -> None:
    if not path.is_file():
        raise UserError(f"checkpoint {path.parent} is incomplete: {path.name} is missing; copy it again")
    if sha256_file(path) != digest:
        raise UserError(f"checkpoint {path.parent} is damaged: {path.name} does not match its sha256; copy it again")


def _from_foreign(foreign: Foreign, path: Path, origin: Mapping[str, Any]) -> Checkpoint:
    tokenizer = None
    if (path / "tokenizer.json").is_file():
        tokenizer = Tokenizer.load(path / "tokenizer.json")
    elif foreign.config.vocab_size == GPT2_STATES:
        tokenizer = Tokenizer.load("gpt2")
    provenance = {**origin, "format": foreign.format, "metadata": dict(foreign.metadata)}
    return Checkpoint(build(foreign.config, foreign.weights, str(path)), LogLinear(), tokenizer, provenance)


def build(config: DiTConfig, weights: Mapping[str, Tensor], where: str) -> DiT:
    """A DiT holding these weights in float32 or better, whatever they were stored in."""
    with torch.device("meta"):
        model = DiT.from_config(config)
    expected = model.state_dict()
    for name in sorted(expected.keys() | weights.keys()):
        if name not in weights:
            raise UserError(f"{where} is incomplete: the tensor {name!r} is missing")
        if name not in expected:
            raise UserError(f"{where} does not fit its config: unknown tensor {name!r}")
        if weights[name].shape != expected[name].shape:
            raise UserError(
                f"{where} does not fit its config: {name!r} has shape {tuple(weights[name].shape)}, "
                f"not {tuple(expected[name].shape)}"
            )
    is_double = any(tensor.dtype == torch.float64 for tensor in weights.values())
    dtype = torch.float64 if is_double else torch.float32
    copies = {name: tensor.to("cpu", dtype, copy=True) for name, tensor in weights.items()}
    model.load_state_dict(copies, assign=True)  # Module.to_empty would import sympy: 0.7 s of a cold start
    model.rotary = Rotary(config.length, config.hidden // config.heads).to(dtype)  # a table, in no checkpoint
    return model
