"""R at the temperature where it is least, on cells whose true R is known: the choice must not flatter the score."""

import dataclasses
import math

import pytest
import torch

from unmask.core.streams import stream
from unmask.metrics.score import Ratio, Score, choose_least
from unmask.studies.analysis import analyse, least_gaps
from unmask.studies.report.tables import path_gaps
from unmask.studies.results import Cell, Results

TEMPERATURES = (0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0)
ALIKE = (0.24,) * 7
MEASURED = (0.3886, 0.3294, 0.2968, 0.2909, 0.2886, 0.2895, 0.2969)  # of a 4-step sampler, by temperature
SETTINGS = {"steps": [8], "plans": ["golden"], "temperatures": [1.0, 0.9], "n": 2, "protocol": "mdlm", "seed": 0,
            "length": 8, "data": None}  # fmt: skip


def _results(gaps: dict[float, list[float] | torch.Tensor]) -> Results:
    """One model whose texts have these gaps by temperature, one byte each."""
    cells = []
    for temperature, gap in gaps.items():
        ratio = Ratio.mean(gap)
        scores = {"path_gap": Score.of(ratio, "nats/byte", {}).to_json(), "entropy": {"value": 4.8}}
        cells.append(Cell("m", "golden", 8, temperature, len(ratio), 8.0, None, 8, scores, {"path_gap": ratio}))
    return Results({"m": {"role": "teacher", "sha256": "0", "provenance": {}}}, cells, [], SETTINGS, None)


def _found(gaps: dict[float, list[float] | torch.Tensor], draws: int = 200) -> dict:
    (found,) = least_gaps(_results(gaps), 0, draws)
    return found


@pytest.mark.parametrize("truth", [ALIKE, MEASURED], ids=["alike", "measured"])
def test_the_interval_holds_the_true_gap_of_the_temperature_chosen(truth: tuple[float, ...]) -> None:
    """95 times in a hundred. The least in every draw, of the texts that chose, holds it 6 times where all are alike."""
    n, trials = 64, 100
    true_gap = dict(zip(TEMPERATURES, truth, strict=True))
    hits, above = 0, 0
    for trial in range(trials):
        noise_Tn = torch.randn(7, n, generator=stream(trial, "least"), dtype=torch.float64)
        noises = zip(true_gap.items(), noise_Tn, strict=True)
        found = _found({t: gap + 0.0015 * math.sqrt(n) * noise_n for (t, gap), noise_n in noises})
        hits += found["low"] <= true_gap[found["temperature"]] <= found["high"]
        above += found["value"] > true_gap[found["temperature"]]
    assert hits >= 87
    assert 35 <= above <= 65, "as often too large as too small"


def test_half_of_the_texts_choose_and_the_other_half_score() -> None:
    """The texts at odd places choose 0.9; what they say of it does not count, nor what the others say of 1.0."""
    found = _found({1.0: [0.0, 5.0, 0.0, 5.0], 0.9: [7.0, 1.0, 9.0, 1.0]})
    assert (found["temperature"], found["value"], found["count"]) == (0.9, 8.0, 2)
    assert (found["low"], found["high"]) == (7.0, 9.0)
    assert found["least_of"] == [1.0, 0.9]


def test_one_temperature_is_not_chosen_and_keeps_all_texts() -> None:
    gap_n = 0.3 + 0.02 * torch.randn(50, generator=stream(0, "one"), dtype=torch.float64)
    found = _found({1.0: gap_n}, draws=2000)
    score = Score.of(Ratio.mean(gap_n), "nats/byte", {})
    assert (found["value"], found["count"]) == (score.value, 50)
    assert (found["low"], found["high"]) == (pytest.approx(score.low, abs=1e-4), pytest.approx(score.high, abs=1e-4))


def test_cells_of_different_sizes_are_halved_each_for_itself() -> None:
    assert _found({1.0: [9.0] * 10, 0.9: [1.0] * 5})["count"] == 3


def test_a_half_of_one_text_has_no_interval() -> None:
    found = _found({1.0: [2.0, 2.0], 0.9: [1.0, 1.0]})
    assert (found["value"], found["low"], found["high"]) == (1.0, None, None)


def test_what_no_text_speaks_for_is_not_chosen() -> None:
    """The half that would choose the first spells no bytes at all."""
    silent = Ratio.of([3.0, 0.0], [1.0, 0.0])
    chosen, unseen = choose_least([silent, Ratio.mean([4.0, 9.0])])
    assert (chosen, unseen.value) == (1, 4.0)


def test_the_report_says_how_many_texts_scored_it() -> None:
    several = analyse(_results({1.0: [0.0, 5.0, 0.0, 5.0], 0.9: [7.0, 1.0, 9.0, 1.0]}), draws=200)
    table = path_gaps(several)
    assert table.rows == [["m\ngolden", "2.5000\n[0.0000, 5.0000]\nchosen T = 0.9: 8.0000\n[7.0000, 9.0000], n = 2"]]
    assert "scored by the other half" in table.note
    alone = analyse(dataclasses.replace(several, cells=several.cells[:1]), draws=200)
    assert path_gaps(alone).rows == [["m\ngolden", "2.5000\n[0.0000, 5.0000]"]]
