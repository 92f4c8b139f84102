"""`unmask convert`: change a checkpoint's format."""

from __future__ import annotations

from pathlib import Path
from typing import Literal


def convert(
    source: str,
    target: Path,
    /,
    *,
    format: Literal["unmask", "mdlm"] = "unmask",
    weights: Literal["ema", "raw"] = "ema",
    revision: str | None = None,
    dtype: Literal["fp32", "bf16"] | None = None,
    fold: bool = False,
    card: str | None = None,
    licence: str | None = None,
    overwrite: bool = False,
) -> None:
    """Read a checkpoint of any layout we know and write one set of its weights to a folder.

    Args:
        source: our folder, an MDLM or SDTT folder, a Lightning .ckpt file, a bundled name or a hub name (owner/name)
        target: the folder to write
        format: our own format, or MDLM's hub folder
        weights: the averaged weights or the raw ones, where the source has both
        revision: of a hub repository
        dtype: store the weights in this type; otherwise they stay as loaded
        fold: leave out the conditioning on time, which is off in every model here: the same function in fewer numbers
        card: what the model is and what it read, in a few sentences: writes a model card (README.md), and a provenance
            without the paths of this machine
        licence: of the weights, for the card
        overwrite: replace a checkpoint that is already there
    """
    import torch

    from unmask.checkpoint import convert as library
    from unmask.models.family import plain

    stored = {None: None, "fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    checkpoint = library.convert(
        source,
        target,
        format=format,
        weights=weights,
        revision=revision,
        dtype=stored,
        fold=fold,
        card=card,
        licence=licence,
        overwrite=overwrite,
    )
    count = sum(parameter.numel() for parameter in plain(checkpoint.model).parameters())
    print(f"{target}: {count:,} parameters in {format} format")
