"""MAUVE: the package's number, our curve against it, and what is refused."""

import importlib

import numpy as np
import pytest
import torch

from unmask.core.errors import UserError
from unmask.core.streams import seed_of
from unmask.data.tokenizer import Tokenizer
from unmask.metrics.mauve import _area, judge_features, mauve
from unmask.metrics.texts import Texts

RANDOM = np.random.default_rng(0)


def cloud(n, shift):
    return RANDOM.normal(size=(n, 8)) + shift * np.eye(8)[0]


def test_too_few_texts_are_refused():
    with pytest.raises(UserError, match="at least 2048 texts on each side, not 100 drawn and 3000 real"):
        mauve(cloud(100, 0), cloud(3000, 0))
    with pytest.raises(UserError, match="NaN"):
        mauve(np.full((20, 3), np.nan), cloud(20, 0)[:, :3], least=20)


def test_against_the_package():
    package = pytest.importorskip("mauve", reason="mauve-text is not installed: pip install 'unmask[eval]'")
    real, near, far = cloud(400, 0), cloud(400, 1), cloud(400, 4)  # 0.3 off would look like 0
    scores = [mauve(drawn, real, least=400, clusters=10) for drawn in (cloud(400, 0), near, far)]
    assert scores[0].value > scores[1].value > scores[2].value
    assert scores[0].value > 0.9
    assert scores[2].value < 0.2
    for score in scores:
        assert score.low <= score.value <= score.high
    found = package.compute_mauve(
        p_features=real, q_features=near, num_buckets=10, mauve_scaling_factor=5, seed=seed_of(0, "mauve") % 2**31
    )
    assert scores[1].value == pytest.approx(found.mauve)
    # the interval is of histograms drawn again, whose area is read as the package reads it
    inner = importlib.import_module("mauve.compute_mauve")
    assert _area(inner, found.p_hist, found.q_hist) == pytest.approx(found.mauve)
    assert scores[1].high - scores[1].low > 0.02
    alike = np.array([0.25, 0.75])  # of few texts a resample may be
    assert _area(inner, alike, alike) == 1


def test_features_of_a_judge_are_those_of_its_last_token(letters, hand_made):
    tokenizer: Tokenizer = letters(7)
    judge, made = hand_made(tokenizer, bos=True)
    found = judge_features(judge, Texts(torch.tensor([[0, 1, 2], [3, 4, -1]]), tokenizer))
    assert found.shape == (2, judge.states)
    assert found[1] == pytest.approx(made.logits(torch.tensor([[judge.bos_id, 3, 4]]))[0, -1].numpy())
