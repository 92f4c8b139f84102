"""A model over several devices, main memory and disk, by accelerate, as a `device_map` says."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from json import JSONDecodeError, loads
from pathlib import Path
from textwrap import shorten
from typing import Any

from torch import nn

from unmask.checkpoint.published import Stored
from unmask.core.errors import UserError
from unmask.models.family import family_of
from unmask.models.parameters import tensors_of

DeviceMap = str | Mapping[str, Any]
AUTOMATIC = ("auto", "balanced", "balanced_low_0", "sequential")


def spread(model: nn.Module, device_map: DeviceMap, stored: Stored) -> None:
    """Put each part of a model where the map says."""
    try:
        from accelerate import dispatch_model
    except ImportError as error:
        raise UserError("a device_map needs accelerate: pip install 'unmask[models]'") from error
    family = family_of(model)
    if not family.spreads:
        raise UserError(f"a model of the family {family.name} does not go over several devices: leave out device_map")
    places = _places(model, device_map)
    index = {
        name: {"safetensors_file": str(file), "weight_name": theirs, "dtype": str(tensor.dtype).removeprefix("torch.")}
        for name, tensor in tensors_of(model).items()
        for file, theirs in [stored.get(tensor.data_ptr(), (Path(), ""))]
        if theirs
    }
    logger = logging.getLogger("accelerate.big_modeling")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it warns of what was asked for
    try:
        dispatch_model(model, places, offload_index=index if "disk" in places.values() else None)
    except (ValueError, RuntimeError, KeyError) as error:
        why = shorten(str(error), 200, placeholder=" …")  # it may list every weight of the model
        raise UserError(f"accelerate cannot go by this device_map: {why}") from error
    finally:
        logger.setLevel(level)
    model.hf_device_map = places  # type: ignore[assignment]


def _places(model: nn.Module, device_map: DeviceMap) -> dict[str, Any]:
    """Which part goes where: accelerate's own answer, or the map that is given."""
    if isinstance(device_map, str) and device_map.startswith("{"):
        try:
            device_map = loads(device_map)
        except JSONDecodeError as error:
            raise UserError(f"the device_map {device_map!r} is no JSON: {error}") from error
    if isinstance(device_map, Mapping):
        return dict(device_map)
    if device_map not in AUTOMATIC:
        return {"": device_map}
    from accelerate import infer_auto_device_map
    from accelerate.utils import get_balanced_memory

    whole = sorted({type(block).__name__ for block in family_of(model).blocks(model)})
    memory = None
    if device_map != "sequential":
        low = device_map == "balanced_low_0"
        memory = get_balanced_memory(model, no_split_module_classes=whole, low_zero=low)
    return dict(infer_auto_device_map(model, max_memory=memory, no_split_module_classes=whole))
