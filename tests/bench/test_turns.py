"""A disturbed host bends no ratio, on a clock of the test's own."""

from types import SimpleNamespace

import pytest
import torch

from unmask.bench import timing
from unmask.bench.timing import Contender, in_turns, over

CPU = torch.device("cpu")


@pytest.fixture
def host(monkeypatch):
    """A host of which somebody takes nine tenths between two moments."""
    host = SimpleNamespace(now=0.0, disturbed=(16.0, 40.0))
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: host.now))
    return host


def work(host, name, cost, **how):
    def loop():
        host.now += 5.0  # the first call compiles
        while True:
            start, end = host.disturbed
            host.now += cost * (10 if start <= host.now < end else 1)
            yield

    return Contender({"name": name}, loop(), **{"warm": 1, "count": 2, **how})


def test_a_disturbed_round_does_not_bend_a_ratio(host):
    """The disturbance falls on one of two in the second round, and is over when the other one's turn comes."""
    plain, ours = in_turns([work(host, "plain", 1.5), work(host, "ours", 0.5)], CPU, 5, lambda: False)
    assert plain["ms_of_rounds"] == pytest.approx([1500, 15000, 1500, 1500, 1500])
    assert plain["ms_a_forward"] == pytest.approx(1500)
    assert over(plain, ours) == pytest.approx([3, 3, 30])


def test_what_is_skipped_is_not_timed_and_one_may_count_for_several(host):
    host.disturbed = (0, 0)
    costs = iter([1.0] + [9.0, 2.0, 2.0] * 3)

    def blocks():
        for cost in costs:
            host.now += cost
            yield

    block = Contender({"name": "block"}, blocks(), warm=1, count=2, skip=1)
    halves = work(host, "halves", 1.0, size=0.5)
    rows = in_turns([block, halves], CPU, 3, lambda: False)
    assert [row["ms_of_rounds"] for row in rows] == [[2000.0] * 3, [2000.0] * 3]
    assert over(*rows) == [1.0, 1.0, 1.0]


def test_there_is_a_first_round_even_where_it_is_late(host):
    (row,) = in_turns([work(host, "plain", 1.0)], CPU, 5, lambda: True)
    assert len(row["ms_of_rounds"]) == 1
