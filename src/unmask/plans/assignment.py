"""What a plan is, and what it knows before the first forward.

Shapes: B sequences, L positions, C blocks, R rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from unmask.plans.grids import Grid, assign_steps
from unmask.processes.schedule import Schedule

if TYPE_CHECKING:
    from unmask.plans.confidence import Confidence


@dataclass(frozen=True)
class Assignment:
    """What a plan knows before the first forward.

    step_BL is the step that reveals a position, -1 where nothing is blank. For an adaptive plan it only says how many
    positions of which block a step reveals, `tie_BL` which of equally confident ones goes first (the lower number), and
    `noise`, of one that draws its positions, holds each row's generator. `argmax_step` is MDLM's noise removal: that
    step takes the likeliest token. `u_BL` is what a locked plan went by.
    """

    step_BL: Tensor
    block_BL: Tensor
    steps: int
    argmax_step: int | None = None
    tie_BL: Tensor | None = None
    u_BL: Tensor | None = None
    noise: Sequence[torch.Generator] = ()

    def spans(self, row_R: Tensor, block_R: Tensor) -> Tensor:
        """(row, first, last + 1) of the blanks that a row's block has: (R, 3)."""
        (B, L), shape = self.step_BL.shape, (len(self.step_BL), int(self.block_BL.max()) + 1)
        place_BL, blank_BL = torch.arange(L).expand(B, L), self.step_BL >= 0
        first_BC = torch.full(shape, L).scatter_reduce_(1, self.block_BL, place_BL.where(blank_BL, L), "amin")
        end_BC = torch.zeros(shape, dtype=torch.int64)
        end_BC.scatter_reduce_(1, self.block_BL, (place_BL + 1).where(blank_BL, 0), "amax")
        return torch.stack([row_R, first_BC[row_R, block_R], end_BC[row_R, block_R]], dim=1)


def assignment_of(u_BL: Tensor, blank_BL: Tensor, grid: Grid, schedule: Schedule, cells: int = 1) -> Assignment:
    """Of a plan that goes by u."""
    step_BL = assign_steps(u_BL, blank_BL, grid, schedule, cells)
    tail = grid.steps if grid.argmax_tail else None
    return Assignment(step_BL, torch.zeros_like(step_BL), grid.steps + (tail is not None), tail, u_BL=u_BL)


class Plan(Protocol):
    """Which positions each step reveals. `rule` is what an adaptive plan looks at the model with; None: it does not."""

    @property
    def name(self) -> str: ...
    @property
    def rule(self) -> Confidence | None: ...
    def assign(
        self, blank_BL: Tensor, grid: Grid, schedule: Schedule, generators: list[torch.Generator]
    ) -> Assignment: ...
    def to_json(self) -> dict[str, Any]: ...
