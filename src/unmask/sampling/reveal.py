"""Reveal plans: which positions each step reveals.

*Locked* plans are known before the first forward (scalar trajectory locking), so a step runs the vocabulary head and
the draw on its own positions only. *Adaptive* plans know only how many positions a step reveals, and look at the
model's law at every candidate to choose them. Refuses to know how tokens are drawn.

Shapes: B sequences, L positions, M candidates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from unmask.base.errors import UserError, unknown
from unmask.process.locking import PLANS, draw_u
from unmask.process.schedule import Schedule
from unmask.sampling.grids import Grid, assign_steps, make_grid


@dataclass(frozen=True)
class Assignment:
    """What a plan knows before the first forward.

    step_BL is the step that reveals a position, -1 where nothing is blank. For an adaptive plan it only says how many
    positions of which block a step reveals. `argmax_step` is MDLM's noise removal: that step takes the likeliest token.
    """

    step_BL: Tensor
    block_BL: Tensor
    steps: int
    argmax_step: int | None = None


def _assign(u_BL: Tensor, blank_BL: Tensor, grid: Grid, schedule: Schedule) -> Assignment:
    step_BL = assign_steps(u_BL, blank_BL, grid, schedule)
    tail = grid.steps if grid.argmax_tail else None
    return Assignment(step_BL, torch.zeros_like(step_BL), grid.steps + (tail is not None), tail)


@dataclass(frozen=True)
class Locked:
    """Reveal order from a law of u (process/locking.py)."""

    plan: str = "golden"
    adaptive: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.plan not in PLANS:
            raise unknown("plan", self.plan, PLANS)

    @property
    def name(self) -> str:
        return self.plan

    def u(self, blank_BL: Tensor, steps: int, generators: list[torch.Generator]) -> Tensor:
        """u of B sequences, one generator each; of all plans only `stride` looks at the number of steps."""
        L = blank_BL.shape[1]
        return torch.cat([draw_u((1, L), self.plan, generator=g, steps=steps) for g in generators])

    def assign(self, blank_BL: Tensor, grid: Grid, schedule: Schedule, generators: list[torch.Generator]) -> Assignment:
        """The steps of B sequences, one generator each."""
        return _assign(self.u(blank_BL, grid.steps, generators), blank_BL, grid, schedule)


@dataclass(frozen=True)
class LeftToRight:
    """Reading order. Known beforehand, so it is as cheap as a locked plan."""

    name: ClassVar[str] = "left_to_right"
    adaptive: ClassVar[bool] = False

    def u(self, blank_BL: Tensor, steps: int, generators: list[torch.Generator]) -> Tensor:
        """Rises evenly over the blanks."""
        rank_BL = (blank_BL.cumsum(1) - 1).clamp(min=0)
        # the tolerance keeps a rank that meets an edge from rounding into the step before it
        return (rank_BL.double() + 1e-6) / blank_BL.sum(1, keepdim=True).clamp(min=1)

    def assign(self, blank_BL: Tensor, grid: Grid, schedule: Schedule, generators: list[torch.Generator]) -> Assignment:
        return _assign(self.u(blank_BL, grid.steps, generators), blank_BL, grid, schedule)


@dataclass(frozen=True)
class Confidence:
    """The surest positions first: highest top probability, or lowest entropy.

    Each step reveals the grid's count; with a threshold (a probability, or nats of entropy) it reveals every position
    that passes it, and at least one. Positions are chosen before their tokens are drawn, so log q stays exact.
    """

    score: Literal["probability", "entropy"] = "probability"
    threshold: float | None = None
    adaptive: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.score not in ("probability", "entropy"):
            raise unknown("confidence score", self.score, ("probability", "entropy"))
        if self.threshold is not None and not 0 < self.threshold <= (1 if self.score == "probability" else torch.inf):
            what = "a probability above 0" if self.score == "probability" else "an entropy in nats above 0"
            raise UserError(f"a threshold on {self.score} must be {what}, not {self.threshold}")

    @property
    def name(self) -> str:
        return "confidence" if self.score == "probability" else "entropy"

    def assign(self, blank_BL: Tensor, grid: Grid, schedule: Schedule, generators: list[torch.Generator]) -> Assignment:
        """Counts only: those of the grid on evenly spread u. With a threshold there may be as many steps as blanks."""
        if self.threshold is not None:
            grid = make_grid("rank", max(1, int(blank_BL.sum(1).max())))
        return LeftToRight().assign(blank_BL, replace(grid, argmax_tail=False), schedule, generators)

    def surety(self, log_p_MV: Tensor) -> Tensor:
        """One number a candidate, higher is surer."""
        if self.score == "probability":
            return log_p_MV.amax(-1).exp()
        return torch.special.entr(log_p_MV.exp()).sum(-1).neg()

    def passes(self, surety: Tensor) -> Tensor:
        """Which candidates are sure enough for the threshold."""
        assert self.threshold is not None
        return surety >= (self.threshold if self.score == "probability" else -self.threshold)


@dataclass(frozen=True)
class Blocks:
    """Semi-autoregressive: blocks of `size` positions from left to right, an inner plan within each.

    The steps are dealt out to the blocks evenly, at least one each.
    """

    size: int = 32
    inner: Locked | LeftToRight | Confidence = Confidence()

    def __post_init__(self) -> None:
        if self.size < 1:
            raise UserError(f"a block needs at least 1 position, not {self.size}")

    @property
    def name(self) -> str:
        return f"blocks({self.size}, {self.inner.name})"

    @property
    def adaptive(self) -> bool:
        return self.inner.adaptive

    def assign(self, blank_BL: Tensor, grid: Grid, schedule: Schedule, generators: list[torch.Generator]) -> Assignment:
        L = blank_BL.shape[1]
        if grid.name not in ("uniform", "rank", "cosine"):
            raise UserError(f"blocks take the grids uniform, rank or cosine within a block, not {grid.name!r}")
        block_L = torch.arange(L) // self.size
        count = int(block_L[-1]) + 1
        step_BL, done = torch.full(blank_BL.shape, -1), 0
        for block in range(count):
            share = max(1, grid.steps // count + (block < grid.steps % count))
            inside_BL = blank_BL & (block_L == block)
            inner = self.inner.assign(inside_BL, make_grid(grid.name, share), schedule, generators)
            step_BL = torch.where(inside_BL, inner.step_BL + done, step_BL)
            done += inner.steps
        return Assignment(step_BL, block_L.expand_as(step_BL), done)


RevealPlan = Locked | LeftToRight | Confidence | Blocks

REVEALS: dict[str, RevealPlan] = {
    **{name: Locked(name) for name in PLANS},
    "left_to_right": LeftToRight(),
    "confidence": Confidence("probability"),
    "entropy": Confidence("entropy"),
    "blocks": Blocks(),
}


def make_reveal(reveal: str | RevealPlan) -> RevealPlan:
    """A reveal plan from its name, or itself."""
    if not isinstance(reveal, str):
        return reveal
    if reveal not in REVEALS:
        raise unknown("reveal plan", reveal, REVEALS)
    return REVEALS[reveal]
