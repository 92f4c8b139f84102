"""Small checkpoints of every layout, with every weight random."""

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.small import shaken
from torch import Tensor

from unmask.checkpoint.io import Checkpoint
from unmask.checkpoint.tensors import write_tensors
from unmask.core.files import write_json
from unmask.data.tokenizer import Tokenizer
from unmask.models.dit.network import DiT
from unmask.models.dit.published import key_map
from unmask.processes import Masked
from unmask.processes.schedule import Cosine

SHAPE = {"vocab_size": 23, "length": 12, "hidden": 24, "cond": 8, "blocks": 2, "heads": 2}


def same_weights(one, other):
    one, other = one.state_dict(), other.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def _random_dit(seed: int = 0, **overrides: Any) -> DiT:
    return shaken(DiT(**(SHAPE | overrides)).eval(), 1.0, seed)


@pytest.fixture
def random_dit() -> Callable[..., DiT]:
    return _random_dit


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["one fish two fish red fish blue fish"] * 3, 270)


@pytest.fixture
def checkpoint(tokenizer: Tokenizer) -> Checkpoint:
    return Checkpoint(_random_dit(vocab_size=tokenizer.size + 1), Masked(Cosine(eps=0.01)), tokenizer, {"steps": 7})


def _mdlm_tensors(model: DiT, prefix: str = "backbone.") -> dict[str, Tensor]:
    """Their tensors as the published description has them, written out without our writer."""
    ours = model.state_dict()
    tensors = OrderedDict((prefix + name, ours[our].clone()) for name, our in key_map(model.config.blocks).items())
    head_size = model.config.hidden // model.config.heads
    tensors[prefix + "rotary_emb.inv_freq"] = 1.0 / (10000 ** (torch.arange(0, head_size, 2).float() / head_size))
    return tensors


@pytest.fixture
def mdlm_tensors() -> Callable[..., dict[str, Tensor]]:
    return _mdlm_tensors


@pytest.fixture
def mdlm_folder(tmp_path: Path) -> Callable[..., Path]:
    def make(model: DiT, name: str = "mdlm", **facts: Any) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        write_tensors(folder / "model.safetensors", _mdlm_tensors(model))
        shape = model.config
        said = {
            "model_type": "mdlm", "vocab_size": shape.vocab_size, "model_length": shape.length,
            "hidden_dim": shape.hidden, "cond_dim": shape.cond, "n_blocks": shape.blocks, "n_heads": shape.heads,
            "dropout": shape.dropout, "time_conditioning": False,
        }  # fmt: skip
        write_json(folder / "config.json", said | facts)
        return folder

    return make
