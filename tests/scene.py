"""A judge with hand-made logits, letters for tokens, tiny networks to evaluate, and a cache folder of its own for every
test."""

import json
import time
from collections.abc import Callable

import pytest
import tokenizers
import torch
from torch import Tensor

from unmask.checkpoint.io import Checkpoint
from unmask.core.streams import seed_of, stream
from unmask.data.tokenizer import EOS, Tokenizer
from unmask.metrics.judges import Judge, vocabulary_hash
from unmask.models.dit.network import DiT

SIZE, LENGTH = 20, 32  # tokens of the scene's models, and of their texts


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "cache"))


def _letters(size: int) -> Tokenizer:
    """Tokens a, b, c, ... and the end of a document; text is letters with spaces between."""
    words = {**{chr(ord("a") + i): i for i in range(size - 1)}, EOS: size - 1}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, EOS))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return Tokenizer(inner.to_str(), f"letters-{size}")


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
        name="hand-made", id=json.dumps([tokenizer.hash, seed, bos]), kind="test", context=context,
        eos_id=tokenizer.eos_id if eos else None, bos_id=tokenizer.size if bos else None,
        vocabulary=vocabulary_hash(tokenizer), states=tokenizer.size + bos, device=torch.device("cpu"),
        dtype="float64", encode=tokenizer.encode_batch, logits=made.logits, features=made.logits,
    )  # fmt: skip
    return judge, made


@pytest.fixture(scope="session")
def hand_made():
    return _judge


def _network(
    tokenizer, seed: int, *, causal: bool = False, sharper: float = 1.0, length: int = LENGTH, **facts
) -> Checkpoint:
    """A tiny network with random weights; its logits are divided by `sharper`."""
    torch.manual_seed(seed_of("network", seed) % 2**31)
    model = DiT(SIZE + 1, length, hidden=16, cond=8, blocks=2, heads=2, dropout=0.0, causal=causal).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if not bool(parameter.any()):
                parameter.normal_(std=0.3)
        model.head.linear.weight *= 1.3 / sharper
        model.head.linear.bias *= 1.3 / sharper
    return Checkpoint(model, tokenizer=tokenizer, provenance=facts)


@pytest.fixture(scope="session")
def network() -> Callable[..., Checkpoint]:
    return _network


@pytest.fixture
def forbid(monkeypatch):
    """Makes it a failure that a study draws or bounds anything, or only what is named."""

    def called(*_: object, **__: object) -> None:
        raise AssertionError("this work was to be left out")

    def forbidden(*names: str) -> None:
        for name in names or ("sample", "sample_causal", "nelbo", "elbo"):
            monkeypatch.setattr(f"unmask.studies.cells.{name}", called)

    return forbidden


@pytest.fixture
def slowed(monkeypatch):
    """Makes a function of a module so slow that whoever else calls it comes while it works; returns its calls."""

    def slow(module, name: str) -> list[tuple]:
        began, work = [], getattr(module, name)

        def slowly(*given):
            began.append(given)
            time.sleep(0.3)
            work(*given)

        monkeypatch.setattr(module, name, slowly)
        return began

    return slow


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """(models, held-out text, tokenizer): a teacher, the same with its logits divided by 0.8, and a causal model."""
    tokenizer = _letters(SIZE)
    ids = torch.randint(SIZE - 1, (96 * LENGTH,), generator=stream(0, "text")).tolist()
    data = tmp_path_factory.mktemp("scene") / "text.txt"
    data.write_text(" ".join(chr(ord("a") + i) for i in ids))
    models = {
        "teacher": _network(tokenizer, 1),
        "student": _network(tokenizer, 1, sharper=0.8),
        "ar": _network(tokenizer, 2, causal=True),
    }
    return models, data, tokenizer
