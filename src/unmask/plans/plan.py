"""Plans: which positions each step reveals.

*Locked* plans are known before the first forward, so a step runs the vocabulary head and the draw on its own positions
only. *Adaptive* plans know only how many positions a step reveals, and look at the law at every candidate to choose.

Shapes: B sequences, L positions, M candidates, C blocks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor

from unmask.core.errors import UserError, named, unknown
from unmask.plans import laws
from unmask.plans.grids import STEPS, Grid, as_if_together, assign_steps, make_grid
from unmask.processes.schedule import Schedule

# Confidences this near are equal. Where nothing is visible yet those of all positions of a DiT are; what tells them
# apart is the rounding of float32 (2e-7), which changes with the size of the batch: it must not choose.
TIE = 1e-5


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


def _assign(u_BL: Tensor, blank_BL: Tensor, grid: Grid, schedule: Schedule, cells: int = 1) -> Assignment:
    step_BL = assign_steps(u_BL, blank_BL, grid, schedule, cells)
    tail = grid.steps if grid.argmax_tail else None
    return Assignment(step_BL, torch.zeros_like(step_BL), grid.steps + (tail is not None), tail, u_BL=u_BL)


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
        return u_BL.gather(1, as_if_together(blank_BL)) if self.for_steps else u_BL

    def assign(self, blank_BL: Tensor, grid: Grid, schedule: Schedule, generators: list[torch.Generator]) -> Assignment:
        """The steps of B sequences, one generator each."""
        return _assign(self.u(blank_BL, grid.steps, generators), blank_BL, grid, schedule, self.cells(grid.steps))

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name}


def _turning(name: str, law: laws.Turning) -> Locked:
    return Locked(name, law, for_steps=True, distance=law.distance)


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
        return _assign(self.u(blank_BL, grid.steps, generators), blank_BL, grid, schedule)

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name}


@dataclass(frozen=True)
class Confidence:
    """The most confident positions first: highest top probability, or lowest entropy.

    Each step reveals the grid's count; with a threshold (a probability, or nats of entropy) it reveals every position
    that passes it, and at least one. Positions are chosen before their tokens are drawn, so log q stays exact. Chance
    decides between equally confident ones, as all are to most networks while nothing is visible: the leftmost, say,
    would be neighbours, the worst to reveal together.
    """

    score: Literal["probability", "entropy"] = "probability"
    threshold: float | None = None
    whole_law: ClassVar[bool] = False  # whether it looks at the network's own law: no temperature, the mask counted

    def __post_init__(self) -> None:
        if self.score not in ("probability", "entropy"):
            raise unknown("confidence score", self.score, ("probability", "entropy"))
        is_probability = self.score == "probability"
        if self.threshold is not None and not 0 < self.threshold <= (1 if is_probability else sys.float_info.max):
            what = "a probability above 0" if is_probability else "a finite entropy in nats above 0"
            raise UserError(f"a threshold on {self.score} must be {what}, not {self.threshold}")

    @property
    def name(self) -> str:
        return "confidence" if self.score == "probability" else "entropy"

    @property
    def rule(self) -> Confidence:
        return self

    def assign(self, blank_BL: Tensor, grid: Grid, schedule: Schedule, generators: list[torch.Generator]) -> Assignment:
        """Counts and ties: counts of the grid on evenly spread u; with a threshold up to as many steps as blanks."""
        if self.threshold is not None:
            grid = make_grid("rank", max(1, int(blank_BL.sum(1).max())))
        counts = LeftToRight().assign(blank_BL, replace(grid, argmax_tail=False), schedule, generators)
        return replace(counts, tie_BL=IID.u(blank_BL, grid.steps, generators))

    def confidence(self, log_p_MV: Tensor) -> Tensor:
        """One number a candidate, higher is more confident."""
        if self.score == "probability":
            return log_p_MV.amax(-1).exp()
        return torch.special.entr(log_p_MV.exp()).sum(-1).neg()

    def passes(self, confidence: Tensor) -> Tensor:
        """Which candidates pass the threshold."""
        assert self.threshold is not None
        return confidence >= (self.threshold if self.score == "probability" else -self.threshold)

    def limits(self, confidence_M: Tensor, row_M: Tensor, quota_B: Tensor) -> tuple[Tensor, Tensor | None]:
        """How many candidates each row reveals, the most confident, and which ones it reveals in any case."""
        return quota_B, None if self.threshold is None else self.passes(confidence_M)

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, **vars(self), "ties": "chance"}


@dataclass(frozen=True)
class EntropyBounded(Confidence):
    """Each step reveals as many of the lowest entropies as sum up to the bound, the largest of them left out.

    The EB-sampler (arXiv 2505.24857): that sum bounds what drawing the set's tokens independently costs, in nats. One
    position always fits. The threshold is the bound.
    """

    score: Literal["probability", "entropy"] = "entropy"
    threshold: float | None = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threshold is None or self.score != "entropy":
            raise UserError("the plan entropy_bounded needs a threshold: a bound in nats on summed entropy")

    @property
    def name(self) -> str:
        return "entropy_bounded"

    def limits(self, confidence_M: Tensor, row_M: Tensor, quota_B: Tensor) -> tuple[Tensor, Tensor | None]:
        """The entropies of a row in rising order: each fits if those before it sum up to no more than the bound."""
        counts_B = torch.bincount(row_M, minlength=len(quota_B))
        place_M = torch.arange(len(row_M)) - (counts_B.cumsum(0) - counts_B)[row_M]
        entropy_BN = torch.full((len(quota_B), int(counts_B.max())), torch.inf, dtype=torch.float64)
        entropy_BN[row_M, place_M] = -confidence_M.double()
        rising_BN = entropy_BN.sort(dim=1).values
        before_BN = rising_BN.cumsum(1).roll(1, dims=1)
        before_BN[:, 0] = 0
        assert self.threshold is not None
        return ((before_BN <= self.threshold) & rising_BN.isfinite()).sum(1), None


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


IID = Locked("iid", laws.iid)
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
    _turning("comb", laws.Comb()),
    _turning("rotation", laws.Rotation()),
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
    name, sign, said = plan.partition(":")
    found = named("plan", name, PLANS)
    if not sign:
        return found
    if isinstance(found, Locked) and isinstance(found.law, laws.Turning):
        return _turning(plan, found.law.having(said))
    if not hasattr(found, "having"):
        raise UserError(f"the plan {name} has no settings: leave out :{said}")
    return found.having(said)


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
