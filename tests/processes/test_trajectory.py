"""Masks nest, and lose positions at the rate the schedule says."""

import pytest
import torch

from unmask.core.errors import UserError
from unmask.processes.masked import mask, stay_masked
from unmask.processes.schedule import Cosine, LogLinear
from unmask.processes.trajectory import couple

MASK = 9


def test_masked_iff_u_reaches_gamma_ties_included() -> None:
    x0, u = torch.tensor([[1, 2, 3]]), torch.tensor([[0.2, 0.5, 0.8]])
    assert mask(x0, u, 0.5, MASK).tolist() == [[1, MASK, MASK]]
    assert mask(x0, torch.zeros(1, 3), 0.0, MASK).tolist() == [[MASK] * 3]  # u = 0 at gamma = 0 is masked
    gammas = torch.tensor([0.1, 0.9])
    assert mask(x0.expand(2, 3), u.expand(2, 3), gammas, MASK).tolist() == [[MASK] * 3, [1, 2, 3]]


@pytest.mark.parametrize("schedule", [LogLinear(), Cosine()], ids=str)
def test_views_nest_and_the_reverse_posterior_holds(schedule: LogLinear | Cosine) -> None:
    generator = torch.Generator().manual_seed(0)
    B, L = 400, 200
    x0 = torch.randint(MASK, (B, L), generator=generator)
    u = torch.rand(B, L, generator=generator, dtype=torch.float64)
    s, t = torch.tensor(0.35, dtype=torch.float64), torch.tensor(0.6, dtype=torch.float64)
    pair = couple(x0, u, s, t, schedule=schedule, mask_id=MASK)
    assert not bool((pair.m_s & ~pair.m_t).any())
    regions = torch.stack([pair.identity, pair.distil, pair.reconstruct])
    assert bool((regions.sum(0) == 1).all())  # every position is in exactly one region
    assert torch.equal(pair.z_s[pair.reconstruct], x0[pair.reconstruct])
    expected = stay_masked(schedule.gamma(s), schedule.gamma(t))
    measured, count = pair.m_s[pair.m_t].double().mean(), int(pair.m_t.sum())
    assert (measured - expected).abs() < 4 * (expected * (1 - expected) / count).sqrt()


def test_a_teacher_that_sees_less_is_refused() -> None:
    x0, u = torch.zeros(1, 2, dtype=torch.long), torch.rand(1, 2)
    with pytest.raises(UserError, match="s <= t"):
        couple(x0, u, 0.6, 0.5, schedule=LogLinear(), mask_id=MASK)
