"""How texts of a cell are written: a reveal plan and its grid, as a user types them: PLAN or PLAN@GRID.

GRID is a grid's name or a file of `unmask fit-grid`. Refuses to know models and scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from unmask.base.errors import UserError
from unmask.base.files import read_json
from unmask.base.streams import stream
from unmask.evaluation.cache import key_of
from unmask.process.schedule import LogLinear
from unmask.sampling.grids import GRID_NAMES, Grid, make_grid, read_grid
from unmask.sampling.reveal import make_reveal


def usual_grid(reveal: str) -> str:
    """iid is the published sampler's law, on a grid of times; every other plan reveals equal counts."""
    return "uniform" if reveal == "iid" else "rank"


@dataclass(frozen=True)
class Way:
    """A plan on a grid. `name` is what cells and tables call it."""

    name: str
    reveal: str
    grid: str

    def at(self, steps: int) -> Grid:
        """The grid of so many steps."""
        return make_grid(self.grid, steps) if self.grid in GRID_NAMES else _fitted(Path(self.grid), steps)

    def identity(self, steps: int) -> str:
        """What names the noise of a cell: a fitted grid goes by its times, wherever its file lies."""
        if self.grid in GRID_NAMES:
            return self.name
        return f"{self.reveal}@{key_of(self.at(steps).times)[:16]}"


def make_ways(plans: Sequence[str], steps: Sequence[int]) -> list[Way]:
    """The ways that are asked for, each once.

    Refuses a plan or grid that is none, a grid without such steps, and one that the plan does not take.
    """
    ways = {}
    for plan in plans:
        reveal, sign, grid = plan.partition("@")
        make_reveal(reveal)
        usual = usual_grid(reveal)
        plain = not sign or grid == usual
        way = Way(reveal if plain else plan, reveal, usual if plain else grid)
        if way.grid not in GRID_NAMES:
            make_grid(way.grid, 1)  # a name that is no grid's, or a file that is none
        for n in steps:
            _try(way, n)
        ways[way.name] = way
    return list(ways.values())


def _try(way: Way, steps: int) -> None:
    """Let plan and grid meet on a text of two tokens: some plans refuse some grids, and say so only then."""
    blank_12 = torch.ones(1, 2, dtype=torch.bool)
    grid = way.at(steps)
    try:
        make_reveal(way.reveal).assign(blank_12, grid, LogLinear(), [stream(0, "try")])
    except UserError as error:
        raise UserError(f"the plan {way.name}: {error}") from error


def fitted_for_others(ways: Sequence[Way], steps: int) -> list[str]:
    """A sentence for each way whose grid was fitted for another plan: it is a law like any other, but not the best."""
    files = [(way, way.at(steps).fitted_for) for way in ways if way.grid not in GRID_NAMES]
    return [
        f"The grid of {way.name} was fitted for the plan {plan}, not for {way.reveal}: another may suit it better."
        for way, plan in files
        if plan not in (None, way.reveal)
    ]


def _fitted(path: Path, steps: int) -> Grid:
    """The grid of a file, or the best one of fewer steps that was found on the way to it."""
    grid = read_grid(path)
    if grid.steps == steps:
        return grid
    # the order of `stride` depends on the number of steps, so that its paths of fewer steps cut another order
    found = [] if grid.fitted_for == "stride" else read_json(path, "grid").get("fitting_half") or []
    try:
        shorter = {int(one["steps"]): make_grid(one["times"], one["steps"]) for one in found}
        assert all(other.steps == n for n, other in shorter.items())
    except (KeyError, TypeError, ValueError, AssertionError, UserError) as error:
        raise UserError(
            f"{path} is damaged (its grids of fewer steps, 'fitting_half'): make it again with `unmask fit-grid`"
        ) from error
    if steps in shorter:
        return replace(grid, times=shorter[steps].times)
    raise UserError(f"{path} holds no grid of {steps} steps: fit one with `unmask fit-grid --steps {steps}`")
