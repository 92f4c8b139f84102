"""The scripts of studies/teacher: what the gate and the race of plans say of made-up likelihoods and a tiny model."""

import json
import sys

import numpy as np
import pytest
import torch
from tests.scene import LENGTH, SIZE

import unmask
from unmask.data.shards import ShardSet
from unmask.metrics.score import Score


def test_the_gate_is_over_all_bytes_and_its_pairs_are_books(script):
    book_T = torch.tensor([3, 3, 5, 5])
    bytes_T = torch.tensor([100, 100, 100, 300])
    teacher_T = torch.tensor([90.0, 110.0, 99.0, 297.0], dtype=torch.float64)  # a book has 1.0 a byte, the other 0.99
    other_T = torch.tensor([104.0, 104.0, 100.0, 300.0], dtype=torch.float64)  # 1.04 and 1.0
    lines = [*script("teacher/gate").told(teacher_T, other_T, bytes_T, book_T, [4.0, 0.5, 3.0])]
    assert lines[0].startswith("2 books, 4 blocks; by book +0.9950")
    assert "pocket 1.0133 nats" in lines[0]
    assert "over all bytes: 0.9933, held; aim 0.98: failed" in lines[1]
    assert "paired by book: -0.0250 ± " in lines[2]
    assert lines[2].endswith("held")
    assert "the least is block 1 with 0.50, failed (4.00 0.50 3.00)" in lines[3]


def test_a_model_that_is_its_own_rival_in_shorter_blocks_pays_for_the_lost_context_alone(
    script, tmp_path, monkeypatch, write_corpus, network, capsys
):
    """The gate on a corpus: the same model in the same blocks is its own equal, to the bit."""
    tokens = np.cumsum(np.random.default_rng(0).integers(0, 3, 4000)) % (SIZE - 1)
    tokens[500::600] = SIZE - 1  # ends of documents
    write_corpus(tmp_path / "corpus", tokens[:3000], tokens, SIZE)
    unmask.save(network(ShardSet.open(tmp_path / "corpus").tokenizer(), 0), tmp_path / "model")
    how = ["--prose", "corpus", "--other", "model", "--views", "2", "--out", "gate.json"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["gate", "model", *how])
    script("teacher/gate").main()
    said = capsys.readouterr().out
    assert f"{4000 // LENGTH} blocks" in said
    assert "paired by book: +0.0000 ± 0.0000, failed" in said
    found = json.loads((tmp_path / "gate.json").read_text())
    assert found["nats"]["teacher"] == found["nats"]["other"]
    assert len(found["bytes"]) == len(found["book"]) == 4000 // LENGTH
    assert len(found["attention"]) == 2


def test_shorter_blocks_are_the_same_tokens_of_the_same_books(script, letters):
    gate = script("teacher/gate")
    texts = gate.Texts(torch.arange(16).view(2, 8) % 5, letters(SIZE), document_T=torch.tensor([4, 7]))
    short = gate.shorter(texts, 4)
    assert torch.equal(short.tokens_TL.flatten(), texts.tokens_TL.flatten())
    assert short.document_T.tolist() == [4, 4, 7, 7]
    with pytest.raises(SystemExit, match="no whole number"):
        gate.shorter(texts, 3)


def test_the_best_plan_is_put_beside_one_token_a_step(script):
    def score(value: float) -> Score:
        return Score(value, 9, value - 0.01, value + 0.01, 0.005, "nats/token")

    steps = script("teacher/steps")
    found = {("comb", 8): score(0.015), ("golden", 8): score(0.03), ("iid", 8): score(-1.0), ("comb", 16): score(0.001),
             ("golden", 16): score(-0.002), ("comb", 32): score(-0.02)}  # fmt: skip
    lines = [*steps.told(found)]
    assert lines[2] == "| `comb` | +0.0150 ± 0.0100 | +0.0010 ± 0.0100 | -0.0200 ± 0.0100 |"
    assert lines[-2].endswith("16 of golden, held")
    assert lines[-1] == "- in 8 within 0.02 nats a token: +0.0150 ± 0.0100 (comb), held"
    assert [*steps.told({("comb", 4): score(0.1)})][-1].endswith("none of those that were run, failed")
