"""A tiny corpus and a tiny model to train on it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unmask.models.dit.network import DiT
from unmask.training.trainer import Trainer

SIZE, LENGTH = 6, 12  # tokens of the tokenizer, positions


@pytest.fixture(scope="session")
def corpus(write_corpus: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokens = np.cumsum(np.random.default_rng(0).integers(0, 3, 4000)) % (SIZE - 1)
    return write_corpus(tmp_path_factory.mktemp("text") / "corpus", tokens[:3000], tokens[3000:], SIZE)


@pytest.fixture
def model() -> DiT:
    torch.manual_seed(0)
    return DiT(SIZE + 1, LENGTH, hidden=16, cond=8, blocks=2, heads=2, dropout=0.1)


@pytest.fixture
def trainer(tmp_path: Path) -> Callable[..., Trainer]:
    """A trainer of 8 steps that logs every step, evaluates every 4, saves every 2."""
    usual = {"steps": 8, "batch": 8, "lr": 1e-2, "warmup": 2, "eval_every": 4, "eval_batches": 1, "save_every": 2,
             "log_every": 1, "tensorboard": False, "progress": False, "device": "cpu",
             "out": tmp_path / "run"}  # fmt: skip

    def make(**changes: Any) -> Trainer:
        return Trainer(**{**usual, **changes})

    return make
