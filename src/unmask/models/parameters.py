"""The tensors of a network by name, and copies of it that hold given ones; tied parameters stay tied."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

Network = TypeVar("Network", bound=nn.Module)


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """All that a checkpoint must hold: every parameter once, tied ones under their first name, and lasting buffers."""
    once = dict(model.named_parameters())
    again = {name for name, _ in model.named_parameters(remove_duplicate=False)} - once.keys()
    return {name: tensor for name, tensor in model.state_dict().items() if name not in again}


def emptied(model: Network) -> Network:
    """A copy of a network whose parameters hold no values (they are on `meta`)."""
    empty = {id(p): nn.Parameter(torch.empty_like(p, device="meta"), p.requires_grad) for p in model.parameters()}
    return copy.deepcopy(model, empty)


def filled(model: Network, tensors: Mapping[str, Tensor]) -> Network:
    """A copy of a network that holds these very tensors, by the names of `tensors_of`: nothing is cast or copied.

    Buffers may be left out.
    """
    named = {id(p): nn.Parameter(tensors[name].detach(), p.requires_grad) for name, p in model.named_parameters()}
    made = copy.deepcopy(model, named)
    buffers = {name: tensor for name, tensor in tensors.items() if name not in dict(model.named_parameters())}
    made.load_state_dict(buffers, strict=False, assign=True)
    return made
