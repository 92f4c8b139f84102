"""A running average of the trained weights, kept in float32 beside the model.

It follows whatever tensors the model holds, sharded ones too; weights that are not trained have no average.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unmask.models.family import trainable


class EMA:
    """shadow <- shadow + (1 - d)(weights - shadow), with d = min(decay, (1 + n) / (10 + n)) at update number n."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.shadow: dict[str, Tensor] = {
            name: parameter.detach().to(torch.float32, copy=True) for name, parameter in trainable(model).items()
        }

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Take in the weights after optimiser step number `step` (1 is the first); the random start fades quickly."""
        decay = min(self.decay, (1 + step) / (10 + step))
        weights = [parameter.detach().to(torch.float32) for parameter in trainable(model).values()]
        torch._foreach_lerp_(list(self.shadow.values()), weights, 1 - decay)

    @torch.no_grad()
    def copy_to(self, model: nn.Module) -> None:
        """Give the model the averaged weights."""
        for name, parameter in trainable(model).items():
            parameter.copy_(self.shadow[name])
