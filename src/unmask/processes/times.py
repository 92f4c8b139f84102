"""Times: stratified t for training, the delta/tau curriculum of the rounds, the grids of sampling.

A grid is a falling list of times 1 = t_0 > t_1 > ... > t_N; step k takes t_{k-1} to t_k.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.core.errors import UserError


def stratified(n: int, generator: torch.Generator, low: float = 0.0, high: float = 1.0) -> Tensor:
    """n times in (low, high], one in each of n equal strata, strata assigned to samples at random (float64).

    t = low + (high - low)(i + 1 - rand)/n: n is the whole batch over all ranks and accumulation steps.
    """
    strata = torch.randperm(n, generator=generator)
    inside = 1 - torch.rand(n, generator=generator, dtype=torch.float64)
    return low + (high - low) * (strata + inside) / n


@dataclass(frozen=True)
class Curriculum:
    """Rounds of distillation: the gap delta doubles every round, the target's temperature tau falls.

    Rounds count from 1. Defaults: delta from 1/512, tau from 0.96 by 0.03 a round, five rounds.
    """

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
            raise UserError(
                f"delta doubles from {self.delta_start:g} and reaches {self.delta(self.rounds):g} "
                f"in round {self.rounds}, but must stay below 1: take at most {most} rounds or a smaller first delta"
            )
        if self.tau(self.rounds) <= 0 or self.tau_start <= 0:
            raise UserError(
                f"tau falls from {self.tau_start:g} by {self.tau_drop:g} a round to {self.tau(self.rounds):g} in round "
                f"{self.rounds}, but must stay above 0: take fewer rounds or a smaller drop"
            )

    def delta(self, round: int) -> float:
        """delta_r = delta_1 2^(r-1)."""
        return self.delta_start * 2 ** (round - 1)

    def tau(self, round: int) -> float:
        """tau_r = tau_1 - drop (r-1)."""
        return self.tau_start - self.tau_drop * (round - 1)

    def tau_product(self, round: int) -> float:
        """The sharpening a student has gone through by the end of a round."""
        return math.prod(self.tau(r) for r in range(1, round + 1))


MDLM_EPS = 1e-5  # the published sampler's last time; what is still masked there is filled by argmax


def _check_steps(steps: int) -> None:
    if steps < 1:
        raise UserError(f"steps must be at least 1, not {steps}")


def uniform_grid(steps: int) -> Tensor:
    """t_k = 1 - k/N."""
    _check_steps(steps)
    return 1 - torch.arange(steps + 1, dtype=torch.float64) / steps


def cosine_grid(steps: int) -> Tensor:
    """t_k = cos(pi k / 2N): few tokens a step at first, many at the end."""
    _check_steps(steps)
    times = torch.cos(math.pi / 2 * torch.arange(steps + 1, dtype=torch.float64) / steps)
    times[-1] = 0
    return times


def mdlm_grid(steps: int) -> Tensor:
    """t_k = 1 - k(1 - 1e-5)/N, the published grid. It ends at 1e-5, not 0."""
    _check_steps(steps)
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
