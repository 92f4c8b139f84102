"""unmask: masked diffusion language models in a handful of steps.

The public names are loaded when they are first used, so that `import unmask` stays quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from unmask.version import __version__

if TYPE_CHECKING:
    from unmask.checkpoint.io import Checkpoint, load, save
    from unmask.inference.step_law import Factorised, register_step_law
    from unmask.models.dit.network import DiT
    from unmask.models.family import register_family
    from unmask.objectives.ar import AR
    from unmask.objectives.distil.cd4lm import CD4LM
    from unmask.objectives.distil.mcd import MCD
    from unmask.objectives.distil.sdtt import SDTT
    from unmask.objectives.elbo import MDLM
    from unmask.objectives.registry import register_objective
    from unmask.plans.plan import register_plan
    from unmask.processes import Masked, register_process
    from unmask.processes.gaussian import GaussianDuality
    from unmask.processes.schedule import Cosine, LogLinear
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
    "Factorised",
    "GaussianDuality",
    "LogLinear",
    "Masked",
    "Trainer",
    "__version__",
    "evaluate",
    "load",
    "register_family",
    "register_objective",
    "register_plan",
    "register_process",
    "register_step_law",
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
    "Factorised": "inference.step_law",
    "Masked": "processes",
    "register_family": "models.family",
    "register_objective": "objectives.registry",
    "register_plan": "plans.plan",
    "register_process": "processes",
    "register_step_law": "inference.step_law",
    "GaussianDuality": "processes.gaussian",
    "LogLinear": "processes.schedule",
    "Trainer": "training.engine",
    "evaluate": "studies.evaluate",
    "load": "checkpoint.io",
    "sample": "sampling.sample",
    "save": "checkpoint.io",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"unmask.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'unmask' has no attribute {name!r}")
