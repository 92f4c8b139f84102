"""How alike texts are at equal entropy: read off between the teacher's temperatures, and said where it differs."""

import dataclasses

import pytest

from unmask.studies.frontier import at_equal_entropy
from unmask.studies.report.tables import speed_ups
from unmask.studies.report.words import meaning
from unmask.studies.results import Cell, Results


def cell(entropy: float, self_bleu: float, half: float = 0.01) -> Cell:
    scores = {
        "sampler_entropy": {"value": entropy},
        "self_bleu": {"value": self_bleu, "low": self_bleu - half, "high": self_bleu + half},
    }
    return Cell("any", "golden", 8, 1.0, 64, 8.0, None, 1000, scores)


TEACHER = [cell(5.0, 0.20), cell(4.8, 0.30), cell(4.6, 0.50)]  # hottest first


@pytest.mark.parametrize(("entropy", "expected"), [(4.9, 0.25), (4.65, 0.45), (5.0, 0.20), (4.6, 0.50)])
def test_the_teachers_is_linear_in_entropy_between_two_temperatures(entropy, expected):
    found = at_equal_entropy(cell(entropy, 0.7), TEACHER, "self_bleu")
    assert found is not None
    assert found["teacher"]["value"] == pytest.approx(expected)
    assert found["student"]["value"] == 0.7


@pytest.mark.parametrize("entropy", [5.1, 4.5])
def test_nothing_is_extrapolated(entropy):
    assert at_equal_entropy(cell(entropy, 0.7), TEACHER, "self_bleu") is None
    assert at_equal_entropy(cell(4.9, 0.7), TEACHER[:1], "self_bleu") is None


def test_texts_that_have_no_self_bleu_are_not_compared():
    bare = dataclasses.replace(TEACHER[0], scores={"sampler_entropy": {"value": 5.0}})
    assert at_equal_entropy(cell(4.9, 0.7), [bare, *TEACHER[1:]], "self_bleu") is None
    assert at_equal_entropy(bare, TEACHER, "self_bleu") is None


@pytest.mark.parametrize(("self_bleu", "differ"), [(0.262, False), (0.266, True), (0.238, False), (0.234, True)])
def test_a_difference_must_exceed_the_errors_of_both(self_bleu, differ):
    """At 4.9 the teacher has 0.25, and either half interval is 0.01: together 0.0141."""
    found = at_equal_entropy(cell(4.9, self_bleu), TEACHER, "self_bleu")
    assert found is not None
    assert found["differ"] is differ


def with_alike(student: float, teacher: float, differ: bool) -> Results:
    sides = {"student": {"value": student}, "teacher": {"value": teacher}, "differ": differ}
    entry = {
        "model": "student", "plan": "golden", "steps": 8, "nfe": 8.0, "entropy": 4.9, "suspicions": [],
        "alike": {"self_bleu": sides, "repeated_4": None}, "speed_up": {"value": None}, "gap": {"value": None},
        "gap_to": {},
    }  # fmt: skip
    analysis = {
        "headline": entry, "comparisons": [entry], "teacher": None, "best_plan": None, "base_plan": None, "draws": 10,
        "likelihood": [], "wall_clock": [], "one_token_a_step": [],
    }  # fmt: skip
    settings = {"steps": [8], "temperatures": [1.0], "plans": ["golden"]}
    return Results(
        models={}, cells=[], bounds=[], settings=settings, judge=None, notes=[], provenance={}, analysis=analysis
    )


def test_the_report_says_so_only_where_it_is_sure():
    (said,) = [one for one in meaning(with_alike(0.31, 0.25, differ=True)) if "self-BLEU" in one]
    assert "more alike among themselves: self-BLEU 0.310, the teacher's in as many steps 0.250" in said
    assert any("less alike" in one for one in meaning(with_alike(0.21, 0.25, differ=True)))
    assert not any("alike" in one for one in meaning(with_alike(0.26, 0.25, differ=False)))
    assert speed_ups(with_alike(0.31, 0.25, differ=True)).rows[0][-2] == "0.310\nteacher 0.250"
