"""Pool statistics against loops over Python sets, information against a chain whose law is known, and the parrot."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch

from unmask.core.streams import stream
from unmask.data import corpus
from unmask.data.tokenizer import Tokenizer
from unmask.metrics import built_in  # noqa: F401 (registers)
from unmask.metrics import diversity as score
from unmask.metrics.gen_ppl import unigram_entropy
from unmask.metrics.registry import METRICS
from unmask.metrics.texts import Texts
from unmask.metrics.unmodelled import parrot

RANDOM = np.random.default_rng(0)
ROWS = [RANDOM.integers(0, 4, size=size).tolist() for size in (9, 12, 7, 12, 3, 10)]
REAL = [RANDOM.integers(0, 5, size=11).tolist() for _ in range(4)]


def grams(row, n):
    return [tuple(row[i : i + n]) for i in range(len(row) - n + 1)]


def pool(rows, n):
    return [gram for row in rows for gram in grams(row, n)]


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_shares_of_ngrams(n):
    everything = pool(ROWS, n)
    assert score.distinct(ROWS, n).value == pytest.approx(len(set(everything)) / len(everything))
    before = sum(len(grams(row, n)) - len(set(grams(row, n))) for row in ROWS)
    assert score.repeated(ROWS, n).value == pytest.approx(before / len(everything))
    held = pool(REAL, n)
    assert score.coverage(ROWS, REAL, [n])[n].value == pytest.approx(
        sum(gram in set(everything) for gram in held) / len(held)
    )


def test_influences_are_those_of_leaving_each_text_out():
    """The bootstrap of a pool statistic has the jackknife's standard error."""
    measures = [
        (score.distinct(ROWS, 2), lambda rows: score.distinct(rows, 2).value),
        (score.coverage(ROWS, REAL, [2])[2], lambda rows: score.coverage(rows, REAL, [2])[2].value),
    ]
    for ratio, again in measures:
        without = np.array([again(ROWS[:i] + ROWS[i + 1 :]) for i in range(len(ROWS))])
        influence = (len(ROWS) - 1) * (without.mean() - without)
        assert ratio.top_n.numpy() == pytest.approx(ratio.value + influence, abs=1e-12)


def bleu(row, others, n=4):
    """BLEU as its paper has it, with 0.1 for a count of 0."""
    logs = []
    for order in range(1, n + 1):
        have, most = Counter(grams(row, order)), Counter()
        for other in others:
            most |= Counter(grams(other, order))  # the highest count in any reference
        matched = sum(min(count, most[gram]) for gram, count in have.items())
        logs.append(math.log((matched or 0.1) / max(1, len(grams(row, order)))))
    closest = min((abs(len(other) - len(row)), len(other)) for other in others)[1]
    return math.exp(sum(logs) / n + min(0, 1 - closest / len(row)))


def test_self_bleu():
    by_hand = [bleu(row, ROWS[:i] + ROWS[i + 1 :]) for i, row in enumerate(ROWS)]
    assert score.self_bleu(ROWS).top_n.numpy() == pytest.approx(by_hand, rel=1e-12)
    assert score.self_bleu([ROWS[0], ROWS[0], ROWS[1]]).top_n[:2].tolist() == [1, 1]


def chain(n, length, stay, seed):
    """Two symbols: the next is the same with probability `stay`."""
    random = stream(seed, "chain")
    flips = torch.rand(n, length, generator=random) > stay
    flips[:, 0] = torch.rand(n, generator=random) > 0.5
    return (flips.cumsum(1) % 2).tolist()


def test_information_of_a_chain_is_its_closed_form():
    """At lag k a symbol is the same with probability (1 + (2 stay - 1)^k) / 2."""
    rows, symbols = chain(400, 100, 0.9, 0), torch.arange(2)
    for lag in (1, 2, 5, 30):
        same = (1 + 0.8**lag) / 2
        exact = math.log(2) + sum(p * math.log(p) for p in (same, 1 - same))
        found = score.Score.of(score.information(rows, lag, symbols), "nats", {})
        assert abs(found.value - exact) < 4 * found.stderr + 1e-4
    shuffled = RANDOM.permuted(np.array(rows).reshape(-1)).reshape(400, 100).tolist()
    assert abs(score.information(shuffled, 1, symbols).value) < 1e-4


def test_the_bootstrap_of_information_is_that_of_counting_anew():
    rows, symbols = chain(60, 30, 0.8, 1), torch.arange(2)
    found = score.Score.of(score.information(rows, 1, symbols), "nats", {})
    anew = []
    for _ in range(300):
        chosen = RANDOM.integers(0, 60, size=60)
        anew.append(score.information([rows[i] for i in chosen], 1, symbols).value)
    assert found.stderr == pytest.approx(np.std(anew), rel=0.15)


def test_counting_few_pairs_is_not_taken_for_information():
    """64 independent symbols in 1,000 pairs: plain counting would say 2 nats."""
    rows = RANDOM.integers(0, 64, size=(10, 101)).tolist()
    joint = Counter((a, b) for row in rows for a, b in itertools.pairwise(row))
    first, second = (Counter(pair[side] for pair in joint.elements()) for side in (0, 1))
    counted = sum(c / 1000 * math.log(c * 1000 / (first[a] * second[b])) for (a, b), c in joint.items())
    assert counted > 1
    assert abs(score.information(rows, 1, torch.arange(64)).value) < 0.05


@pytest.fixture(scope="module")
def real():
    gpt2 = Tokenizer.load("gpt2")
    pieces = itertools.islice(corpus.find("sample")[0].pieces(corpus.Reading()), 2)
    tokens = torch.tensor([token for piece in pieces for token in gpt2.encode(piece.text)])
    return Texts(tokens[: 512 * 128].view(512, 128), gpt2)


def scores(texts, real):
    """All that the registry has on diversity."""
    names = ("distinct", "coverage", "repeated", "self_bleu", "information", "information_gap")
    return {name: one for metric in names for name, one in METRICS[metric](texts, real=real, seed=0).items()}


def test_a_parrot_passes_entropy_and_is_caught_by_the_pool(real):
    """Sixteen real passages, printed again and again."""
    half = len(real) // 2
    honest = Texts(real.tokens_TL[0::2], real.tokenizer)
    unseen = Texts(real.tokens_TL[1::2], real.tokenizer)
    birds = parrot(honest, half)
    ours, theirs = unigram_entropy(honest.rows).mean(), unigram_entropy(birds.rows).mean()
    assert abs(float(ours - theirs)) < 0.1
    good, bad = (scores(texts, unseen) for texts in (honest, birds))
    assert score.suspicions(good, good) == {}
    reasons = score.suspicions(bad, good)
    assert list(reasons) == ["distinct_4", "coverage_4", "self_bleu"]
    assert "distinct" in reasons["distinct_4"]
    assert bad["self_bleu"].value == pytest.approx(1)
    assert bad["repeated_4"].value == pytest.approx(good["repeated_4"].value, abs=0.02)  # each text by itself is fine
    assert bad["information_gap_1"].value > good["information_gap_1"].value


def test_word_salad_of_real_tokens_has_no_information(real):
    shuffled = real.tokens_TL.flatten()[torch.randperm(real.tokens_TL.numel(), generator=stream(0, "salad"))]
    salad = Texts(shuffled.view_as(real.tokens_TL), real.tokenizer)
    found = scores(salad, real)
    assert abs(found["information_1"].value) < 0.02
    assert found["information_gap_1"].high < -0.2
