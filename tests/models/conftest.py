"""A small DiT with every weight random: fresh ones output zeros, which hides mistakes."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.small import shaken

from unmask.models.dit.network import DiT


@pytest.fixture
def random_dit() -> Callable[..., DiT]:
    def make(seed: int = 0, **overrides: Any) -> DiT:
        shape = {"vocab_size": 23, "length": 12, "hidden": 24, "cond": 8, "blocks": 3, "heads": 2} | overrides
        return shaken(DiT(**shape).eval(), seed=seed)

    return make
