"""Stratified times, the curriculum, the grids."""

import math

import pytest
import torch

from unmask.core.errors import UserError
from unmask.objectives.distil.curriculum import Curriculum
from unmask.plans.grids import cosine_grid, grid_of, mdlm_grid, uniform_grid
from unmask.processes.schedule import stratified


def test_stratified_times_hit_every_stratum_once_in_random_order() -> None:
    generator = torch.Generator().manual_seed(0)
    n, low, high = 64, 0.25, 1.0
    times = stratified(n, generator, low, high)
    strata = torch.ceil((times - low) / (high - low) * n).long() - 1
    assert sorted(strata.tolist()) == list(range(n))
    assert strata.tolist() != list(range(n))
    assert times.min() > low
    assert times.max() <= high


def test_each_sample_meets_every_time() -> None:
    first = torch.stack([stratified(8, torch.Generator().manual_seed(i))[0] for i in range(4000)])
    # one sample by itself is uniform: mean 1/2 with variance 1/12
    assert (first.mean() - 0.5).abs() < 4 * (1 / 12 / 4000) ** 0.5


def test_the_papers_curriculum() -> None:
    rounds = Curriculum()
    assert [rounds.delta(r) * 512 for r in range(1, 6)] == [1, 2, 4, 8, 16]
    assert [round(rounds.tau(r), 2) for r in range(1, 6)] == [0.96, 0.93, 0.90, 0.87, 0.84]
    assert math.isclose(rounds.tau_product(5), 0.587, abs_tol=5e-4)


@pytest.mark.parametrize(
    ("settings", "word"), [({"rounds": 10}, "at most 9"), ({"tau_drop": 0.5}, "above 0"), ({"rounds": 0}, "at least 1")]
)
def test_curricula_that_cannot_end_are_refused(settings: dict, word: str) -> None:
    with pytest.raises(UserError, match=word):
        Curriculum(**settings)
    Curriculum(rounds=9)  # delta reaches 1/2: the last allowed round


def test_grids_fall_from_one() -> None:
    assert uniform_grid(4).tolist() == [1, 0.75, 0.5, 0.25, 0]
    assert cosine_grid(2).tolist() == pytest.approx([1, math.sqrt(0.5), 0])
    assert mdlm_grid(2).tolist() == pytest.approx([1, (1 + 1e-5) / 2, 1e-5])
    assert grid_of([0.5]).tolist() == [1, 0.5, 0]
    for bad in ([0.2, 0.5], [], [1.5], [0.5, 0.5], [math.nan]):
        with pytest.raises(UserError):
            grid_of(bad)
