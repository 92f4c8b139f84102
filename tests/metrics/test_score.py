"""Intervals against closed forms and against what they promise: to hold the truth 95 times out of 100."""

import json
import math

import pytest
import torch

from unmask.core.errors import UserError
from unmask.core.streams import stream
from unmask.metrics.score import Ratio, Score, bootstrap, difference, independent, resamples


def texts(n, seed):
    """Sums and counts of texts of very different lengths, whose own means differ too; the true ratio is 2."""
    random = stream(seed, "texts")
    count_n = torch.randint(5, 200, (n,), generator=random).double()
    mean_n = 2 + 0.5 * torch.randn(n, generator=random, dtype=torch.float64)
    return count_n * mean_n, count_n


def test_a_ratio_of_sums_has_the_spread_of_the_delta_method():
    top_n, bottom_n = texts(400, 0)
    score = Score.of(Ratio.of(top_n, bottom_n), "nats/token", {}, draws=20_000)
    assert score.value == pytest.approx(float(top_n.sum() / bottom_n.sum()), abs=1e-12)
    residual_n = top_n - score.value * bottom_n
    spread = float(residual_n.square().sum().sqrt() / bottom_n.sum())
    assert score.stderr == pytest.approx(spread, rel=0.03)
    assert (score.high - score.low) / 2 == pytest.approx(1.96 * spread, rel=0.03)


def test_intervals_hold_the_truth_as_often_as_they_say():
    held = []
    for seed in range(300):
        score = Score.of(Ratio.of(*texts(60, seed)), "", {}, seed=seed, draws=400)
        held.append(score.low <= 2 <= score.high)
    assert 0.90 <= sum(held) / len(held) <= 0.98


def test_blocks_of_one_book_are_drawn_together_because_they_are_alike():
    """Eighteen books of unequal length, each with a level of its own: blocks taken one by one are far too sure."""

    def share_held(by_book):
        held = []
        for seed in range(300):
            random = stream(seed, "books")
            size = (40 * torch.randn(18, generator=random).mul(0.8).exp()).long().clamp(min=2)
            book_n = torch.arange(18).repeat_interleave(size)
            level, own_n = (torch.randn(n, generator=random).double() for n in (18, len(book_n)))
            ratio = Ratio.mean(level[book_n] + 2 * own_n).together(book_n if by_book else None)
            score = Score.of(ratio, "", {}, seed=seed, draws=400)
            assert score.count == len(book_n)
            held.append(score.low <= 0 <= score.high)
        return sum(held) / len(held)

    assert share_held(by_book=False) < 0.6
    assert 0.9 <= share_held(by_book=True) <= 0.98


def test_a_cluster_counts_as_one_sample():
    """Of equal clusters the standard error is that of a mean of their means; the interval is Student's."""
    value_n = torch.randn(12 * 50, generator=stream(0, "clusters")).double()
    cluster_n = torch.arange(12).repeat_interleave(50)
    score = Score.of(Ratio.mean(value_n).together(cluster_n), "", {}, draws=20_000)
    mean_c = value_n.view(12, 50).mean(1)
    expected = float(mean_c.std()) / math.sqrt(12)
    assert score.value == pytest.approx(float(value_n.mean()), abs=1e-12)
    assert score.stderr == pytest.approx(expected, rel=0.03)
    assert score.high - score.low == pytest.approx(2 * 2.201 * expected, rel=0.05)  # t of 11 degrees of freedom


def test_a_part_keeps_together_what_belongs_together():
    top_n, bottom_n = texts(40, 5)
    part = Ratio.of(top_n, bottom_n).together(torch.arange(40) // 4).part(slice(8, None, 2))
    assert part.clusters == 8
    assert part.by_cluster().value == pytest.approx(float(top_n[8::2].sum() / bottom_n[8::2].sum()), abs=1e-12)
    assert part.by_cluster().top_n[0] == top_n[8] + top_n[10]


def test_one_cluster_says_nothing_of_its_spread():
    score = Score.of(Ratio.of(*texts(40, 5)).together(torch.zeros(40, dtype=torch.int64)), "", {})
    assert math.isnan(score.low)
    assert math.isnan(score.stderr)


def test_perplexity_is_the_exponential_of_the_resampled_mean():
    top_n, bottom_n = texts(50, 1)
    plain, exponential = Ratio.of(top_n, bottom_n), Ratio.of(top_n, bottom_n, exponential=True)
    mean, ppl = (Score.of(ratio, "", {}, seed=3) for ratio in (plain, exponential))
    assert (ppl.value, ppl.low, ppl.high) == pytest.approx(
        [math.exp(x) for x in (mean.value, mean.low, mean.high)], rel=1e-3
    )


def test_paired_differences_lose_the_noise_that_both_sides_share():
    top_n, bottom_n = texts(200, 2)
    shift_n = 0.1 + 0.01 * torch.randn(200, generator=stream(0, "shift"), dtype=torch.float64)
    a, b = Ratio.of(top_n + shift_n * bottom_n, bottom_n), Ratio.of(top_n, bottom_n)
    paired, alone = (difference(a, b, "", {}, paired=paired) for paired in (True, False))
    assert paired.value == pytest.approx(alone.value) == pytest.approx(0.1, abs=0.005)
    assert paired.stderr < 0.05 * alone.stderr
    assert paired.low > 0 > alone.low
    same = difference(a, a, "", {})
    assert (same.value, same.low, same.high) == (0, 0, 0)
    with pytest.raises(UserError, match="same texts"):
        difference(a, Ratio.of(top_n[:9], bottom_n[:9]), "", {})


def test_an_unpaired_difference_has_the_errors_of_both_sides():
    """Each by itself: only one of them is widened for its few clusters."""
    a, b = (Ratio.of(*texts(200, seed)) for seed in (2, 3))
    b = b.together(torch.arange(200) // 25)
    errors = [Score.of(ratio, "", {}, seed=seed).stderr for ratio, seed in ((a, 0), (b, 1))]
    assert difference(a, b, "", {}, paired=False).stderr == pytest.approx(math.hypot(*errors))


def test_statistics_of_the_same_samples_are_drawn_together():
    """The difference of two draws is the draw of the difference."""
    top_n, bottom_n = texts(40, 3)
    ratios = [Ratio.mean(top_n), Ratio.mean(bottom_n), Ratio.mean(top_n - bottom_n)]
    value_DR = bootstrap(ratios, seed=5, draws=100)
    assert torch.allclose(value_DR[:, 0] - value_DR[:, 1], value_DR[:, 2])
    assert not torch.allclose(value_DR, bootstrap(ratios, seed=6, draws=100))


def test_resamples_draw_n_of_n_with_replacement_in_any_chunking():
    weight_Dn = torch.cat(list(resamples(3_000, seed=0, draws=1500)))  # more than one chunk
    assert weight_Dn.shape == (1500, 3000)
    assert (weight_Dn.sum(1) == 3000).all()
    assert float((weight_Dn == 0).double().mean()) == pytest.approx(math.exp(-1), abs=1e-3)


def test_one_sample_has_no_interval_and_json_says_so():
    score = Score.of(Ratio.mean([3.0]), "nats", {"judge": "x"})
    assert json.loads(json.dumps(score.to_json(), allow_nan=False)) == {
        "value": 3.0, "count": 1, "low": None, "high": None, "stderr": None, "unit": "nats", "record": {"judge": "x"},
    }  # fmt: skip
    with pytest.raises(UserError, match="no samples"):
        Score.of(Ratio.of([0.0, 0.0], [0.0, 0.0]), "nats", {})


def test_groups_of_samples_are_resampled_independently_of_each_other():
    """Each has the bootstrap's own draws; those of two do not go together, though the samples are the same."""
    ratio = Ratio.mean(torch.randn(40, generator=stream(0, "samples"), dtype=torch.float64))
    a_D, b_D = (independent([ratio], name)[:, 0] for name in ("a", "b"))
    assert torch.equal(a_D.sort().values, bootstrap([ratio])[:, 0].sort().values)
    assert abs(float(torch.corrcoef(torch.stack([a_D, b_D]))[0, 1])) < 0.1
