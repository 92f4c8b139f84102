"""`unmask info`: what a checkpoint is, and where it came from."""

from __future__ import annotations

from collections.abc import Mapping
from json import dumps
from pathlib import Path
from typing import Any

from unmask.checkpoint.io import Checkpoint, load
from unmask.checkpoint.locate import locate
from unmask.inference.step_law import step_law_to_json
from unmask.models.family import config_to_json, family_of, plain
from unmask.processes.process import process_to_json

BRIEF = ("step", "score", "distillation", "unmask", "device", "time")  # of a provenance; --json has all of it


def info(checkpoint: str, /, *, json: bool = False) -> None:
    """Say what a checkpoint is: its family and size, process, tokenizer, files, and how it was made.

    Args:
        checkpoint: a bundled name, a folder, a file or a hub name
        json: print one JSON object instead of a table
    """
    found = describe(load(checkpoint), locate(checkpoint))
    if json:
        print(dumps(found, indent=2, ensure_ascii=False))
        return
    made = found["provenance"]
    found["provenance"] = {name: made[name] for name in BRIEF if made.get(name) is not None}
    for name, value in found.items():
        if value not in (None, {}):
            print(f"{name.replace('_', ' '):<12}{_shown(value)}")


def describe(checkpoint: Checkpoint, place: Path) -> dict[str, Any]:
    """All of it as JSON can hold it."""
    model, tokenizer = checkpoint.model, checkpoint.tokenizer
    weights = list(plain(model).parameters())
    files = [place] if place.is_file() else sorted(path for path in place.iterdir() if path.is_file())
    return {
        "family": family_of(model).name,
        "shape": config_to_json(model),
        "process": process_to_json(checkpoint.process),
        "step_law": step_law_to_json(checkpoint.step_law),
        "parameters": sum(weight.numel() for weight in weights),
        "stored_in": ", ".join(sorted({str(weight.dtype).removeprefix("torch.") for weight in weights})),
        "tokenizer": None if tokenizer is None else f"{tokenizer.name} ({tokenizer.size:,} tokens)",
        "padding": _padding(checkpoint),
        "files": {path.name: path.stat().st_size for path in files},
        "folder": str(place),
        "provenance": dict(checkpoint.provenance),
    }


def _padding(checkpoint: Checkpoint) -> str | None:
    """States beyond the tokenizer's tokens and the mask: rows that a published table was filled up with."""
    model, tokenizer = checkpoint.model, checkpoint.tokenizer
    if tokenizer is None:
        return None
    extra = model.vocab_size - tokenizer.size - (model.mask_id is not None and model.mask_id >= tokenizer.size)
    return f"{extra:,} of the {model.vocab_size:,} states are no token and spell nothing" if extra else None


def _shown(value: Any, between: str = f"\n{'':<12}") -> str:
    """A number with its commas, a mapping a line each."""
    if isinstance(value, Mapping):
        return between.join(f"{name} {_shown(one, ', ')}" for name, one in value.items() if one is not None)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
