"""A small DiT with every weight random and no dropout, a batch, and the two numbers an engine makes of an objective."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from unmask.core.streams import stream
from unmask.models.dit.network import DiT
from unmask.objectives.base import LossOutput

TOKENS, LENGTH, ROWS = 11, 9, 6


@dataclass(frozen=True)
class Rows:
    tokens_BL: Tensor
    start: int
    total: int

    def part(self, first: int, end: int) -> Rows:
        return Rows(self.tokens_BL[first:end], first, self.total)


@pytest.fixture
def text() -> Rows:
    return Rows(torch.randint(TOKENS, (ROWS, LENGTH), generator=stream(0, "tokens")), 0, ROWS)


@pytest.fixture
def random_dit() -> Callable[..., DiT]:
    def make(seed: int, dtype: torch.dtype = torch.float64, size: float = 0.3, **shape: int) -> DiT:
        wanted = {"vocab_size": TOKENS + 1, "length": LENGTH, "hidden": 8, "cond": 4, "blocks": 1, "heads": 2} | shape
        model = DiT(**wanted, dropout=0.0).to(dtype)
        generator = stream(seed, "weights")
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(size * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
        return model

    return make


@dataclass(frozen=True)
class Step:
    """What one optimiser step is made of: the loss, and its gradient by all weights as one vector."""

    loss: Tensor
    gradient: Tensor


@pytest.fixture
def step_of() -> Callable[[nn.Module, LossOutput], Step]:
    def divide(model: nn.Module, output: LossOutput) -> Step:
        """As the engine does it: sum(loss · weight) / sum(weight)."""
        return gradient_of(model, (output.loss_BL * output.weight_BL).sum() / output.weight_BL.sum())

    return divide


def gradient_of(model: nn.Module, loss: Tensor) -> Step:
    parts = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True)
    return Step(loss.detach(), torch.cat([part.flatten() for part in parts]))


@pytest.fixture
def direct() -> Callable[[nn.Module, Tensor], Step]:
    return gradient_of


class Largest(TorchDispatchMode):
    """Notes the largest number of elements of any tensor that is computed."""

    size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.size = max([self.size, *sizes])
        return result


@pytest.fixture
def largest() -> type[Largest]:
    return Largest
