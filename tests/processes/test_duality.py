"""The duality against independent high-precision quadrature, closed forms and simulation."""

import mpmath as mp
import pytest
import torch

from unmask.core.errors import UserError
from unmask.processes.gaussian import GaussianDuality

SIZES = [3, 10, 1000, 50258]


def quadrature(y: float, K: int) -> mp.mpf:
    """F_Y(y) over the token's own noise e, in 25 digits; the code integrates over the rivals' maximum instead."""
    with mp.workdps(25):
        edges = mp.linspace(-9, max(9, 12 - y), 17)
        return mp.quad(lambda e: mp.npdf(e) * mp.ncdf(y + e) ** (K - 1), edges, method="gauss-legendre")


@pytest.mark.parametrize("K", SIZES)
def test_cdf_against_quadrature(K: int) -> None:
    y = torch.tensor([-5.0, -1.3, 0.0, 2.7, 4.4, 8.1], dtype=torch.float64)
    exact = [quadrature(float(value), K) for value in y]
    for ours, true in zip(GaussianDuality(K).cdf(y).tolist(), exact, strict=True):
        assert abs(ours - true) < 1e-13
        assert abs(ours / true - 1) < 1e-11  # small probabilities have their own digits


@pytest.mark.parametrize("K", SIZES)
def test_inverse_against_quadrature(K: int) -> None:
    gammas = [1e-6, 3e-4, 0.1, 0.5, 0.97, 1 - 1e-6]
    inverses = GaussianDuality(K).inverse(torch.tensor(gammas, dtype=torch.float64)).tolist()
    for gamma, y in zip(gammas, inverses, strict=True):
        assert abs(quadrature(y, K) - mp.mpf(gamma)) < 1e-13


def test_two_states_are_a_normal_law() -> None:
    """One rival: Y is the difference of two standard normals, F_Y(y) = Phi(y / sqrt 2)."""
    y = torch.linspace(-9, 9, 181, dtype=torch.float64)
    assert torch.allclose(GaussianDuality(2).cdf(y), torch.erfc(-y / 2) / 2, rtol=1e-12, atol=0)


@pytest.mark.parametrize("K", [2, 3, 77, 50258, 10**7])
def test_round_trip_and_symmetry(K: int) -> None:
    """Each of K coordinates is the greatest with probability 1/K, so F_Y(0) = 1/K; and inverse undoes cdf."""
    duality = GaussianDuality(K)
    assert float(duality.cdf(0.0)) * K == pytest.approx(1, abs=1e-12)
    tails = torch.logspace(-50, -0.31, 500, dtype=torch.float64)
    gamma = torch.cat([tails, 1 - tails[tails > 1e-15]])
    y = duality.inverse(gamma)
    assert torch.allclose(duality.cdf(y), gamma, rtol=1e-12, atol=1e-15)
    assert bool((y[gamma.argsort()].diff() >= 0).all())


def test_values_of_any_shape_and_kind() -> None:
    duality = GaussianDuality(50)
    gamma = torch.rand(3, 5, 1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = duality.inverse(gamma)
    assert y.shape == gamma.shape
    assert float(duality.inverse(float(gamma[2, 4, 17]))) == pytest.approx(float(y[2, 4, 17]), rel=1e-13)
    assert duality.cdf(0.3).dtype == duality.cdf(torch.tensor(0.3)).dtype == torch.float64
    assert float(duality.cdf(float("inf"))) == pytest.approx(1, abs=1e-15)
    assert float(duality.cdf(float("-inf"))) == 0


def test_calibration_keeps_the_variance_and_the_marginal() -> None:
    duality = GaussianDuality(50258)
    gamma = torch.tensor([1e-6, 1 / 50258, 0.25, 0.999], dtype=torch.float64)
    calibration = duality.calibrate(gamma, signed=True)
    assert torch.allclose(calibration.alpha**2 + calibration.sigma**2, torch.ones(4, dtype=torch.float64), atol=1e-15)
    assert torch.allclose(duality.cdf(calibration.alpha / calibration.sigma), gamma, rtol=1e-12, atol=0)
    assert bool((calibration.sigma > 0).all())
    assert calibration.alpha[0] < -0.5
    alpha, sigma = calibration
    assert torch.equal(alpha / sigma, calibration.alpha / calibration.sigma)
    assert float(duality.calibrate(1 / 50258).alpha) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("K", [2, 3, 40])
def test_projection_and_scalar_rule_are_one_event(K: int) -> None:
    """Scalar trajectory locking on the same noise: w_k > every rival iff u < gamma; and that happens gamma often."""
    generator = torch.Generator().manual_seed(K)
    N = 40_000
    eps = torch.randn(N, K, generator=generator, dtype=torch.float64)
    k = torch.randint(K - 1, (N,), generator=generator)
    duality = GaussianDuality(K)
    u = duality.u_of_noise(eps, k)
    for gamma in (0.004, 0.2, 0.5, 0.95):
        w = duality.latent(eps, k, duality.calibrate(gamma, signed=True))
        by_hand = (w.argmax(-1) == k) & (w.topk(2).values.diff().squeeze(-1) < 0)
        survives = duality.project(w, k)
        assert torch.equal(survives, by_hand)
        assert torch.equal(survives, u < gamma)
        assert abs(float(survives.double().mean()) - gamma) < 4 * (gamma * (1 - gamma) / N) ** 0.5
    spread = (u.sort().values - (torch.arange(N) + 0.5) / N).abs().max()
    assert float(spread) < 2.0 / N**0.5  # Kolmogorov's bound for a uniform law; exceeded once in 1,500 times


def test_a_tie_does_not_survive() -> None:
    duality = GaussianDuality(3)
    w = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.5, 0.0], [0.0, 0.5, 1.0]])
    assert duality.project(w, 0).tolist() == [False, True, False]
    assert duality.project(w, torch.tensor([1, 0, 2])).tolist() == [False, True, True]


def test_u_stays_below_one() -> None:
    """At gamma = 1 (t = 0) every token is visible, however extreme its noise."""
    assert float(GaussianDuality(3).u_of_noise(torch.tensor([-30.0, 30.0, 0.0]), 0)) < 1


def test_mistakes_are_refused_in_one_line() -> None:
    duality = GaussianDuality(50258)
    with pytest.raises(UserError, match=r"K >= 2.*not 1"):
        GaussianDuality(1)
    for gamma in (0.0, 1.0, -0.1, 1.5, float("nan")):
        with pytest.raises(UserError, match=r"inside \(0, 1\)"):
            duality.inverse(torch.tensor([0.5, gamma]))
    with pytest.raises(UserError, match=r"below 1/K.*F_Y\(0\) = 1/K.*signed=True"):
        duality.calibrate(1e-5)
    with pytest.raises(UserError, match="K = 50258 states"):
        duality.project(torch.zeros(4, 7), 0)
    with pytest.raises(UserError, match=r"0\.\.50257"):
        duality.u_of_noise(torch.zeros(2, 50258), torch.tensor([1, 50258]))
