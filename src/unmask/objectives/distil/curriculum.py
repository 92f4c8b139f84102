"""The curriculum of the rounds: the gap delta doubles, the temperature tau of the target falls."""

from __future__ import annotations

import math
from dataclasses import dataclass

from unmask.core.errors import UserError


@dataclass(frozen=True)
class Curriculum:
    """Delta and tau of every round; rounds count from 1."""

    rounds: int = 5
    delta_start: float = 1 / 512
    tau_start: float = 0.96
    tau_drop: float = 0.03

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise UserError(f"a curriculum needs at least 1 round, not {self.rounds}")
        if not 0 < self.delta_start < 1:
            raise UserError(f"delta is a gap in time: 0 < delta < 1, not {self.delta_start}")
        if self.delta(self.rounds) >= 1:
            most = math.ceil(-math.log2(self.delta_start))
            raise UserError(f"delta doubles and reaches {self.delta(self.rounds):g} in round {self.rounds}, but must "
                            f"stay below 1: take at most {most} rounds or a smaller first delta")  # fmt: skip
        if self.tau(self.rounds) <= 0 or self.tau_start <= 0:
            raise UserError(f"tau falls to {self.tau(self.rounds):g} in round {self.rounds}, but must stay above 0: "
                            "take fewer rounds or a smaller drop")  # fmt: skip

    def delta(self, round: int) -> float:
        """delta_r = delta_1 2^(r-1)."""
        return self.delta_start * 2 ** (round - 1)

    def tau(self, round: int) -> float:
        """tau_r = tau_1 - drop (r-1)."""
        return self.tau_start - self.tau_drop * (round - 1)

    def tau_product(self, round: int) -> float:
        """The sharpening a student has gone through by the end of a round."""
        return math.prod(self.tau(r) for r in range(1, round + 1))
