"""What many tests need of a small network: that none of its weights is what it was born with."""

from typing import TypeVar

import torch

from unmask.core.streams import stream

Module = TypeVar("Module", bound=torch.nn.Module)


def shaken(model: Module, std: float = 0.3, seed: int = 0) -> Module:
    """The same module with random weights throughout; a fresh one outputs zeros, which hides mistakes."""
    generator = stream(seed, "weights")
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator, dtype=torch.float64) * std)
    return model
