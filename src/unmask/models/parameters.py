"""Which parameters of a network are trained, and copies of a network that share the rest."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

from unmask.models.family import family_of

Network = TypeVar("Network", bound=nn.Module)


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that training changes, averages and saves, by name: those that the family calls trainable."""
    return family_of(model).trainable(model)


def emptied(model: Network) -> Network:
    """A copy of a network whose parameters hold no values (they are on `meta`); tied ones stay tied."""
    empty = {id(p): nn.Parameter(torch.empty_like(p, device="meta"), p.requires_grad) for p in model.parameters()}
    return copy.deepcopy(model, empty)


def filled(empty: Network, weights: Mapping[str, Tensor]) -> Network:
    """A copy of an emptied network that holds these very tensors, by parameter name: nothing is copied."""
    named = {
        id(p): nn.Parameter(weights[name].detach().to(p.dtype), p.requires_grad) for name, p in empty.named_parameters()
    }
    return copy.deepcopy(empty, named)
