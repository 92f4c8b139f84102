"""What many tests need: a small network with no weight as it was born, and the arrays of a published reference."""

from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from unmask.core.streams import stream

Module = TypeVar("Module", bound=torch.nn.Module)


def shaken(model: Module, std: float = 0.3, seed: int = 0) -> Module:
    """The same module with random weights throughout; a fresh one outputs zeros, which hides mistakes."""
    generator = stream(seed, "weights")
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator, dtype=torch.float64) * std)
    return model


def reference_of(folder: Path) -> dict[str, Tensor]:
    """What the published code computed (`meta` in the file says how)."""
    with np.load(folder / "reference.npz") as file:
        return {name: torch.from_numpy(file[name]) for name in file if name != "meta"}
