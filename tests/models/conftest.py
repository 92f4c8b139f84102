"""A small DiT with every weight random: fresh ones output zeros, which hides mistakes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from unmask.models.dit.network import DiT


@pytest.fixture
def random_dit() -> Callable[..., DiT]:
    def make(seed: int = 0, **overrides: Any) -> DiT:
        shape = {"vocab_size": 23, "length": 12, "hidden": 24, "cond": 8, "blocks": 3, "heads": 2} | overrides
        model = DiT(**shape).eval()
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
        return model

    return make
