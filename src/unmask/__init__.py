"""unmask: masked diffusion language models in a handful of steps.

The public names are loaded when they are first used, so that `import unmask` stays quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from unmask.core.errors import UserError
from unmask.version import __version__

if TYPE_CHECKING:  # `as` marks them as public for type checkers
    from unmask.checkpoint.export import export as export
    from unmask.checkpoint.io import Checkpoint as Checkpoint
    from unmask.checkpoint.io import load as load
    from unmask.checkpoint.io import save as save
    from unmask.checkpoint.push import push as push
    from unmask.data.prepare import prepare as prepare
    from unmask.inference.chain import Chain as Chain
    from unmask.inference.step_law import Factorised as Factorised
    from unmask.inference.step_law import register_step_law as register_step_law
    from unmask.metrics.registry import register_metric as register_metric
    from unmask.models.dit import DiT as DiT
    from unmask.models.family import register_family as register_family
    from unmask.objectives.ar import AR as AR
    from unmask.objectives.distil.cd4lm import CD4LM as CD4LM
    from unmask.objectives.distil.dcd import DCD as DCD
    from unmask.objectives.distil.mcd import MCD as MCD
    from unmask.objectives.distil.sdtt import SDTT as SDTT
    from unmask.objectives.duo import Duo as Duo
    from unmask.objectives.duo import SoftStart as SoftStart
    from unmask.objectives.elbo import MDLM as MDLM
    from unmask.objectives.registry import register_objective as register_objective
    from unmask.plans.plan import register_plan as register_plan
    from unmask.processes import Masked as Masked
    from unmask.processes import Uniform as Uniform
    from unmask.processes import register_process as register_process
    from unmask.processes.gaussian import GaussianDuality as GaussianDuality
    from unmask.processes.schedule import Cosine as Cosine
    from unmask.processes.schedule import LogLinear as LogLinear
    from unmask.sampling.samples import Samples as Samples
    from unmask.sampling.verbs import sample as sample
    from unmask.server.verbs import play as play
    from unmask.server.verbs import serve as serve
    from unmask.studies.evaluate import evaluate as evaluate
    from unmask.studies.fit_plan import fit_plan as fit_plan
    from unmask.studies.harness import lm_eval as lm_eval
    from unmask.training.trainer import Trainer as Trainer
    from unmask.training.verbs import distill as distill
    from unmask.training.verbs import train as train

_HOMES = {
    # verbs
    "prepare": "data.prepare",
    "train": "training.verbs",
    "distill": "training.verbs",
    "sample": "sampling.verbs",
    "evaluate": "studies.evaluate",
    "fit_plan": "studies.fit_plan",
    "serve": "server.verbs",
    "export": "checkpoint.export",
    "push": "checkpoint.push",
    "lm_eval": "studies.harness",
    "play": "server.verbs",
    "load": "checkpoint.io",
    "save": "checkpoint.io",
    # nouns
    "Checkpoint": "checkpoint.io",
    "Samples": "sampling.samples",
    "Trainer": "training.trainer",
    "DiT": "models.dit",
    "Masked": "processes",
    "Uniform": "processes",
    "Factorised": "inference.step_law",
    "Chain": "inference.chain",
    "MDLM": "objectives.elbo",
    "Duo": "objectives.duo",
    "SoftStart": "objectives.duo",
    "AR": "objectives.ar",
    "DCD": "objectives.distil.dcd",
    "MCD": "objectives.distil.mcd",
    "SDTT": "objectives.distil.sdtt",
    "CD4LM": "objectives.distil.cd4lm",
    "GaussianDuality": "processes.gaussian",
    "LogLinear": "processes.schedule",
    "Cosine": "processes.schedule",
    # what plug-ins call
    "register_plan": "plans.plan",
    "register_process": "processes",
    "register_family": "models.family",
    "register_step_law": "inference.step_law",
    "register_objective": "objectives.registry",
    "register_metric": "metrics.registry",
}

__all__ = ["UserError", "__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        found = globals()[name] = getattr(importlib.import_module(f"unmask.{_HOMES[name]}"), name)
        return found
    raise AttributeError(f"module 'unmask' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
