"""Schedules: gamma(t), the probability that a token is still visible at time t, with its derivative and inverse.

t = 0 is clean, t = 1 is all masked (up to eps).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from unmask.core.errors import UserError, named


class Schedule(Protocol):
    """gamma falls from 1 at t = 0 to eps at t = 1."""

    name: ClassVar[str]

    @property
    def eps(self) -> float: ...
    def gamma(self, t: Tensor) -> Tensor: ...
    def derivative(self, t: Tensor) -> Tensor: ...
    def inverse(self, gamma: Tensor) -> Tensor: ...
    def elbo_weight(self, t: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class _WithEps:
    """eps is the share still visible at t = 1."""

    eps: float = 1e-3

    def __post_init__(self) -> None:
        if not 0 <= self.eps < 1:
            raise UserError(f"a schedule's eps is the share still visible at t = 1: 0 <= eps < 1, not {self.eps}")


@dataclass(frozen=True)
class LogLinear(_WithEps):
    """gamma_t = 1 - (1 - eps) t, the schedule of MDLM; the ELBO weight is exactly 1/t."""

    name: ClassVar[str] = "log_linear"

    def gamma(self, t: Tensor) -> Tensor:
        return 1 - (1 - self.eps) * t

    def derivative(self, t: Tensor) -> Tensor:
        return torch.full_like(t, -(1 - self.eps))

    def inverse(self, gamma: Tensor) -> Tensor:
        return (1 - gamma) / (1 - self.eps)

    def elbo_weight(self, t: Tensor) -> Tensor:
        """-gamma'(t) / (1 - gamma(t)); eps cancels."""
        return 1 / t


@dataclass(frozen=True)
class Cosine(_WithEps):
    """gamma_t = 1 - (1 - eps) sin(pi t / 2): the masked share of MaskGIT's cosine rule, seen backwards in time."""

    name: ClassVar[str] = "cosine"

    def gamma(self, t: Tensor) -> Tensor:
        return 1 - (1 - self.eps) * torch.sin(math.pi / 2 * t)

    def derivative(self, t: Tensor) -> Tensor:
        return -(1 - self.eps) * math.pi / 2 * torch.cos(math.pi / 2 * t)

    def inverse(self, gamma: Tensor) -> Tensor:
        return torch.asin(((1 - gamma) / (1 - self.eps)).clamp(0, 1)) * (2 / math.pi)

    def elbo_weight(self, t: Tensor) -> Tensor:
        """-gamma'(t) / (1 - gamma(t)); eps cancels."""
        return math.pi / 2 / torch.tan(math.pi / 2 * t)


SCHEDULES: dict[str, type[LogLinear] | type[Cosine]] = {"log_linear": LogLinear, "cosine": Cosine}


def schedule_named(name: str, eps: float = 1e-3) -> LogLinear | Cosine:
    """A schedule by its name."""
    return named("schedule", name, SCHEDULES)(eps)


def stratified(n: int, generator: torch.Generator, low: float = 0.0, high: float = 1.0) -> Tensor:
    """n times in (low, high], one in each of n equal strata, strata assigned to samples at random (float64).

    t = low + (high - low)(i + 1 - rand)/n: n is the whole batch over all ranks and accumulation steps.
    """
    strata = torch.randperm(n, generator=generator)
    inside = 1 - torch.rand(n, generator=generator, dtype=torch.float64)
    return low + (high - low) * (strata + inside) / n
