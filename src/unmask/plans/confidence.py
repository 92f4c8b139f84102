"""Adaptive plans: they know how many positions a step reveals, and look at the law at every candidate to choose.

Shapes: B sequences, L positions, M candidates, V states.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from unmask.core.errors import UserError, check_name
from unmask.plans.assignment import Assignment
from unmask.plans.grids import Grid, make_grid
from unmask.plans.locked import IID, LeftToRight
from unmask.processes.schedule import Schedule

# Confidences this near are equal. Where nothing is visible yet those of all positions of a DiT are; what tells them
# apart is the rounding of float32 (2e-7), which changes with the size of the batch: it must not choose.
TIE = 1e-5


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
        check_name("confidence score", self.score, ("probability", "entropy"))
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
