"""The uniform process: against Duo's own functions, against direct Gaussian draws, and against exact sums on toys."""

from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.small import reference_of

from unmask.core.errors import UserError
from unmask.metrics.elbo import process_elbo_of
from unmask.processes import Masked, States, Uniform
from unmask.processes.gaussian import GaussianDuality
from unmask.processes.schedule import Cosine, LogLinear
from unmask.processes.uniform import argmax_of, kept, log_posterior, rate_of_nelbo

F64 = torch.float64


@pytest.fixture(scope="module")
def reference():
    """What Duo's own functions gave (see meta in the file), a table with a row a token."""
    found = reference_of(Path("tests/assets/published/duo"))
    rows = ("nll_x0", "nll_xt", "nll_alpha_t", "nll_dalpha_t", "post_alpha_s", "post_alpha_t")
    return found | {key: found[key].expand(6, 8).flatten() for key in rows}


def rate(logits, x0, z, alpha, slope, K, dtype=F64):
    beta = 1 - alpha
    return rate_of_nelbo(logits.to(dtype), x0, z, alpha, beta, K * alpha / beta, -slope)


def test_the_nelbo_is_duos(reference):
    """In float32 it keeps 5 digits where Duo's own form keeps 2 of the smallest values."""
    of = [reference[f"nll_{name}"] for name in ("x0", "xt", "alpha_t", "dalpha_t")]
    exact = reference["nll_per_token_f64"].flatten()
    for dtype, close in ((F64, 1e-10), (torch.float32, 1e-5)):
        loss, _ = rate(reference["nll_logits"].flatten(0, 1), *of, 61, dtype)
        assert loss.dtype == dtype
        torch.testing.assert_close(loss.double(), exact, rtol=close, atol=0)
    theirs = reference["nll_per_token_f32"].flatten().double()
    assert float(((theirs - exact) / exact).abs().max()) > 1e-3


def test_the_posterior_is_duos(reference):
    z, a_s, a_t = (reference[name] for name in ("nll_xt", "post_alpha_s", "post_alpha_t"))
    assert bool((a_s == 1).any())
    law = log_posterior(reference["nll_logits"].flatten(0, 1).log_softmax(-1), z, a_s, a_t).exp()
    torch.testing.assert_close(law, reference["posterior_theta_f64"].flatten(0, 1), rtol=1e-12, atol=1e-15)
    sure = torch.nn.functional.one_hot(reference["nll_x0"], 61).double().log()
    law = log_posterior(sure, z, a_s, a_t).exp()
    torch.testing.assert_close(law, reference["posterior_x0_f64"].flatten(0, 1), rtol=1e-12, atol=1e-15)


def test_the_calibration_is_duos(reference):
    for n, K in enumerate(reference["alpha_K"].tolist()):
        found = GaussianDuality(K).uniform(reference["alpha_gamma"])
        torch.testing.assert_close(found.alpha, reference["alpha_alpha"][n], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(found.slope, reference["alpha_dalpha_dgamma"][n], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(kept(found.alpha, K), reference["alpha_P"][n], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(found.alpha + found.beta, torch.ones(9, dtype=F64), rtol=1e-15, atol=0)


def test_the_schedule_is_duos(reference):
    t = reference["loglinear_t"].double()
    torch.testing.assert_close(LogLinear().gamma(t), reference["loglinear_alpha"].double(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(Uniform().condition(t), reference["loglinear_sigma"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("K", [3, 5])
def test_two_numbers_say_what_the_argmax_of_one_gaussian_noise_says_at_two_times(K):
    """The joint law of (z_s, z_t): against a hundred thousand draws of all K Gaussians, and against its closed form."""
    n, x, duality = 100_000, 1, GaussianDuality(K)
    alpha_ts = torch.tensor([0.35, 0.7], dtype=F64)
    keep_ts = kept(alpha_ts, K)
    generator = torch.Generator().manual_seed(K)
    eps = torch.randn(n, K, generator=generator, dtype=F64)
    ratio_ts = duality.inverse(keep_ts)  # alpha~/sigma~ of the latent at the two times
    direct = [(eps + ratio * torch.nn.functional.one_hot(torch.tensor(x), K)).argmax(-1) for ratio in ratio_ts]
    noise = torch.rand(n, 2, generator=generator, dtype=F64)
    ours = [argmax_of(torch.full((n,), x), noise, keep, K) for keep in keep_ts]
    law = torch.zeros(K, K, dtype=F64)  # of (z_t, z_s): s is nearer to clean, so that t's own tokens are s's too
    law[x, x] = keep_ts[0]
    for rival in set(range(K)) - {x}:
        law[rival, x], law[rival, rival] = (keep_ts[1] - keep_ts[0]) / (K - 1), (1 - keep_ts[1]) / (K - 1)
    assert float(law.sum()) == pytest.approx(1, abs=1e-12)
    for z_t, z_s in (direct, ours):
        count = torch.bincount(z_t * K + z_s, minlength=K * K).double().view(K, K)
        assert bool((count[law == 0] == 0).all())
        chi = ((count - n * law)[law > 0] ** 2 / (n * law[law > 0])).sum()
        freedom = float((law > 0).sum() - 1)
        assert float(torch.special.gammaincc(torch.tensor(freedom / 2).double(), chi / 2)) > 1e-3
    # and draw by draw: the locked u of the same eps says when it is lost, its largest rival what it becomes
    rival = eps.scatter(-1, torch.full((n, 1), x), -torch.inf).argmax(-1)
    u = duality.u_of_noise(eps, x)
    for z, keep in zip(direct, keep_ts, strict=True):
        assert torch.equal(z, torch.where(u < keep, x, rival))


def test_views_of_one_noise_have_the_marginals_of_both_times_and_nest():
    states, generator = States(7, None), torch.Generator().manual_seed(0)
    process, x0_BL = Uniform(Cosine()), torch.randint(7, (40, 500), generator=generator)
    s_B, t_B = (torch.full((40,), time, dtype=F64) for time in (0.4, 0.7))
    noise = process.noise(torch.rand(40, 500, generator=generator, dtype=F64), states, generator)
    pair = process.couple(x0_BL, noise, s_B, t_B, states)
    for z, time in ((pair.z_s, s_B), (pair.z_t, t_B)):
        keep = float(kept(process.schedule.gamma(time[0]), 7))
        assert float((z == x0_BL).double().mean()) == pytest.approx(keep, abs=4 * (keep * (1 - keep) / 20_000) ** 0.5)
    moved = pair.z_s != x0_BL
    assert torch.equal(pair.z_s[moved], pair.z_t[moved])
    assert bool(pair.distil.all())
    assert not bool(pair.reconstruct.any())
    with pytest.raises(UserError, match="s <= t"):
        process.couple(x0_BL, noise, t_B, s_B, states)


@pytest.mark.parametrize("K", [2, 3, 5])
def test_the_posterior_is_bayes_rule_and_leads_back_to_the_marginal(K):
    process, states = Uniform(), States(K, None)
    s, t = torch.tensor(0.3, dtype=F64), torch.tensor(0.8, dtype=F64)
    a_s, a_t = (float(process.schedule.gamma(time)) for time in (s, t))
    p = torch.rand(K, generator=torch.Generator().manual_seed(K), dtype=F64)
    p /= p.sum()

    def q(to, start, alpha):
        return alpha * (to == start) + (1 - alpha) / K

    law_zv = process.posterior(p.log().expand(K, K), torch.arange(K), s, t, states).exp()
    for z, v in product(range(K), range(K)):
        # p is the law of x before z was seen at this position
        joint = [float(p[x]) * q(v, x, a_s) * q(z, v, a_t / a_s) for x in range(K)]
        exact = sum(joint) / sum(float(p[x]) * q(z, x, a_t) for x in range(K))
        assert float(law_zv[z, v]) == pytest.approx(exact, rel=1e-12)
    x = 1  # known: the chain's law at s is q(z_s | x)
    sure = torch.nn.functional.one_hot(torch.tensor(x), K).double().log().expand(K, K)
    back_zv = process.posterior(sure, torch.arange(K), s, t, states).exp()
    at_t = torch.tensor([q(z, x, a_t) for z in range(K)], dtype=F64)
    at_s = torch.tensor([q(v, x, a_s) for v in range(K)], dtype=F64)
    torch.testing.assert_close(at_t @ back_zv, at_s, rtol=1e-12, atol=0)


@pytest.mark.parametrize("K", [3, 10, 50])
def test_the_nelbo_is_the_sum_of_the_kls_of_ever_shorter_steps(K):
    """E over z of the integral over t, by Gauss-Legendre, is the limit of N exact KLs: their gap falls with 1/N."""
    process, states = Uniform(LogLinear(0.01)), States(K, None)
    generator = torch.Generator().manual_seed(K)
    logits, x = torch.randn(K, generator=generator, dtype=F64), 1
    z_K = torch.arange(K)
    sure = torch.nn.functional.one_hot(torch.tensor(x), K).double().log().expand(K, K)
    low, high = 0.25, 0.75

    def at(t):
        """The integrand at t, in expectation over z_t."""
        alpha = process.schedule.gamma(t)
        law_K = alpha * (z_K == x) + (1 - alpha) / K
        slope = process.schedule.derivative(t).expand(K)
        return law_K @ rate(logits.expand(K, K), torch.full((K,), x), z_K, alpha.expand(K), slope, K)[0]

    def step(t, s):
        """KL(q(z_s | z_t, x) || q(z_s | z_t)) in expectation over z_t."""
        alpha = process.schedule.gamma(t)
        law_K = alpha * (z_K == x) + (1 - alpha) / K
        exact, found = (process.posterior(p, z_K, s, t, states) for p in (sure, logits.log_softmax(-1).expand(K, K)))
        return law_K @ (exact.exp() * (exact - found)).sum(-1)

    node, weight = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(24))
    whole = (
        (high - low)
        / 2
        * sum(w * at((high + low) / 2 + (high - low) / 2 * n) for n, w in zip(node, weight, strict=True))
    )
    sums = []
    for N in (400, 800):
        times = torch.linspace(low, high, N + 1, dtype=F64)
        sums.append(float(sum(step(t, s) for s, t in pairwise(times))))
    assert sums[1] == pytest.approx(float(whole), rel=5e-3)
    assert 2 * sums[1] - sums[0] == pytest.approx(float(whole), rel=2e-5)  # Richardson: the gap is c/N


@pytest.mark.parametrize("K", [3, 50])
def test_the_hand_written_slope_is_the_derivative(K):
    generator = torch.Generator().manual_seed(0)
    C = 12
    logits = (3 * torch.randn(C, K, generator=generator, dtype=F64)).requires_grad_(True)
    x, z = (torch.randint(K, (C,), generator=generator) for _ in range(2))
    z[: C // 2] = x[: C // 2]
    alpha = torch.linspace(0.002, 0.998, C, dtype=F64)
    of = (x, z, alpha, torch.full((C,), -0.999, dtype=F64), K)
    (by_autograd,) = torch.autograd.grad(rate(logits, *of)[0].sum(), logits)
    slope = rate(logits.detach(), *of)[1]
    torch.testing.assert_close(slope, by_autograd, rtol=1e-9, atol=1e-9)
    h = 1e-5
    for j in range(3):
        bump = torch.nn.functional.one_hot(torch.tensor(j), K) * h
        up, down = (rate(logits.detach() + sign * bump, *of)[0] for sign in (1, -1))
        torch.testing.assert_close((up - down) / (2 * h), slope[:, j], rtol=1e-5, atol=1e-5)


def test_with_many_states_and_no_wrong_token_the_nelbo_is_that_of_masked_diffusion():
    """K to infinity with p_z = 0: only positions that have moved count, each with -log p(x) / t."""
    for K, close in ((10**4, 2e-3), (10**6, 2e-5)):
        logits = torch.full((2, K), -torch.inf, dtype=F64)
        logits[:, 7:10] = torch.tensor([1.0, 2.0, 0.5], dtype=F64)
        t = torch.tensor([0.3, 0.8], dtype=F64)
        schedule = LogLinear()
        x, z = torch.tensor([8, 9]), torch.tensor([100, 200])
        loss, _ = rate(logits, x, z, schedule.gamma(t), schedule.derivative(t), K)
        nll = -logits.log_softmax(-1).gather(-1, x[:, None])[:, 0]
        torch.testing.assert_close(loss, nll * schedule.elbo_weight(t), rtol=20 * close, atol=0)


class Flat:
    """A Denoiser that knows nothing but how often each token occurs; it is given sigma = -log alpha."""

    vocab_size, length, mask_id = 5, 4, None

    def __init__(self, p_V):
        self.log_p_V = p_V.log()

    def features(self, z, time):
        assert torch.equal(time, self.process.condition(self.t_B))
        return self.log_p_V.expand(*z.shape, 5)

    def logits(self, h):
        return h


@pytest.mark.parametrize("eps", [1e-6, 0.5])
def test_the_nelbo_of_independent_tokens_is_their_entropy(eps):
    """For independent tokens the law that ignores all it sees is exact: its NELBO is the mean -log p of a text. Where
    the schedule ends early, what z_1 then is counts against it."""
    p_V = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05], dtype=F64)
    process, states, B = Uniform(LogLinear(eps)), States(5, None), 60_000
    generator = torch.Generator().manual_seed(2)
    model = Flat(p_V)
    x0_BL = torch.multinomial(p_V, B * 4, replacement=True, generator=generator).view(B, 4)
    t_B = (torch.randperm(B, generator=generator) + torch.rand(B, generator=generator, dtype=F64)).clamp(min=1e-9) / B
    model.t_B, model.process = t_B, process
    noise = process.noise(torch.rand(B, 4, generator=generator, dtype=F64), states, generator)
    nats_B = 4 * process_elbo_of(model, process, x0_BL, noise, t_B).double()
    entropy = -4 * float((p_V * p_V.log()).sum())
    end_V = eps * p_V + (1 - eps) / 5  # what z_1 is, where it should be even
    exact = entropy + 4 * float((end_V * (5 * end_V).log()).sum())
    assert float(nats_B.mean()) == pytest.approx(exact, abs=4 * float(nats_B.std()) / B**0.5)
    assert exact > entropy - 1e-12


def test_a_mask_has_no_place():
    with pytest.raises(UserError, match="needs a model without a mask state"):
        Uniform().prior(4, States(8, 7), torch.Generator())
    assert Masked().name != Uniform().name
