"""Orders without memory: permutations by enumeration, shares by counting, and numbers that may never change."""

import math
from collections import Counter

import numpy as np
import pytest

from unmask.data.shuffle import interleave, permuted


def test_every_size_is_a_permutation() -> None:
    for n in [*range(1, 70), 255, 256, 257, 4097]:
        for key in (0, 1, 2**63 - 1):
            assert sorted(permuted(np.arange(n), n, key).tolist()) == list(range(n))


def test_a_place_does_not_depend_on_which_others_are_asked() -> None:
    n = 10**15 + 37
    places = np.array([0, 1, 2, n // 2, n - 1])
    together = permuted(places, n, 7)
    assert together.tolist() == [int(permuted(places[i : i + 1], n, 7)[0]) for i in range(len(places))]
    assert len(set(together.tolist())) == len(places)
    assert together.max() < n


def test_the_order_is_the_same_in_every_version() -> None:
    """A run resumed with a later release must see the blocks it would have seen: these numbers are a promise."""
    assert permuted(np.arange(12), 12, 5).tolist() == [11, 10, 9, 4, 2, 7, 6, 5, 1, 3, 0, 8]
    assert permuted(np.arange(3), 10**9, 2**40 + 1).tolist() == [580103937, 902606501, 42406830]


def test_all_orders_are_about_equally_likely() -> None:
    draws = 4800
    orders = Counter(tuple(permuted(np.arange(4), 4, key).tolist()) for key in range(draws))
    expected = draws / math.factorial(4)
    statistic = sum((orders[order] - expected) ** 2 / expected for order in orders)
    assert len(orders) == 24
    assert statistic < 49.7  # the 99.9% point of chi-squared with 23 degrees of freedom


@pytest.mark.parametrize("weights", [[1.0], [1.0, 1.0], [3.0, 1.0, 0.5], [0.01, 0.99], [1e-6, 1.0, 2.0]])
def test_sources_share_the_places_in_proportion(weights: list[float]) -> None:
    count = 5000
    owner = np.full(count, -1)
    for source, (rows, before) in enumerate(interleave(np.arange(count), weights)):
        owner[rows] = source
        assert np.array_equal(before, np.arange(len(rows))), "every source is read one after the other, nothing skipped"
    assert (owner >= 0).all()
    for m in range(1, count + 1, 7):
        for source, weight in enumerate(weights):
            assert abs((owner[:m] == source).sum() - m * weight / sum(weights)) < len(weights) + 1e-5


def test_shares_far_out_in_a_long_run_agree_with_exact_arithmetic() -> None:
    start = 3 * 2**40
    (rows, before), _ = interleave(np.arange(start, start + 9), [0.3, 0.7])
    share = round(0.3 * 2**32)
    exact = [((start + i) * share) >> 32 for i in range(10)]
    assert rows.tolist() == [i for i in range(9) if exact[i + 1] > exact[i]]
    assert before.tolist() == [exact[i] for i in rows]
