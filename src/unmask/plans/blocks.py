"""Blocks from left to right, another plan within each.

Shapes: B sequences, L positions, C blocks, R rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import Any

import torch
from torch import Tensor

from unmask.core.errors import UserError
from unmask.plans.assignment import Assignment
from unmask.plans.confidence import Confidence
from unmask.plans.grids import Grid, make_grid
from unmask.plans.locked import GOLDEN, LeftToRight, Locked
from unmask.processes.schedule import Schedule


@dataclass(frozen=True)
class Blocks:
    """Semi-autoregressive: blocks of `size` positions from left to right, an inner plan within each.

    The steps are dealt out to the blocks by their blanks (`deal_steps`). Golden inside by default:
    confidence, as semi-autoregressive decoding often has it, reveals neighbours together, which depend on each other.
    """

    size: int = 32
    inner: Locked | LeftToRight | Confidence = GOLDEN

    def __post_init__(self) -> None:
        if self.size < 1:
            raise UserError(f"a block needs at least 1 position, not {self.size}")

    @property
    def name(self) -> str:
        return f"blocks({self.size}, {self.inner.name})"

    @property
    def rule(self) -> Confidence | None:
        return self.inner.rule

    def assign(self, blank_BL: Tensor, grid: Grid, schedule: Schedule, generators: list[torch.Generator]) -> Assignment:
        if grid.name not in ("uniform", "rank", "cosine"):
            raise UserError(f"blocks take the grids uniform, rank or cosine within a block, not {grid.name!r}")
        block_L, blanks_BC = self.blanks(blank_BL)
        step_BL, steps = torch.full(blank_BL.shape, -1), 0
        tie_BL = torch.zeros(blank_BL.shape, dtype=torch.float64) if self.rule else None
        u_BL = None if self.rule else torch.zeros(blank_BL.shape, dtype=torch.float64)
        kinds, kind_B = blanks_BC.unique(dim=0, return_inverse=True)  # rows that are dealt alike go together
        for kind, blanks_C in enumerate(kinds.tolist()):
            rows = (kind_B == kind).nonzero()[:, 0]
            own, done = [generators[row] for row in rows.tolist()], 0
            for block, share in enumerate(deal_steps(blanks_C, grid.steps)):
                if not share:
                    continue
                inside_RL = blank_BL[rows] & (block_L == block)
                inner = self.inner.assign(inside_RL, make_grid(grid.name, share), schedule, own)
                step_BL[rows] = torch.where(inside_RL, inner.step_BL + done, step_BL[rows])
                if tie_BL is not None and inner.tie_BL is not None:
                    tie_BL[rows] = torch.where(inside_RL, inner.tie_BL, tie_BL[rows])
                if u_BL is not None and inner.u_BL is not None:
                    u_BL[rows] = torch.where(inside_RL, inner.u_BL, u_BL[rows])
                done += inner.steps
            steps = max(steps, done)
        return Assignment(step_BL, block_L.expand_as(step_BL), steps, tie_BL=tie_BL, u_BL=u_BL)

    def blanks(self, blank_BL: Tensor) -> tuple[Tensor, Tensor]:
        """The block of every position, and how many blanks each block has: (L,) and (B, C)."""
        B, L = blank_BL.shape
        block_L = torch.arange(L) // self.size
        none_BC = torch.zeros(B, int(block_L[-1]) + 1, dtype=torch.int64)
        return block_L, none_BC.index_add_(1, block_L, blank_BL.long())

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "size": self.size, "inner": self.inner.to_json()}


def deal_steps(blanks: Sequence[int], steps: int) -> list[int]:
    """The steps of each block: one where there is a blank, each further one where the most blanks wait for a step.

    So they add up to `steps`, or to the blanks if these are fewer, and a block never has more steps than blanks: with
    as many steps as blanks each is revealed by itself. Fewer steps than blocks to fill cannot be dealt: then one each.
    """
    dealt = [int(count > 0) for count in blanks]
    waiting = [(-float(count), block) for block, count in enumerate(blanks) if count]
    heapify(waiting)
    for _ in range(min(steps, sum(blanks)) - sum(dealt)):
        block = waiting[0][1]
        dealt[block] += 1
        heapreplace(waiting, (-blanks[block] / dealt[block], block))
    return dealt
