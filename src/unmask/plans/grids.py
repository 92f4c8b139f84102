"""Grids: how many steps there are and how far each one goes, as a small frozen object.

A grid's times fall from 1. Read `by="time"`, step k reveals the positions whose own reveal time lies in
(t_k, t_{k-1}]; read `by="rank"`, it reveals the same share of positions in order of u, so that counts are equal
whatever u was.

Shapes: B sequences, L positions, C cells of [0, 1).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from unmask.core.errors import UserError, reading, unknown
from unmask.core.files import read_json
from unmask.processes.schedule import Schedule

MDLM_EPS = 1e-5  # the published sampler's last time; what is still masked there is filled by argmax


def uniform_grid(steps: int) -> Tensor:
    """t_k = 1 - k/N."""
    return 1 - torch.arange(steps + 1, dtype=torch.float64) / steps


def cosine_grid(steps: int) -> Tensor:
    """t_k = cos(pi k / 2N): few tokens a step at first, many at the end."""
    times = torch.cos(math.pi / 2 * torch.arange(steps + 1, dtype=torch.float64) / steps)
    times[-1] = 0
    return times


def mdlm_grid(steps: int) -> Tensor:
    """t_k = 1 - k(1 - 1e-5)/N, the published grid. It ends at 1e-5, not 0."""
    return 1 - torch.arange(steps + 1, dtype=torch.float64) * ((1 - MDLM_EPS) / steps)


def grid_of(times: Sequence[float]) -> Tensor:
    """A user's list of times as a grid: falling from 1 to 0; the two ends are added if left out."""
    grid = torch.tensor([float(time) for time in times], dtype=torch.float64)
    if grid.numel() == 0 or bool(((grid < 0) | (grid > 1) | ~grid.isfinite()).any()):
        raise UserError(f"a grid is a list of times between 1 and 0, not {list(times)}")
    if grid[0] != 1:
        grid = torch.cat([grid.new_ones(1), grid])
    if grid[-1] != 0:
        grid = torch.cat([grid, grid.new_zeros(1)])
    if not bool((grid[1:] < grid[:-1]).all()):
        raise UserError(f"a grid's times must fall from 1 to 0, not {list(times)}")
    return grid


GRIDS = {"uniform": uniform_grid, "cosine": cosine_grid, "mdlm": mdlm_grid}


@dataclass(frozen=True)
class Grid:
    """Times t_0 = 1 > t_1 > ... > t_N. `argmax_tail`: what is still masked at t_N is filled by argmax, as MDLM does."""

    name: str
    times: tuple[float, ...]
    by: Literal["time", "rank"] = "time"
    argmax_tail: bool = False
    fitted_for: str | None = None  # the plan a fitted grid was fitted for

    @property
    def steps(self) -> int:
        return len(self.times) - 1

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "times": list(self.times)}


def _named(name: str, steps: int) -> Grid:
    if name == "rank":
        return Grid("rank", tuple(uniform_grid(steps).tolist()), by="rank")
    return Grid(name, tuple(GRIDS[name](steps).tolist()), argmax_tail=name == "mdlm")


def usual_grid(plan: str) -> str:
    """iid is the published sampler's law, on a grid of times; every other plan reveals equal counts."""
    return "uniform" if plan == "iid" else "rank"


GRID_NAMES = (*GRIDS, "rank")
STEPS = 32  # where nobody says
CURE = "make it with `unmask fit-plan`"


def make_grid(grid: str | Path | Sequence[float] | Grid, steps: int | None = None, usual: int = STEPS) -> Grid:
    """A grid from a name, a fitted grid's file, a list of times, or a grid itself.

    Without `steps` a name has the `usual` number, and the others have their own. A file may hold grids of fewer steps;
    times and a grid take no other number than theirs.
    """
    if steps is not None and steps < 1:
        raise UserError(f"steps must be at least 1, not {steps}")
    if isinstance(grid, (str, Path)):
        if str(grid) in GRID_NAMES:
            return _named(str(grid), usual if steps is None else steps)
        if Path(grid).suffix == ".json":
            return read_grid(Path(grid), steps)
        raise unknown("grid", str(grid), [*GRID_NAMES, "a fitted grid's .json file"])
    made = grid if isinstance(grid, Grid) else Grid("list", tuple(grid_of(grid).tolist()))
    if steps not in (None, made.steps):
        raise UserError(f"this grid has {made.steps} steps, and {steps} were asked for: leave out steps")
    return made


def read_grid(path: Path, steps: int | None = None) -> Grid:
    """A grid that `unmask fit-plan` wrote, or the best one of fewer steps that was found on the way to it."""
    grid, times = _read(path)
    if steps is None:
        return grid
    if steps not in times:
        raise UserError(f"{path} holds no grid of {steps} steps, only of {_listed(times)}: take one "
                        f"of these, or fit one with `unmask fit-plan --steps {steps}`")  # fmt: skip
    return replace(grid, times=times[steps])


def steps_in(path: Path) -> set[int]:
    """The numbers of steps that a file has a grid of."""
    return set(_read(path)[1])


def _read(path: Path) -> tuple[Grid, dict[int, tuple[float, ...]]]:
    """A file's own grid, and the times of all its grids by their steps."""
    content = read_json(path, "grid")
    with reading(path, "grid", CURE):
        fitted, plan, shorter = dict(content["grid"]), content.get("plan"), content.get("fitting_half") or []
        times = {int(one["steps"]): tuple(grid_of(one["times"]).tolist()) for one in shorter}
        if any(len(edges) != n + 1 for n, edges in times.items()):
            raise ValueError("a grid in 'fitting_half' has another number of steps than it says")
        own, by = tuple(grid_of(fitted["times"]).tolist()), fitted["by"]
        if by not in ("time", "rank"):
            raise ValueError(f"'by' must be time or rank, not {by!r}")
        grid = Grid(str(fitted.get("name", "fitted")), own, by=by, fitted_for=plan and str(plan))
        return grid, {**times, grid.steps: own}


def _listed(counts: Iterable[int]) -> str:
    """All of them, in few words: 1 to 8."""
    known = sorted(counts)
    if len(known) > 2 and known == list(range(known[0], known[-1] + 1)):
        return f"{known[0]} to {known[-1]}"
    return ", ".join(map(str, known))


def fitted_for_another(grid: Grid, plan: str, name: str) -> str | None:
    """A sentence on a grid that was fitted for another plan: it is a law like any other, but not the best."""
    if grid.fitted_for in (None, plan):
        return None
    return f"The grid of {name} was fitted for the plan {grid.fitted_for}, not for {plan}: another may suit it better."


def assign_steps(u_BL: Tensor, blank_BL: Tensor, grid: Grid, schedule: Schedule, cells: int = 1) -> Tensor:
    """The step 0..N-1 at which each blank position is revealed, N for the argmax tail, -1 where nothing is blank.

    u is uniform on [0, 1). Sampling starts all masked, so the locked scalar is gamma_1 + (1 - gamma_1) u.
    `cells`: of the plan that u is from (Locked.cells); a grid by rank counts within each.
    """
    if grid.by == "rank":
        return _steps_by_rank(u_BL, blank_BL, grid, cells)
    gamma_edges = schedule.gamma(torch.tensor(grid.times, dtype=torch.float64))  # rises from gamma_1
    first = gamma_edges[0]
    locked_BL = first + (1 - first) * u_BL
    # masked at t iff locked >= gamma_t: revealed in the step after the last edge it still reaches
    step_BL = torch.bucketize(locked_BL, gamma_edges[1:].contiguous(), right=True)
    return torch.where(blank_BL, step_BL, -1)


def _steps_by_rank(u_BL: Tensor, blank_BL: Tensor, grid: Grid, cells: int) -> Tensor:
    """Rank r of the n blanks in cell c of C goes to the step whose share of [0, 1) holds (c + r/n)/C."""
    order_BL = u_BL.masked_fill(~blank_BL, 2.0).argsort(dim=1, stable=True)
    rank_BL = torch.empty_like(order_BL).scatter_(1, order_BL, torch.arange(u_BL.shape[1]).expand_as(order_BL))
    edges = 1 - torch.tensor(grid.times[1:], dtype=torch.float64)
    if cells == 1 and bool(blank_BL.all()):  # as mostly: then the step is one table of the rank
        table_L = (torch.arange(u_BL.shape[1]).double() + 1e-6) / u_BL.shape[1]
        return torch.bucketize(table_L, edges, right=True).clamp(max=grid.steps - 1)[rank_BL]
    cell_BL = (u_BL * cells).long().clamp(max=cells - 1)
    count_BC = blank_BL.new_zeros(len(u_BL), cells, dtype=torch.int64).scatter_add_(1, cell_BL, blank_BL.long())
    before_BC = count_BC.cumsum(1) - count_BC
    # a step's last rank is below edge * n; the tolerance keeps 1 - (1 - k/N) from rounding a rank into the next step
    inside_BL = (rank_BL - before_BC.gather(1, cell_BL)).double() + 1e-6
    share_BL = (cell_BL + inside_BL / count_BC.gather(1, cell_BL).clamp(min=1)) / cells
    step_BL = torch.bucketize(share_BL, edges, right=True).clamp(max=grid.steps - 1)
    return torch.where(blank_BL, step_BL, -1)


def places_without_gaps(blank_BL: Tensor) -> Tensor:
    """The place of each blank if all moved up to the first: its own where no given word stands between."""
    first_B1 = blank_BL.int().argmax(1, keepdim=True)
    return (first_B1 + blank_BL.cumsum(1) - 1).clamp(min=0)
