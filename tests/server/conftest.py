"""A tiny model with an engine, and a live server on the loopback."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from unmask.checkpoint.io import Checkpoint
from unmask.data.tokenizer import Tokenizer
from unmask.models.dit.network import DiT
from unmask.server.engine import Engine

LENGTH = 48


def tiny(length: int = LENGTH, seed: int = 0) -> Checkpoint:
    """A DiT with random weights over bytes: every text can be spelled, and laws are far from even."""
    tokenizer = Tokenizer.train(["a"], 257)
    torch.manual_seed(seed)
    model = DiT(tokenizer.size + 1, length, hidden=32, cond=8, blocks=2, heads=2, dropout=0.0).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if not bool(parameter.any()):
                parameter.normal_(std=0.4)
    return Checkpoint(model, tokenizer=tokenizer)


@pytest.fixture(scope="session")
def checkpoint() -> Checkpoint:
    return tiny()


@pytest.fixture
def engine(checkpoint: Checkpoint) -> Iterator[Engine]:
    made = Engine(checkpoint, "tiny", torch.device("cpu"))
    made.start()
    yield made
    made.stop(0)
