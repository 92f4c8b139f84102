"""Metrics by name: what a function of texts may return and ask for, and what happens where it cannot be had."""

import pytest
import torch

from unmask.core.errors import UserError
from unmask.metrics import built_in, registry  # noqa: F401 (built_in registers)
from unmask.metrics.registry import METRICS, Metric, register_metric
from unmask.metrics.score import Ratio, Score
from unmask.metrics.texts import Texts


@pytest.fixture
def texts(letters):
    return Texts(torch.tensor([[0, 1, 2], [3, 4, -1]]), letters(7))


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    monkeypatch.setattr(registry, "METRICS", dict(METRICS))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda texts: [len(row) for row in texts.rows], {"mine": 2.5}),
        (lambda texts: torch.tensor([1.0, 2.0]), {"mine": 1.5}),
        (lambda texts: Ratio.of([3.0, 1.0], [1.0, 1.0]), {"mine": 2.0}),
        (lambda texts: Score(7.0, 2, 6.0, 8.0, 0.5, "x"), {"mine": 7.0}),
        (lambda texts: {"longest": [3, 3], "shortest": [2, 2]}, {"longest": 3.0, "shortest": 2.0}),
        (lambda texts, seed: [seed, seed + 1], {"mine": 5.5}),
        (lambda texts, judge: [0, 0], None),  # there is none
        (lambda texts, judge=None: [0, 1], {"mine": 0.5}),
    ],
)
def test_what_a_metric_returns_and_asks_for(texts, function, expected):
    register_metric("mine", function, unit="words")
    found = registry.METRICS["mine"](texts, judge=None, real=None, seed=5)
    assert (found and {name: score.value for name, score in found.items()}) == expected
    if expected and "mine" in expected and found["mine"].unit != "x":
        assert found["mine"].unit == "words"
        assert found["mine"].count == 2


def test_mistakes_are_one_line(texts):
    with pytest.raises(UserError, match="asks for 'tokens': beside texts there are judge, real"):
        register_metric("mine", lambda texts, tokens: [0])
    with pytest.raises(UserError, match="a number for each of the 2 texts"):
        Metric("mine", lambda texts: [1, 2, 3])(texts)
    register_metric("entropy", METRICS["entropy"].function, unit="nats")  # the same again
    with pytest.raises(UserError, match="there is a metric 'entropy' already"):
        register_metric("entropy", lambda texts: [0, 0])


def test_the_code_of_a_metric_is_part_of_what_scores_are_kept_by(tmp_path):
    def load(body):
        path = tmp_path / "plug.py"
        path.write_text(f"def mine(texts):\n    return {body}\n")
        space = {}
        exec(compile(path.read_text(), str(path), "exec"), space)
        return Metric("mine", space["mine"]).source

    assert load("[1, 2]") == load("[1, 2]") != load("[2, 1]")
