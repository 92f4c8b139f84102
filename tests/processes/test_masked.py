"""The masked process: views nest, positions are lost at the rate the schedule says, the posterior is Bayes' rule."""

import pytest
import torch

from unmask.core.errors import UserError
from unmask.processes import Masked, States
from unmask.processes.masked import is_masked, stay_masked
from unmask.processes.schedule import Cosine, LogLinear

MASK = 4  # in the middle
STATES = States(9, MASK)


def test_masked_iff_u_reaches_gamma_ties_included() -> None:
    u = torch.tensor([[0.2, 0.5, 0.8]])
    assert is_masked(u, 0.5).tolist() == [[False, True, True]]
    assert is_masked(torch.zeros(1, 3), 0.0).tolist() == [[True] * 3]  # u = 0 at gamma = 0 is masked
    assert is_masked(u.expand(2, 3), torch.tensor([0.1, 0.9])).tolist() == [[True] * 3, [False] * 3]


@pytest.mark.parametrize("schedule", [LogLinear(), Cosine()], ids=str)
def test_views_nest_and_the_reverse_posterior_holds(schedule: LogLinear | Cosine) -> None:
    generator = torch.Generator().manual_seed(0)
    B, L = 400, 200
    x0 = torch.randint(MASK, (B, L), generator=generator)
    u = torch.rand(B, L, generator=generator, dtype=torch.float64)
    s, t = torch.full((B,), 0.35, dtype=torch.float64), torch.full((B,), 0.6, dtype=torch.float64)
    process = Masked(schedule)
    pair = process.couple(x0, u, s, t, STATES)
    assert torch.equal(pair.z_t, process.corrupt(x0, u, t, STATES))
    assert torch.equal(pair.z_s, process.corrupt(x0, u, s, STATES))
    assert not bool((pair.distil & pair.reconstruct).any())
    assert torch.equal(pair.scored, pair.z_t == MASK)
    assert torch.equal(pair.distil, pair.z_s == MASK)
    assert torch.equal(pair.z_s[pair.reconstruct], x0[pair.reconstruct])
    expected = stay_masked(schedule.gamma(s[0]), schedule.gamma(t[0]))
    measured, count = pair.distil[pair.scored].double().mean(), int(pair.scored.sum())
    assert (measured - expected).abs() < 4 * (expected * (1 - expected) / count).sqrt()


def test_the_posterior_is_bayes_rule() -> None:
    """q(z_s | z_t, x_0) = q(z_t | z_s) q(z_s | x_0) / q(z_t | x_0), averaged over the law of x_0 given."""
    schedule = LogLinear()
    s, t = torch.tensor(0.3, dtype=torch.float64), torch.tensor(0.8, dtype=torch.float64)
    p_V = torch.rand(9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    p_V[MASK] = 0
    p_V /= p_V.sum()
    law_MV = Masked(schedule).posterior(p_V.log()[None].expand(2, 9), torch.tensor([MASK, 7]), s, t, STATES).exp()
    gamma_s, gamma_t = schedule.gamma(s), schedule.gamma(t)
    for v in range(9):
        if v == MASK:
            expected = (1 - gamma_s) / (1 - gamma_t)
        else:  # visible at s (gamma_s p), masked between s and t (1 - gamma_t / gamma_s), given masked at t
            expected = gamma_s * p_V[v] * (1 - gamma_t / gamma_s) / (1 - gamma_t)
        assert float(law_MV[0, v]) == pytest.approx(float(expected), rel=1e-12)
    assert law_MV[1].tolist() == [float(v == 7) for v in range(9)]


def test_what_cannot_be_is_refused() -> None:
    x0, u = torch.zeros(1, 2, dtype=torch.long), torch.rand(1, 2)
    with pytest.raises(UserError, match="s <= t"):
        Masked().couple(x0, u, torch.tensor([0.6]), torch.tensor([0.5]), STATES)
    with pytest.raises(UserError, match="needs a model with a mask state"):
        Masked().corrupt(x0, u, torch.tensor([0.6]), States(9, None))
