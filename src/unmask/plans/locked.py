"""Locked plans: who is revealed when is known before the first forward.

So a step runs the vocabulary head and the draw on its own positions only.

Shapes: B sequences, L positions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from unmask.core.errors import UserError
from unmask.plans import laws
from unmask.plans.assignment import Assignment, assignment_of
from unmask.plans.grids import Grid, places_without_gaps
from unmask.processes.schedule import Schedule

Law = Callable[[int, int, torch.Generator, int | None], Tensor]  # (B, L, generator, steps) -> u_BL


@dataclass(frozen=True)
class Locked:
    """A plan that is one law of u: who is revealed when is known before the first step.

    Args:
        name: what users call it
        law: draws u of B sequences of L positions, float64 in [0, 1); each u_i by itself uniform
        for_steps: the law is made for one number of steps N, and counts blanks, wherever given words stand
        classes: with N, u falls into N equal cells, each of which holds a class of positions
        distance: a promise: the least distance between two positions with u in one interval [k/N, (k+1)/N), of N
    """

    name: str
    law: Law
    for_steps: bool = False
    classes: bool = False
    distance: Callable[[int], int] = lambda steps: 1
    rule: ClassVar[None] = None

    def __repr__(self) -> str:
        return f"Locked({self.name})"

    def cells(self, steps: int) -> int:
        """How many equal cells of [0, 1) hold a class of positions each: a cut by rank has to keep to them.

        Classes differ in size by one unless N divides the length: cut by counts alone, a step would end within a class,
        and hold neighbours of two.
        """
        return steps if self.classes else 1

    def draw(self, B: int, L: int, generator: torch.Generator, steps: int | None = None) -> Tensor:
        """u of B sequences of L positions: (B, L) float64 in [0, 1), on the CPU."""
        if self.for_steps and steps is None:
            raise UserError(f"the plan {self.name!r} is made for one number of steps: give steps")
        return self.law(B, L, generator, steps).clamp_(max=1 - 2.0**-53)  # a sum such as (rank + rand)/L may be 1

    def u(self, blank_BL: Tensor, steps: int, generators: list[torch.Generator]) -> Tensor:
        """u of B sequences, one generator each."""
        L = blank_BL.shape[1]
        u_BL = torch.cat([self.draw(1, L, g, steps) for g in generators])
        return u_BL.gather(1, places_without_gaps(blank_BL)) if self.for_steps else u_BL

    def assign(self, blank_BL: Tensor, grid: Grid, schedule: Schedule, generators: list[torch.Generator]) -> Assignment:
        """The steps of B sequences, one generator each."""
        return assignment_of(self.u(blank_BL, grid.steps, generators), blank_BL, grid, schedule, self.cells(grid.steps))

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name}


def turning(name: str, law: laws.Turning) -> Locked:
    return Locked(name, law, for_steps=True, distance=law.distance)


IID = Locked("iid", laws.iid)
GOLDEN = Locked("golden", laws.golden, distance=laws.golden_distance)


@dataclass(frozen=True)
class LeftToRight:
    """Reading order. Known beforehand, so it is as cheap as a locked plan."""

    name: ClassVar[str] = "left_to_right"
    rule: ClassVar[None] = None

    def u(self, blank_BL: Tensor, steps: int, generators: list[torch.Generator]) -> Tensor:
        """Rises evenly over the blanks."""
        rank_BL = (blank_BL.cumsum(1) - 1).clamp(min=0)
        # the tolerance keeps a rank that meets an edge from rounding into the step before it
        return (rank_BL.double() + 1e-6) / blank_BL.sum(1, keepdim=True).clamp(min=1)

    def assign(self, blank_BL: Tensor, grid: Grid, schedule: Schedule, generators: list[torch.Generator]) -> Assignment:
        return assignment_of(self.u(blank_BL, grid.steps, generators), blank_BL, grid, schedule)

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name}
