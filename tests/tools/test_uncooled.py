"""Where nothing is cooled: distances of Gen PPL, and diversity across texts beside them."""

import math
import random
import statistics

import pytest
from tools.results.tables import alike, by_lag
from tools.results.uncooled import log_ratio, uncooled

YARDSTICK = {"plan": "permutation", "steps": 64}


def record(plan: str, steps: int, ppl: float, *, n: int = 100, half: float = 0.03, self_bleu: float = 0.3) -> dict:
    interval = [ppl, ppl * math.exp(-half), ppl * math.exp(half)]
    return {
        "model": "teacher", "plan": plan, "steps": steps, "n": n, "gen_ppl": interval,
        "self_bleu": [self_bleu, self_bleu - 0.01, self_bleu + 0.01], "distinct_4": [0.9, 0.89, 0.91],
    }  # fmt: skip


def test_the_interval_of_a_ratio_is_that_of_two_independent_draws():
    draw = random.Random(0)
    ratios = [draw.gauss(math.log(120), 0.03) - draw.gauss(math.log(100), 0.04) for _ in range(20000)]
    low, high = (statistics.quantiles(ratios, n=40)[at] for at in (0, -1))  # 2.5% and 97.5%
    one = [math.exp(math.log(120) + z * 0.03) for z in (0, -1.96, 1.96)]
    other = [math.exp(math.log(100) + z * 0.04) for z in (0, -1.96, 1.96)]
    assert log_ratio(one, other) == pytest.approx((math.log(1.2), low, high), abs=0.004)


def test_distances_are_to_the_largest_yardstick_and_diversity_stands_only_at_its_number_of_texts():
    made = [
        record("permutation", 64, 90, n=50), record("permutation", 64, 100),
        record("golden", 8, 110), record("golden", 16, 90), record("iid", 8, 200, n=50, self_bleu=0.2),
    ]  # fmt: skip
    table = uncooled(made, YARDSTICK, "a judge", 0.02)
    assert table is not None
    rows = {row[0]: row[1:] for row in table.rows}
    assert table.head[1:] == ["8", "16", "64"]
    assert rows["golden"][0] == "+10.0% [+5.4, +14.8]<br>self-BLEU 0.300 ± 0.010<br>distinct-4 0.900 ± 0.010"
    assert rows["golden"][1].startswith("**−10.0%** [")  # surely below the margin
    assert rows["iid (published)"][0] == "+100.0% [+91.7, +108.7]<br>n = 50"
    assert rows["permutation, equal counts"][2].startswith("0: the yardstick<br>self-BLEU")


def test_without_a_yardstick_at_one_temperature_there_is_no_table():
    assert uncooled([record("golden", 8, 110)], YARDSTICK, "a judge", 0.02) is None


def test_information_is_told_lag_by_lag_beside_real_texts():
    known = {f"information_{lag}": [0.08 / lag, 0.07 / lag, 0.09 / lag] for lag in (8, 16, 32)}
    drawn = {"role": "teacher", "hot": True}
    real = record("real text", 0, 40) | {"role": "real", "hot": False}
    table = by_lag([record("golden", 8, 110) | drawn | known, record("iid", 8, 200) | drawn, real | known])
    assert table is not None
    assert [row[0] for row in table.rows] == ["golden"]  # of an older file, which has none, there is no row
    assert table.rows[0][1] == "8: 0.0100 ± 0.0012<br>16: 0.0050 ± 0.0006<br>32: 0.0025 ± 0.0003"
    assert "Real text: 8: 0.0100 ± 0.0012, 16: 0.0050" in table.note


def test_a_students_self_bleu_stands_beside_the_teachers_bold_where_they_differ():
    said = [{"alike": {"student": 0.31, "teacher": 0.25, "differ": differ}} for differ in (True, False)]
    assert [alike([one]) for one in said] == ["**0.310**, teacher 0.250", "0.310, teacher 0.250"]
    assert alike([{"alike": None}, {}]) == ""
