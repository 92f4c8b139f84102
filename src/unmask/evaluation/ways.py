"""How texts of a cell are written: a reveal plan and its grid, as a user types them: PLAN or PLAN@GRID.

GRID is a grid's name or a file of `unmask fit-grid`. Refuses to know models and scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from unmask.base.errors import UserError
from unmask.base.files import read_json
from unmask.evaluation.cache import key_of
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
    """The ways that are asked for, each once; a plan or grid that is none, or has no such steps, is refused."""
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
            way.at(n)
        ways[way.name] = way
    return list(ways.values())


def _fitted(path: Path, steps: int) -> Grid:
    """The grid of a file, or the best one of fewer steps that was found on the way to it."""
    grid = read_grid(path)
    if grid.steps == steps:
        return grid
    # the order of `stride` depends on the number of steps, so that its paths of fewer steps cut another order
    found = [] if grid.fitted_for == "stride" else read_json(path, "grid").get("fitting_half") or []
    for other in found:
        if other["steps"] == steps:
            return replace(grid, times=make_grid(other["times"], steps).times)
    raise UserError(f"{path} holds no grid of {steps} steps: fit one with `unmask fit-grid --steps {steps}`")
