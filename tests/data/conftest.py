"""Small corpora and shard sets for the tests of data/."""

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.conftest import write_shards

from unmask.data.shards import ShardSet
from unmask.data.tokenizer import Tokenizer

WORDS = ["the", "a", "of", "ship", "sea", "whale", "said", "Ahab,", "I'll", "'tis", "naïve", "1851", "(", "", "\tx\n"]


def _prose(seed: int, words: int) -> str:
    draw = random.Random(seed)
    return " ".join(draw.choice(WORDS) for _ in range(words)).strip("\n") + "."


@pytest.fixture(scope="session")
def prose() -> Callable[[int, int], str]:
    """prose(seed, words): text with contractions, digits, punctuation, odd white space, letters beyond ASCII."""
    return _prose


@pytest.fixture(scope="session")
def small() -> Tokenizer:
    """A tokenizer of 300 tokens."""
    return Tokenizer.train([_prose(seed, 400) for seed in range(4)], 300)


@pytest.fixture
def shard_set(tmp_path: Path, small: Tokenizer) -> Callable[..., ShardSet]:
    """Writes a prepared folder of one split by hand."""

    def write(name: str, shards: list[np.ndarray], split: str = "train", tokenizer: Tokenizer = small) -> ShardSet:
        return ShardSet.open(write_shards(tmp_path / name, {split: shards}, tokenizer))

    return write
