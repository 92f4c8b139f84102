"""A judge with hand-made logits, letters for tokens, and a cache folder of its own for every test."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import tokenizers
import torch
from torch import Tensor

from unmask.base.streams import stream
from unmask.data.tokenizer import EOS, Tokenizer
from unmask.evaluation.judges import Judge, vocabulary_hash


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "cache"))


def _letters(size: int) -> Tokenizer:
    """Tokens a, b, c, ... and the end of a document; text is letters with spaces between."""
    words = {**{chr(ord("a") + i): i for i in range(size - 1)}, EOS: size - 1}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, EOS))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return Tokenizer.from_json(inner.to_str(), f"letters-{size}")


@pytest.fixture(scope="session")
def letters() -> Callable[[int], Tokenizer]:
    return _letters


class HandMade:
    """Logits that depend on every token of the window seen so far; no network."""

    def __init__(self, states: int, seed: int = 0) -> None:
        self.table = 2 * torch.randn(97, states, generator=stream(seed, "hand-made"), dtype=torch.float64)
        self.calls = 0

    def after(self, prefix: list[int]) -> Tensor:
        """Log-probabilities of what follows a prefix, by a loop."""
        state = 0
        for token in prefix:
            state = (31 * state + token + 1) % 97
        return self.table[state].log_softmax(-1)

    def logits(self, ids_BT: Tensor) -> Tensor:
        self.calls += 1
        return torch.stack(
            [torch.stack([self.after(row[: t + 1]) for t in range(len(row))]) for row in ids_BT.tolist()]
        )


def _judge(tokenizer: Tokenizer, *, context: int = 64, bos: bool = False, eos: bool = True, seed: int = 0):
    """(judge, its hand-made logits). With `bos`, one state more than the tokenizer has must come first."""
    made = HandMade(tokenizer.size + bos, seed)
    judge = Judge(
        name="hand-made",
        id=json.dumps([tokenizer.hash, seed, bos]),
        kind="test",
        context=context,
        eos_id=tokenizer.eos_id if eos else None,
        bos_id=tokenizer.size if bos else None,
        vocabulary=vocabulary_hash(tokenizer),
        states=tokenizer.size + bos,
        device=torch.device("cpu"),
        dtype="float64",
        encode=tokenizer.encode_batch,
        logits=made.logits,
        features=made.logits,
    )
    return judge, made


@pytest.fixture(scope="session")
def hand_made():
    return _judge
