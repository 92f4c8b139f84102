"""How texts of a cell are written: a plan and its grid, as a user types them: PLAN or PLAN@GRID.

GRID is a grid's name or a file of `unmask fit-grid`. Refuses to know models and scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from unmask.core.errors import UserError
from unmask.core.hashing import key_of
from unmask.core.streams import stream
from unmask.plans.grids import GRID_NAMES, Grid, fitted_for_another, make_grid, steps_in, usual_grid
from unmask.plans.plan import make_plan
from unmask.processes.schedule import LogLinear


@dataclass(frozen=True)
class Way:
    """A plan on a grid. `name` is what cells and tables call it."""

    name: str
    plan: str
    grid: str

    def at(self, steps: int | None) -> Grid:
        """The grid of so many steps; None: of its usual number, which of a file is the most it has."""
        return make_grid(self.grid, steps)

    @property
    def counts(self) -> set[int] | None:
        """The numbers of steps that it has a grid of; None: any."""
        return None if self.grid in GRID_NAMES else steps_in(Path(self.grid))

    def identity(self, steps: int) -> str:
        """What names the noise of a cell: a fitted grid goes by its times, wherever its file lies."""
        if self.grid in GRID_NAMES:
            return self.name
        return f"{self.plan}@{key_of(self.at(steps).times)[:16]}"


def make_ways(plans: Sequence[str], steps: Sequence[int]) -> list[Way]:
    """The ways that are asked for, each once; without steps, tried in their usual number.

    Refuses a plan or grid that is none, a grid without such steps, and one that the plan does not take.
    """
    ways = {}
    for said in plans:
        plan, sign, grid = said.partition("@")
        make_plan(plan)
        usual = usual_grid(plan)
        plain = not sign or grid == usual
        way = Way(plan if plain else said, plan, usual if plain else grid)
        way.at(None)  # a name that is no grid's, or a file that is none
        for n in steps or (None,):
            _try(way, n)
        ways[way.name] = way
    return list(ways.values())


def _try(way: Way, steps: int | None) -> None:
    """Let plan and grid meet on a text of two tokens: some plans refuse some grids, and say so only then."""
    blank_12 = torch.ones(1, 2, dtype=torch.bool)
    grid = way.at(steps)
    try:
        make_plan(way.plan).assign(blank_12, grid, LogLinear(), [stream(0, "try")])
    except UserError as error:
        raise UserError(f"the plan {way.name}: {error}") from error


def fitted_for_others(ways: Sequence[Way], steps: int) -> list[str]:
    """A sentence for each way whose grid was fitted for another plan."""
    found = [fitted_for_another(way.at(steps), way.plan, way.name) for way in ways]
    return [sentence for sentence in found if sentence]
