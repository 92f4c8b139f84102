"""What is kept of the tasks without a judge, and its intervals."""

import math

import pytest
from tools.results.runs import Run
from tools.results.tasks import cell, kept, wilson


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
