"""unmask: masked diffusion language models in a handful of steps.

The public names are loaded when they are first used, so that `import unmask` stays quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from unmask.version import __version__

if TYPE_CHECKING:
    from unmask.checkpoint.io import Checkpoint, load, save
    from unmask.evaluation.evaluate import evaluate
    from unmask.models.dit import DiT
    from unmask.objectives.ar import AR
    from unmask.objectives.cd4lm import CD4LM
    from unmask.objectives.mcd import MCD
    from unmask.objectives.mdlm import MDLM
    from unmask.objectives.sdtt import SDTT
    from unmask.process.duality import GaussianDuality
    from unmask.process.masking import mask
    from unmask.process.schedule import Cosine, LogLinear
    from unmask.process.trajectory import couple
    from unmask.sampling.sample import sample
    from unmask.training.engine import Trainer

__all__ = [
    "AR",
    "CD4LM",
    "MCD",
    "MDLM",
    "SDTT",
    "Checkpoint",
    "Cosine",
    "DiT",
    "GaussianDuality",
    "LogLinear",
    "Trainer",
    "__version__",
    "couple",
    "evaluate",
    "load",
    "mask",
    "sample",
    "save",
]

_HOMES = {
    "AR": "objectives.ar",
    "CD4LM": "objectives.cd4lm",
    "MCD": "objectives.mcd",
    "MDLM": "objectives.mdlm",
    "SDTT": "objectives.sdtt",
    "Checkpoint": "checkpoint.io",
    "Cosine": "process.schedule",
    "DiT": "models.dit",
    "GaussianDuality": "process.duality",
    "LogLinear": "process.schedule",
    "Trainer": "training.engine",
    "couple": "process.trajectory",
    "evaluate": "evaluation.evaluate",
    "load": "checkpoint.io",
    "mask": "process.masking",
    "sample": "sampling.sample",
    "save": "checkpoint.io",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"unmask.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'unmask' has no attribute {name!r}")
