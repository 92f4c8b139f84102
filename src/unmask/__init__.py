"""unmask: masked diffusion language models in a handful of steps.

The public names are loaded when they are first used, so that `import unmask` stays quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from unmask.version import __version__

if TYPE_CHECKING:
    from unmask.checkpoint.io import Checkpoint, load, save
    from unmask.models.dit.network import DiT
    from unmask.objectives.ar import AR
    from unmask.objectives.distil.cd4lm import CD4LM
    from unmask.objectives.distil.mcd import MCD
    from unmask.objectives.distil.sdtt import SDTT
    from unmask.objectives.elbo import MDLM
    from unmask.processes.gaussian import GaussianDuality
    from unmask.processes.masked import mask
    from unmask.processes.schedule import Cosine, LogLinear
    from unmask.processes.trajectory import couple
    from unmask.sampling.sample import sample
    from unmask.studies.evaluate import evaluate
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
    "CD4LM": "objectives.distil.cd4lm",
    "MCD": "objectives.distil.mcd",
    "MDLM": "objectives.elbo",
    "SDTT": "objectives.distil.sdtt",
    "Checkpoint": "checkpoint.io",
    "Cosine": "processes.schedule",
    "DiT": "models.dit",
    "GaussianDuality": "processes.gaussian",
    "LogLinear": "processes.schedule",
    "Trainer": "training.engine",
    "couple": "processes.trajectory",
    "evaluate": "studies.evaluate",
    "load": "checkpoint.io",
    "mask": "processes.masked",
    "sample": "sampling.sample",
    "save": "checkpoint.io",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"unmask.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'unmask' has no attribute {name!r}")
