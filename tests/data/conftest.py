"""Small corpora and shard sets for the tests of data/."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

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
    """Writes a prepared folder by hand, from arrays of token ids: the format as shards.py tells it."""

    def write(name: str, shards: list[np.ndarray], split: str = "train", tokenizer: Tokenizer = small) -> ShardSet:
        folder = tmp_path / name
        folder.mkdir()
        entries = []
        for number, ids in enumerate(shards):
            raw = ids.astype("<u2").tobytes()
            (folder / f"{split}-{number}.bin").write_bytes(raw)
            digest = hashlib.sha256(raw).hexdigest()
            entries.append({"file": f"{split}-{number}.bin", "tokens": len(ids), "sha256": digest})
        (folder / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
        about = {"name": tokenizer.name, "size": tokenizer.size, "hash": tokenizer.hash, "file": "tokenizer.json"}
        splits = {split: {"tokens": sum(map(len, shards)), "documents": 0, "text_bytes": 0, "shards": entries}}
        index = {"version": 1, "tokenizer": about, "dtype": "uint16", "splits": splits}
        (folder / "index.json").write_text(json.dumps(index), encoding="utf-8")
        return ShardSet.open(folder)

    return write
