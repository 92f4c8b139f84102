"""A plan on a grid, as a user types it: PLAN, or PLAN@GRID with a grid's name or a file of `unmask fit-plan`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unmask.checkpoint.io import Checkpoint
from unmask.core.errors import UserError
from unmask.core.hashing import key_of
from unmask.core.streams import stream
from unmask.inference.cache import block_of
from unmask.plans.every import ANCESTRAL, EveryPosition, any_plan, check_times
from unmask.plans.grids import GRID_NAMES, Grid, fitted_for_another, make_grid, steps_in, usual_grid
from unmask.plans.plan import USUAL, make_plan
from unmask.processes.schedule import LogLinear
from unmask.sampling.verbs import chosen_plan
from unmask.studies import fingerprint


@dataclass(frozen=True)
class PlanOnGrid:
    """`name` is what cells and tables call it."""

    name: str
    plan: str
    grid: str

    def at(self, steps: int | None) -> Grid:
        """The grid of so many steps; None: of its usual number, which of a file is the most it has."""
        return make_grid(self.grid, steps)

    @property
    def step_counts(self) -> set[int] | None:
        """The numbers of steps that it has a grid of; None: any."""
        return None if self.grid in GRID_NAMES else steps_in(Path(self.grid))

    def noise_name(self, steps: int) -> str:
        """What names the noise of a cell: a fitted grid goes by its times, wherever its file lies."""
        return self.name if self.grid in GRID_NAMES else f"{self.plan}@{key_of(self.at(steps).times)[:16]}"

    def law(self, steps: int) -> dict[str, Any]:
        """Which law this is: the plan and the times, whatever they are called and wherever a file lies."""
        grid = self.at(steps)
        about = {"times": grid.times, "by": grid.by, "argmax_tail": grid.argmax_tail}
        return {"plan": any_plan(self.plan).to_json(), **about}

    def behaviour(self, steps: int, temperature: float, checkpoint: Checkpoint) -> str:
        """What the sampler does on it, as a key."""
        how = checkpoint.process, checkpoint.step_law, checkpoint.model.mask_id is not None
        plan = chosen_plan(self.plan, own=block_of(checkpoint.model))
        return fingerprint.behaviour(plan, self.at(steps), temperature, *how)  # type: ignore[arg-type]

    @property
    def every_position(self) -> bool:
        """Whether it is of a process that draws every position at every step."""
        return isinstance(any_plan(self.plan), EveryPosition)

    @property
    def greedy(self) -> bool:
        """Whether it ends with the likeliest tokens, and so has no likelihood."""
        plan = any_plan(self.plan)
        return isinstance(plan, EveryPosition) and plan.greedy


COMB = PlanOnGrid(USUAL, USUAL, usual_grid(USUAL))
EVERY = PlanOnGrid(ANCESTRAL, ANCESTRAL, "uniform")


def plans_on_grids(names: Sequence[str], steps: Sequence[int]) -> list[PlanOnGrid]:
    """The plans that are asked for, each once; without steps, tried in their usual number.

    Rejects a plan or grid that is none, a grid without such steps, and one that the plan does not take.
    """
    plans = {}
    for name in names:
        plan, sign, grid = name.partition("@")
        usual = "uniform" if isinstance(any_plan(plan), EveryPosition) else usual_grid(plan)
        plain = not sign or grid == usual
        one = PlanOnGrid(plan, plan, usual) if plain else PlanOnGrid(name, plan, grid)
        for n in (None, *steps):
            _try(one, n)
        plans[one.name] = one
    return list(plans.values())


def _try(one: PlanOnGrid, steps: int | None) -> None:
    """Let plan and grid meet on a text of two tokens: some plans reject some grids, and say so only then."""
    blank_12 = torch.ones(1, 2, dtype=torch.bool)
    grid = one.at(steps)
    try:
        if one.every_position:
            check_times(any_plan(one.plan), grid)
        else:
            make_plan(one.plan).assign(blank_12, grid, LogLinear(), [stream(0, "try")])
    except UserError as error:
        raise UserError(f"the plan {one.name}: {error}") from error


def fitted_for_others(plans: Sequence[PlanOnGrid], steps: int) -> list[str]:
    """A sentence for each plan whose grid was fitted for another plan."""
    sentences = [fitted_for_another(one.at(steps), one.plan, one.name) for one in plans]
    return [sentence for sentence in sentences if sentence]
