"""Objectives by name: what `train --objective` and `distill --method` choose from, open to plug-ins.

A distillation method is a Distillation, which gives its own rounds; any other objective is made from the process and
trains a model by itself. `elbo` is both: the control of every distillation.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from unmask.core.errors import named
from unmask.objectives.ar import AR
from unmask.objectives.chain import Chaining
from unmask.objectives.distil.base import Distillation
from unmask.objectives.distil.cd4lm import CD4LM
from unmask.objectives.distil.dcd import DCD
from unmask.objectives.distil.mcd import MCD
from unmask.objectives.distil.sdtt import SDTT
from unmask.objectives.duo import Duo
from unmask.objectives.elbo import MDLM

OBJECTIVES: dict[str, type[Any]] = {"mdlm": MDLM, "duo": Duo, "ar": AR, "chain": Chaining}
METHODS: dict[str, type[Any]] = {"mcd": MCD, "sdtt": SDTT, "cd4lm": CD4LM, "dcd": DCD, "elbo": MDLM}


def register_objective(name: str, kind: type[Any]) -> None:
    """Make an objective known by its name: a subclass of Distillation as a method, anything else for training."""
    (METHODS if issubclass(kind, Distillation) else OBJECTIVES)[name] = kind


def objective_named(name: str) -> type[Any]:
    """An objective by its name."""
    return named("objective", name, OBJECTIVES)


def method_named(name: str) -> type[Any]:
    """A method of distillation by its name."""
    return named("method", name, METHODS)


def settings_of(kind: type[Any]) -> set[str]:
    """What a user may set: the fields of the dataclass, less what the rounds bring themselves."""
    fields = {field.name for field in dataclasses.fields(kind)}
    return fields - {"teacher", "process", "steps"} - ({"plan_steps"} if not issubclass(kind, Distillation) else set())
