"""Adapters on disk, in peft's own format; ours have our config.json beside them, which names the base by its
weights."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, dtype, nn

from unmask.checkpoint.tensors import check_finite, read_tensors, write_tensors
from unmask.core.errors import UserError, reading
from unmask.models.lora import (
    Base,
    adapter_tensors,
    base_of,
    check_base,
    config_of,
    fill,
    in_peft_names,
    injected,
    peft,
)

CONFIG, TENSORS, PICKLE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"


def is_adapter(folder: Path) -> bool:
    return (folder / CONFIG).is_file()


def write_adapter(
    folder: Path, model: nn.Module, raw: Mapping[str, Tensor] | None, raw_file: str, dtype: dtype | None
) -> None:
    """A network's adapter, and its raw weights beside the averaged ones, into a folder."""
    config = copy.deepcopy(config_of(model))
    config.inference_mode = True
    if base := base_of(model):
        config.base_model_name_or_path = base.source
    config.save_pretrained(folder)
    write_tensors(folder / TENSORS, adapter_tensors(model), dtype)
    if raw is not None:
        write_tensors(folder / raw_file, in_peft_names(model, raw), dtype)


def base_source(folder: Path, about: Mapping[str, Any]) -> str:
    """What the base of an adapter was loaded as."""
    source = (about.get("adapter") or {}).get("source") or _config(folder).base_model_name_or_path
    if not source:
        raise UserError(f"the adapter {folder} does not name its base: give both, load(base, adapter={str(folder)!r})")
    return str(source)


def apply_adapter(model: Any, folder: Path, about: Mapping[str, Any], file: str, source: str | None) -> Any:
    """A network with the adapter of a folder in it, whose other weights are the model's own.

    Args:
        model: the base
        folder: where the adapter lies
        about: our config.json there; empty, if peft wrote it
        file: which of its tensors: TENSORS, or the raw ones
        source: what the base was loaded as
    """
    config = _config(folder)
    if not (folder / file).is_file():
        hint = ": it is a pickle, which may run code when it is read; save it as safetensors"
        raise UserError(f"the adapter {folder} has no {file}{hint if (folder / PICKLE).is_file() else ''}")
    if base_of(model):
        raise UserError(f"{source or 'the model'} has an adapter already: merge that first (unmask convert --merge)")
    if stored := about.get("adapter"):
        check_base(model, Base(**stored), str(folder))
    tensors = read_tensors(folder / file)
    check_finite(tensors, str(folder))
    with reading(folder, "the adapter", "save it again"):
        try:
            adapted = injected(model, config, source)
        except ValueError as error:  # peft finds none of the layers it names
            words = " ".join(str(error).split())[:120]
            raise UserError(f"the adapter {folder} is of another base ({words}): load it on its own") from error
        fill(adapted, tensors, str(folder))
    return adapted


def _config(folder: Path) -> Any:
    """peft's config, of a LoRA adapter."""
    with reading(folder / CONFIG, "the adapter's config", "save it again"), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # keys of a newer peft, left out
        config = peft().PeftConfig.from_pretrained(str(folder))
    kind = getattr(config.peft_type, "value", config.peft_type)
    if kind != "LORA" or config.modules_to_save:
        what = f"of the kind {kind}" if kind != "LORA" else "with whole layers beside it (modules_to_save)"
        raise UserError(f"the adapter {folder} is {what}: only plain LoRA is read here")
    config.init_lora_weights, config.inference_mode = True, False  # what it began with is no matter any more
    return config
