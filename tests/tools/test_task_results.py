"""What is kept of the tasks without a judge, and its intervals."""

import math

import pytest
from tools.results.runs import Run
from tools.results.tasks import cell, half_of, kept, shares, tasks_students, wilson


@pytest.mark.parametrize(("right", "n"), [(0, 40), (3, 40), (20, 40), (40, 40)])
def test_the_interval_of_a_share_holds_what_a_test_would_not_refuse(right, n):
    """Its ends are the shares p at which |right/n - p| is 1.96 standard errors under p itself."""
    found, z2 = right / n, 1.96**2
    b, c = -(2 * found + z2 / n), found**2  # (found - p)^2 = z^2 p (1 - p) / n
    ends = [(-b + sign * math.sqrt(b * b - 4 * (1 + z2 / n) * c)) / (2 * (1 + z2 / n)) for sign in (-1, 1)]
    one = {"n": n, "score": "valid", "scores": {"valid": found}}
    assert wilson(one) == pytest.approx((ends[1] - ends[0]) / 2)


def test_of_a_task_every_cell_is_kept_once_with_most_texts():
    facts = {"model": "plain", "plan": "comb", "steps": 16, "score": "all", "per_text": "01"}
    cells = [{**facts, "n": n, "scores": {"all": n / 100}} for n in (8, 64, 16)]
    about = dict.fromkeys(("unmask", "revision", "torch", "python", "device", "time"))
    config = {"model": {}, "trainer": {"steps": 10}}
    said = {"task": "records", "seed": 0, "cells": cells, "control": {}}
    model = {**about, "config": config, "step": 10, "score": {"nats": 1.0}}
    found = kept({**said, "model": model})
    assert [one["n"] for one in found["cells"]] == [64]
    assert "per_text" not in found["cells"][0]
    assert cell(Run("x", found), "plain", "comb", 16)["scores"] == {"all": 0.64}
    assert cell(Run("x", found), "chain", "comb", 16) is None
    assert found["model"]["held_out"] == {"nats": 1.0}
    assert kept({**said, "model": {**model, "step": 7}})["model"]["held_out"] is None, "scored before its last step"


def test_students_stand_beside_the_model_that_they_come_from():
    def found(model, share):
        one = {"model": model, "plan": "comb", "steps": 16, "n": 400, "score": "all", "scores": {"all": share}}
        return {**one, "whole": 4, "different": 3}

    run = Run("x", {"cells": [found("plain", 0.2), found("chain", 0.9), found("mcd", 0.3)]})
    runs = {"tasks-records": run}
    assert tasks_students(runs).rows == [["records, `comb`, 16", "20.0 ± 3.9", "30.0 ± 4.5", "–"]]
    table = shares(run, "records")
    assert table.head == ["plan \\ steps", "16", "16 +"]
    assert table.note.endswith("at least 75.0% differ.")


def test_sums_are_kept_by_how_many_lines_of_a_text_are_right():
    """The interval is that of the texts: one all right and one all wrong leave more doubt than two halves."""
    sure = {"n": 2, "score": "right", "scores": {"right": 0.5}, "texts": [0] * 8 + [2] + [0] * 8}
    unsure = {**sure, "texts": [1] + [0] * 15 + [1]}
    assert half_of(sure) == 0
    assert half_of(unsure) == pytest.approx(1.96 * math.sqrt(0.5 / 2))
