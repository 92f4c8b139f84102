"""MDLM's Lightning file: raw weights, the EMA's list, and hyper-parameters; a pickle that is never executed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from unmask.checkpoint.safe_pickle import LazyTensor, plain, read_torch_file
from unmask.core.errors import UserError, reading
from unmask.models.dit import published


def read_lightning(path: Path, weights: Literal["ema", "raw"]) -> tuple[Mapping[str, Any], dict[str, Tensor]]:
    """(metadata, tensors under MDLM's names)."""
    content = read_torch_file(path)
    state = content.get("state_dict") if isinstance(content, dict) else None
    if not isinstance(state, dict):
        raise UserError(f"{path} is no Lightning checkpoint: it holds no state_dict")
    with reading(path):
        metadata = plain(content.get("hyper_parameters")) or {}
    published.check_kind(metadata, str(path))
    lazy = published.strip({name: value for name, value in state.items() if isinstance(value, LazyTensor)}, str(path))
    if weights == "ema":
        lazy = _averaged(lazy, content.get("ema"), path)
    return metadata, {name: value.read() for name, value in lazy.items()}


def _averaged(raw: Mapping[str, LazyTensor], ema: Any, path: Path) -> dict[str, LazyTensor]:
    """The EMA's list under the names of the parameters, which come in the network's own order; buffers have none."""
    shadow = ema.get("shadow_params") if isinstance(ema, dict) else None
    if not isinstance(shadow, (list, tuple)):
        raise UserError(f"{path} holds no EMA weights: load it with weights='raw' (--weights raw)")
    blocks = len({name.split(".")[1] for name in raw if name.startswith("blocks.")})
    names = list(published.key_map(blocks))
    averaged: dict[str, LazyTensor] = {}
    for name, value in zip(names, shadow, strict=False):
        if isinstance(value, LazyTensor) and name in raw and value.shape == raw[name].shape:
            averaged[name] = value
    if len(averaged) != len(names) or len(shadow) != len(names):
        raise UserError(
            f"{path} has an EMA of {len(shadow)} tensors that does not fit its {len(names)} parameters: "
            "load it with weights='raw' (--weights raw)"
        )
    return averaged | {name: raw[name] for name in (published.ROTARY,) if name in raw}
