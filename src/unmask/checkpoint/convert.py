"""From one format to another: load, then write.

Refuses to know any layout.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch

from unmask.base.errors import UserError
from unmask.base.files import fresh_folder, write_text
from unmask.checkpoint.formats import mdlm
from unmask.checkpoint.io import Checkpoint, dit_of, load, refuse_to_replace, save
from unmask.process.schedule import LogLinear


def convert(
    source: str | Path,
    target: str | Path,
    *,
    format: Literal["unmask", "mdlm"] = "unmask",
    weights: Literal["ema", "raw"] = "ema",
    revision: str | None = None,
    dtype: torch.dtype | None = None,
    overwrite: bool = False,
) -> Checkpoint:
    """Read `source`, whatever its layout, and write one set of its weights to the folder `target`."""
    target = Path(target)
    refuse_to_replace(target)
    if target.exists() and not overwrite:
        raise UserError(f"{target} exists: name another folder, or allow its replacement (--overwrite)")
    checkpoint = load(source, weights=weights, revision=revision)
    if format == "unmask":
        save(checkpoint, target, dtype=dtype)
    else:
        _save_mdlm(checkpoint, target, dtype)
    return checkpoint


def _save_mdlm(checkpoint: Checkpoint, target: Path, dtype: torch.dtype | None) -> None:
    if not isinstance(checkpoint.schedule, LogLinear):
        raise UserError(
            f"MDLM's layout knows the log-linear schedule only, not {checkpoint.schedule.name!r}: "
            "keep this checkpoint in our own format"
        )
    model = dit_of(checkpoint)
    with fresh_folder(target) as aside:
        mdlm.write_folder(aside, model.config, model.state_dict(), dtype)
        if checkpoint.tokenizer is not None:
            write_text(aside / "tokenizer.json", checkpoint.tokenizer.to_json())
