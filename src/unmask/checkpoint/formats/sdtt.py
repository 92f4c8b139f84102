"""SDTT's hub folder: MDLM's tensors, often under `backbone.backbone.`, and a Hydra config as config.json.

One revision of its repository is one checkpoint; the number of heads comes from the rotary buffer or the config.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unmask.checkpoint.formats import mdlm
from unmask.checkpoint.formats.foreign import Foreign, check_kind
from unmask.checkpoint.tensors import read_tensors


def read_folder(folder: Path, config: Mapping[str, Any]) -> Foreign:
    """A snapshot of one revision, its config.json already read."""
    check_kind(config, str(folder))
    tensors = mdlm.strip(read_tensors(folder / "model.safetensors"), str(folder))
    return mdlm.to_ours(tensors, config, str(folder), "sdtt")
