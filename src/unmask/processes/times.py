"""Stratified times for training."""

from __future__ import annotations

import torch
from torch import Tensor


def stratified(n: int, generator: torch.Generator, low: float = 0.0, high: float = 1.0) -> Tensor:
    """n times in (low, high], one in each of n equal strata, strata assigned to samples at random (float64).

    t = low + (high - low)(i + 1 - rand)/n: n is the whole batch over all ranks and accumulation steps.
    """
    strata = torch.randperm(n, generator=generator)
    inside = 1 - torch.rand(n, generator=generator, dtype=torch.float64)
    return low + (high - low) * (strata + inside) / n
