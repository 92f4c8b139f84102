"""Plans by name: which positions each step reveals.

A locked plan is known before the first forward (locked.py), an adaptive one looks at the model's law (confidence.py),
and blocks hold either (blocks.py). Of processes that draw every position at every step: every.py.

Shapes: B sequences, L positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.core.errors import UserError, named, unknown
from unmask.plans import laws
from unmask.plans.assignment import Plan
from unmask.plans.blocks import Blocks
from unmask.plans.confidence import Confidence, EntropyBounded
from unmask.plans.grids import STEPS, Grid, make_grid
from unmask.plans.locked import GOLDEN, IID, Law, LeftToRight, Locked, turning

PLANS: dict[str, Plan] = {}
USUAL = "comb"  # where nobody says: the best by likelihood of those that copy at every lag (docs/studies/plans.md)


def register_plan(name: str, plan: Plan | Law, **promises: Any) -> None:
    """Make a plan known by its name, wherever a plan is chosen.

    Args:
        name: what users call it
        plan: a Plan, or a law of u: a function (B, L, generator, steps) -> u_BL
        promises: for a law of u: `for_steps`, `classes` and `distance` of Locked
    """
    PLANS[name] = Locked(name, plan, **promises) if callable(plan) else plan


for _plan in (
    IID,
    Locked("permutation", laws.permutation),
    GOLDEN,
    Locked("van_der_corput", laws.van_der_corput, distance=lambda steps: steps & -steps),
    turning("comb", laws.Comb()),
    turning("rotation", laws.Rotation()),
    Locked("stride", laws.stride, for_steps=True, classes=True, distance=lambda steps: steps),
    Locked("dilated", laws.dilated, distance=lambda steps: 2 if steps % 2 == 0 else 1),
    LeftToRight(),
    Confidence("probability"),
    Confidence("entropy"),
    EntropyBounded(),
):
    register_plan(_plan.name, _plan)
register_plan("blocks", Blocks())


def make_plan(plan: str | Plan) -> Plan:
    """A plan from its name, or itself; settings may follow the name, as in comb:drift=0.75,rising=true."""
    if not isinstance(plan, str):
        return plan
    name, sign, settings = plan.partition(":")
    found = named("plan", name, PLANS)
    if not sign:
        return found
    if isinstance(found, Locked) and isinstance(found.law, laws.Turning):
        return turning(plan, found.law.with_settings(settings))
    if not hasattr(found, "with_settings"):
        raise UserError(f"the plan {name} has no settings: leave out :{settings}")
    return found.with_settings(settings)


def locked_plans() -> dict[str, Locked]:
    """The plans that are a law of u, by name: those that training can follow."""
    return {name: plan for name, plan in PLANS.items() if isinstance(plan, Locked)}


def locked_plan(plan: str | Plan) -> Locked:
    """A plan that is a law of u, from its name or itself."""
    found = make_plan(plan) if isinstance(plan, str) and plan.partition(":")[0] in PLANS else plan
    if isinstance(found, Locked):
        return found
    raise unknown("plan with a law of u", plan if isinstance(plan, str) else plan.name, locked_plans())


def draw_u(shape: tuple[int, int], plan: str | Plan, *, generator: torch.Generator, steps: int | None = None) -> Tensor:
    """u for B sequences of L positions under a plan: (B, L) float64 in [0, 1), on the CPU."""
    return locked_plan(plan).draw(*shape, generator, steps)


def by_threshold(plan: Plan) -> bool:
    """Whether the model's confidence sets the number of steps, so that neither steps nor a grid is used."""
    return plan.rule is not None and plan.rule.threshold is not None


def choose_grid(
    plan: Plan, grid: str | Path | Sequence[float] | Grid | None, steps: int | None, usual: int = STEPS
) -> Grid:
    """The grid that a plan goes on (see make_grid; None: `rank`), unless the plan goes by itself."""
    if by_threshold(plan) and (grid is not None or steps is not None):
        raise UserError("a threshold decides by itself how many steps there are: leave out steps and grid")
    return make_grid("rank" if grid is None else grid, steps, usual)
