"""Speed-up at equal own entropy, on cells whose texts are drawn from known laws: no model, no judge, all in seconds."""

import itertools
import math

import pytest
import torch

from unmask.core.streams import stream
from unmask.metrics.score import Ratio
from unmask.studies.frontier import (
    Interval,
    Resampled,
    at_entropy,
    at_nfe,
    draw_cell,
    falling,
    first_reach,
    gap_at,
    speed_up,
)
from unmask.studies.results import Cell

TEMPERATURES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.74, 0.7, 0.6)  # near every student one, as `evaluate` draws them
NFES = (4, 8, 16, 32, 64, 128)


def law(nfe: float, temperature: float) -> tuple[float, float]:
    """(own entropy, nats) of a made-up teacher, both a token: convex in entropy, falling with NFE."""
    entropy = 4.85 - 2.0 * (1 - temperature) - 0.6 * (1 - temperature) ** 2
    return entropy, 5.1 + 2.6 * nfe**-0.6 + 3.4 * (entropy - 4.85) + 1.2 * (entropy - 4.85) ** 2


def cell(
    nfe: float, temperature: float, *, named: str = "teacher", n: int = 256, hidden: int = 1, seed: int = 0
) -> Cell:
    """n texts around the law; `hidden` steps are taken inside every one that is counted."""
    entropy, log_ppl = law(nfe * hidden, temperature)
    noise_2n = torch.randn(2, n, generator=stream(seed, named, str(nfe), str(temperature)), dtype=torch.float64)
    entropy_n = entropy + 0.12 * noise_2n[0]
    nll_n = 100 * (log_ppl + 0.25 * noise_2n[1] + 3.4 * (entropy_n - entropy))  # duller texts are likelier
    ratios = {"judge_nll": Ratio.of(nll_n, torch.full((n,), 100)), "sampler_entropy": Ratio.mean(entropy_n)}
    return Cell(named, "iid", int(nfe), temperature, n, nfe, 1.0, 100 * n, {}, ratios)


def teacher(draws: int = 400) -> dict[float, list[list[Resampled]]]:
    return {nfe: [[draw_cell(cell(nfe, t), draws=draws) for t in TEMPERATURES]] for nfe in NFES}


def exact(nfe: float, temperature: float) -> Resampled:
    """A cell without noise."""
    entropy, log_ppl = law(nfe, temperature)
    return Resampled(torch.full((41,), entropy).double(), torch.full((41,), log_ppl).double())


EXACT = {nfe: [[exact(nfe, t / 100) for t in range(100, 59, -2)]] for nfe in NFES}


def test_a_teacher_at_a_temperature_is_no_gain() -> None:
    """A 'student' that is the teacher with its logits divided by T has a lower Gen PPL, and nothing else.

    An interval of 95% lies wholly above 1 once in forty times by chance; so in sixty trials, hardly ever.
    """
    credited, gaps = [], []
    for seed in range(10):
        reference = {nfe: [[draw_cell(cell(nfe, t, seed=seed), draws=200) for t in TEMPERATURES]] for nfe in NFES}
        for nfe, temperature in itertools.product((8, 32), (0.96, 0.8, 0.75)):
            student = draw_cell(cell(nfe, temperature, named="scaled", seed=seed), draws=200)
            found = speed_up(student, nfe, reference)
            credited.append(found.faster)
            gaps.append(gap_at(student, nfe, reference).value)
    assert sum(credited) <= 4, f"{sum(credited)} of {len(credited)} credited"
    assert sum(gaps) / len(gaps) == pytest.approx(0, abs=0.01)
    plain, sharpened = (law(8, t)[1] for t in (1.0, 0.75))
    assert sharpened < plain - 1, "though its Gen PPL alone looks 2.7 times better"


@pytest.mark.parametrize("hidden", [4, 8])
def test_more_steps_hidden_inside_are_credited(hidden: int) -> None:
    student = draw_cell(cell(8, 0.9, named="hidden", hidden=hidden, n=1024), draws=400)
    found = speed_up(student, 8, teacher())
    assert found.faster
    assert found.low is not None
    assert found.high is not None
    assert 1 < found.low < hidden < found.high
    gap = gap_at(student, 8, teacher())
    assert gap.value == pytest.approx(law(8 * hidden, 0.9)[1] - law(8, 0.9)[1], abs=0.1)
    assert gap.high is not None
    assert gap.high < 0


def test_without_noise_the_number_of_hidden_steps_is_found() -> None:
    """Linear reading between neighbours of a convex curve is all the error there is."""
    for hidden in (1, 2, 4):
        found = speed_up(exact(8 * hidden, 0.87), 8, EXACT)
        assert found.relation == "="
        assert found.value == pytest.approx(hidden, rel=0.01)
        assert found.n_star == pytest.approx(8 * hidden, rel=0.01)


def test_beyond_what_was_run_there_are_only_bounds() -> None:
    better = speed_up(exact(1000, 0.9), 8, EXACT)
    assert (better.relation, better.value, better.high) == (">", pytest.approx(128 / 8), None)
    assert better.faster
    worse = speed_up(exact(2, 0.9), 8, EXACT)
    assert (worse.relation, worse.value, worse.low) == ("<", pytest.approx(4 / 8), None)
    assert not worse.faster
    same = speed_up(exact(3, 0.9), 4, EXACT)
    assert (same.relation, same.low, same.high, same.faster) == ("<", None, pytest.approx(1), False)


def test_entropy_that_no_temperature_has_is_not_bracketed() -> None:
    """Nothing is read off beyond the coldest or the hottest teacher, however near."""
    for temperature in (0.59, 1.01):
        entropy_D = torch.full((41,), law(8, temperature)[0]).double()
        student = Resampled(entropy_D, torch.zeros(41).double())
        found = speed_up(student, 8, EXACT)
        assert (found.relation, found.value, found.faster) == ("not bracketed", None, False)
        assert gap_at(student, 8, EXACT).value is None
    assert speed_up(exact(8, 0.9), 8, {8: [[exact(8, 0.9)]]}).value is None, "one temperature is no path"


def test_a_draw_that_is_not_bracketed_counts_against_both_ends() -> None:
    """Credit needs 97.5% of the draws: where 5% leave the bracket, no lower end is left."""
    student = exact(32, 0.9)
    entropy_D = student.entropy_D.repeat(10)[:401].clone()
    entropy_D[1:21] = 9.9
    student = Resampled(entropy_D, student.nats_D.repeat(10)[:401])
    wide = {
        nfe: [[Resampled(d.entropy_D[0].repeat(401), d.nats_D[0].repeat(401)) for d in path]]
        for nfe, (path,) in EXACT.items()
    }
    found = speed_up(student, 8, wide)
    assert found.value == pytest.approx(4, rel=0.01)
    assert (found.low, found.high, found.faster) == (None, None, False)
    assert found.bracketed == pytest.approx(1 - 20 / 401)


def test_reading_at_an_entropy() -> None:
    def path(*points: tuple[float, float]) -> list[Resampled]:
        return [Resampled(torch.tensor([h]).double(), torch.tensor([v]).double()) for h, v in points]

    def at(points: list[Resampled], entropy: float) -> float:
        return float(at_entropy(points, torch.tensor([entropy]).double())[0])

    straight = path((5.0, 3.0), (4.0, 1.0), (3.0, 0.5))
    assert at(straight, 4.5) == pytest.approx(2.0)
    assert at(straight, 3.0) == pytest.approx(0.5)
    assert math.isnan(at(straight, 2.99))
    # the path turns back: where it was monotone it is read there; only beyond, the best piece counts
    turned = path((5.0, 3.0), (4.0, 2.0), (4.6, 1.0), (3.0, 0.0))
    assert at(turned, 4.5) == pytest.approx(2.5)
    assert at(turned, 3.8) == pytest.approx(0.5)


def test_the_better_of_two_controls_is_the_reference() -> None:
    """A second path counts where it is likelier at that entropy, and where the first has no such entropy."""
    student = exact(8, 0.9)
    better = [Resampled(d.entropy_D, d.nats_D - 0.3) for d in EXACT[8][0]]
    worse = [Resampled(d.entropy_D, d.nats_D + 0.3) for d in EXACT[8][0]]
    both = {8: [EXACT[8][0], better]}
    assert gap_at(student, 8, both).value == pytest.approx(0.3)
    assert gap_at(student, 8, {8: [EXACT[8][0], worse]}).value == pytest.approx(0.0)
    assert gap_at(student, 8, {8: [EXACT[8][0][:3], better]}).value == pytest.approx(0.3), "the first ends at T = 0.96"


def test_the_falling_fit_is_pool_adjacent_violators() -> None:
    def pooled(values: list[float]) -> list[float]:
        blocks: list[list[float]] = []
        for value in values:
            blocks.append([value])
            while len(blocks) > 1 and sum(blocks[-2]) / len(blocks[-2]) < sum(blocks[-1]) / len(blocks[-1]):
                blocks[-2:] = [blocks[-2] + blocks[-1]]
        return [sum(block) / len(block) for block in blocks for _ in block]

    value_ND = torch.randn(7, 50, generator=stream(0, "falling"), dtype=torch.float64)
    expected = torch.tensor([pooled(column) for column in value_ND.T.tolist()], dtype=torch.float64).T
    torch.testing.assert_close(falling(value_ND), expected)
    value_ND[3] = torch.nan
    known = [0, 1, 2, 4, 5, 6]
    expected = torch.tensor([pooled(column) for column in value_ND[known].T.tolist()], dtype=torch.float64).T
    torch.testing.assert_close(falling(value_ND)[known], expected)
    assert bool(falling(value_ND)[3].isnan().all())


def test_reading_over_nfe() -> None:
    log_nfe_N = torch.tensor([math.log(4), math.log(16)]).double()
    value_N1 = torch.tensor([[2.0], [1.0]]).double()
    assert float(at_nfe(log_nfe_N, value_N1, 8)[0]) == pytest.approx(1.5)
    assert math.isnan(float(at_nfe(log_nfe_N, value_N1, 17)[0]))
    reach = first_reach(log_nfe_N, value_N1, torch.tensor([1.5]).double())
    assert float(reach.log_n_D.exp()) == float(reach.least_D.exp()) == pytest.approx(8)


def test_a_missing_point_leaves_n_star_open_between_its_neighbours() -> None:
    log_nfe_N = torch.tensor([4.0, 8.0, 16.0, 32.0]).log().double()
    fit_N1 = torch.tensor([[3.0], [torch.nan], [1.0], [0.5]]).double()
    reach = first_reach(log_nfe_N, fit_N1, torch.tensor([2.0]).double())
    assert [float(x.exp()) for x in (reach.least_D, reach.log_n_D, reach.most_D)] == pytest.approx([4, 8, 16])
    begins = first_reach(log_nfe_N[1:], fit_N1[1:], torch.tensor([2.0]).double())
    assert (float(begins.least_D), float(begins.most_D.exp())) == (-math.inf, pytest.approx(16))


@pytest.mark.parametrize(
    ("strange", "ends"),
    [(-math.inf, (None, 1.0)), (math.inf, (0.0, None)), (math.nan, (None, None))],
)
def test_an_interval_has_no_end_where_its_draws_have_none(strange: float, ends: tuple[float | None, ...]) -> None:
    draws = torch.cat([torch.full((60,), strange, dtype=torch.float64), torch.linspace(0, 1, 2).double().repeat(470)])
    found = Interval.of(torch.cat([torch.tensor([0.5], dtype=torch.float64), draws]))
    assert (found.value, found.low, found.high) == (0.5, *ends)
    every = Interval.of(torch.full((100,), strange, dtype=torch.float64))
    assert (every.value, every.low, every.high) == (None, None, None)
