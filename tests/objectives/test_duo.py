"""Duo's curriculum: the exact law of its soft input in few numbers, and its loss, against direct Gaussian draws."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from unmask.core.errors import UserError
from unmask.core.streams import stream
from unmask.models.denoiser import states_of
from unmask.objectives.duo import Duo, SoftStart
from unmask.objectives.elbo import MDLM
from unmask.processes import Masked, Uniform
from unmask.processes.gaussian import GaussianDuality
from unmask.processes.soft import largest, signal_and_noise, uniforms_for
from unmask.processes.uniform import kept, rate_of_nelbo

F64 = torch.float64
FORMS = {"largest": 4, "all": 0}


def soft(top: int = 4, tau: float = 1e-3, **settings) -> Duo:
    return Duo(soft=SoftStart(soft_steps=10, soft_tau=tau, soft_top=top, **settings))


@pytest.fixture
def student(random_dit):
    return random_dit(0, vocab_size=11, time=True)


def direct(x: int, n: int, noise: float, K: int, generator) -> tuple[Tensor, Tensor]:
    """All coordinates of the latent in falling order, and their names."""
    alpha, sigma = signal_and_noise(torch.tensor(noise, dtype=F64))
    w = sigma * torch.randn(n, K, generator=generator, dtype=F64)
    w[:, x] += alpha
    return w.sort(-1, descending=True)


def drawn(x: int, n: int, noise: float, k: int, K: int, generator) -> tuple[Tensor, Tensor]:
    uniform = torch.rand(1, n, uniforms_for(k, K), generator=generator, dtype=F64)
    w, ids = largest(torch.full((1, n), x), torch.tensor([noise], dtype=F64), uniform, k, K)
    return w[0], ids[0]


@pytest.mark.parametrize(("k", "K"), [(2, 6), (3, 6), (6, 6), (2, 2)])
def test_the_largest_coordinates_have_the_law_of_direct_draws(k, K):
    """Their order of names by a two-sample chi-square; each one's size, and the softmax's first weight, by KS."""
    n, x, noise, generator = 40_000, 1, -0.5, torch.Generator().manual_seed(100 + k + K)
    theirs, ours = direct(x, n, noise, K, generator), drawn(x, n, noise, k, K, generator)
    assert bool((ours[1].sort(-1).values.diff(dim=-1) > 0).all())  # no name twice
    code = [(ids[:, : min(k, 3)] * K ** torch.arange(min(k, 3))).sum(1) for ids in (theirs[1], ours[1])]
    table = torch.stack([torch.bincount(one, minlength=K**3) for one in code]).double()
    table = table[:, table.sum(0) > 0]
    assert stats.chi2_contingency(table.numpy()).pvalue > 1e-3
    for place in range(k):
        assert stats.ks_2samp(theirs[0][:, place].numpy(), ours[0][:, place].numpy()).pvalue > 1e-3
    first = [(w[:, :k] / 0.3).softmax(-1)[:, 0].numpy() for w in (theirs[0], ours[0])]
    assert stats.ks_2samp(*first).pvalue > 1e-3


def test_the_own_token_is_kept_as_often_as_it_is_largest_not_as_often_as_it_is_among_the_largest():
    """At Duo's vocabulary: .360 where the public code's draw of two has .441."""
    K, noise, n = 50257, -2.7, 200_000
    _, ids = drawn(7, n, noise, 2, K, torch.Generator().manual_seed(0))
    exact = float(kept(GaussianDuality(K).uniform(noise).alpha, K))
    assert exact == pytest.approx(0.360, abs=5e-4)
    assert float((ids[:, 0] == 7).double().mean()) == pytest.approx(exact, abs=4 * (exact * (1 - exact) / n) ** 0.5)
    assert float((ids == 7).any(-1).double().mean()) == pytest.approx(0.441, abs=5e-3)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_read_has_the_mean_of_direct_draws(form, student):
    """softmax(w / tau) E, with a tau at which many states count; the largest are then all of them."""
    duo, n, noise, tau = soft(FORMS[form] and 11, tau=0.5), 4000, -1.0, 0.5
    batch = _Rows(torch.full((n // 400, 400), 3), 0, n // 400)
    read, z = duo._read(student, batch, torch.full((n // 400,), noise, dtype=F64), stream(1, form))
    w, ids = direct(3, n, noise, 11, stream(2))
    law = torch.zeros(n, 11, dtype=F64).scatter(-1, ids, (w / tau).softmax(-1))
    expected = law @ student.embedding.weight
    spread = (expected.std(0) / n**0.5) * 2**0.5
    assert bool(((read.flatten(0, 1).mean(0) - expected.mean(0)).abs() < 4 * spread).all())
    count = torch.stack([torch.bincount(one.flatten(), minlength=11) for one in (z, ids[:, 0])])
    assert stats.chi2_contingency(count.numpy()).pvalue > 1e-3


class _Rows:
    def __init__(self, tokens_BL: Tensor, start: int, total: int) -> None:
        self.tokens_BL, self.start, self.total = tokens_BL, start, total


@pytest.mark.parametrize("form", FORMS)
def test_as_tau_falls_the_loss_becomes_that_of_the_argmax_at_the_same_times(form, student, text, monkeypatch):
    """The discrete loss is computed here, from z and the calibration alone."""
    seen = {}
    own = Duo._read

    def noted(self, student, batch, noise_B, generator):
        read, z = own(self, student, batch, noise_B, generator)
        seen.update(z=z, noise=noise_B)
        return read, z

    monkeypatch.setattr(Duo, "_read", noted)
    gaps = []
    for tau in (0.3, 1e-3, 1e-12):
        output = soft(FORMS[form] and 11, tau)(student, text, step=9, generator=stream(4))
        K, x0, z = 11, text.tokens_BL, seen["z"]
        at = GaussianDuality(K).uniform(seen["noise"])
        first, last = (
            -2 * GaussianDuality(K).inverse(kept(torch.tensor(a).double(), K)).log() for a in (0.9455, 0.0493)
        )
        logits = student.logits(student.features(z, time=-at.alpha.log()))
        numbers = [v[:, None].expand(z.shape).flatten() for v in (at.alpha, at.beta, K * at.alpha / at.beta)]
        speed = (-(last - first) * at.slope)[:, None].expand(z.shape).flatten()
        exact, _ = rate_of_nelbo(logits.flatten(0, 1), x0.flatten(), z.flatten(), *numbers, speed)
        gaps.append(float((output.loss_BL.flatten() - exact).detach().abs().max()))
    assert gaps[0] > 0.05
    assert gaps[2] < 1e-5 * float(exact.detach().max())
    assert gaps[1] < gaps[0]


def test_the_mean_of_the_loss_is_the_nelbo_between_the_windows_ends(student):
    """Where tau is 0, by quadrature over alpha: no noise of the latent and no clock is left in it."""
    n, x, K = 60_000, 3, 11
    with torch.no_grad():
        for name, weight in student.named_parameters():
            weight.zero_() if name != "head.linear.bias" else weight.copy_(torch.linspace(-1, 1, K))
    batch = _Rows(torch.full((n // 6, 6), x), 0, n // 6)
    with torch.no_grad():
        found = soft(2, 1e-9)(student, batch, step=0, generator=stream(5)).loss_BL.double().flatten()
    node, weight = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(40))
    low, high = 0.0493, 0.9455
    alpha = (high + low) / 2 + (high - low) / 2 * node
    logits = student.head.linear.bias.detach().expand(K, K)
    whole = 0.0
    for a, share in zip(alpha, (high - low) / 2 * weight, strict=True):
        law = a * (torch.arange(K) == x) + (1 - a) / K
        numbers = [torch.full((K,), float(v)) for v in (a, 1 - a, K * a / (1 - a), 1.0)]
        whole += float(share * (law @ rate_of_nelbo(logits, torch.full((K,), x), torch.arange(K), *numbers)[0]))
    assert float(found.mean()) == pytest.approx(whole, abs=4 * float(found.std()) / n**0.5)


@pytest.mark.parametrize("form", FORMS)
def test_its_gradient_is_that_of_finite_differences(form, student, text, step_of):
    """Also where the softmax over all states is drawn again in the backward pass."""
    duo, generator = soft(FORMS[form], 0.2), torch.Generator().manual_seed(0)

    def loss():
        return step_of(student, duo(student, text, step=0, generator=stream(6)))

    gradient = loss().gradient
    way = torch.randn(gradient.shape, generator=generator, dtype=F64)
    start = torch.nn.utils.parameters_to_vector(student.parameters()).detach()
    values = []
    for h in (1e-4, -1e-4):
        torch.nn.utils.vector_to_parameters(start + h * way, student.parameters())
        values.append(float(loss().loss))
    assert float(gradient @ way) == pytest.approx((values[0] - values[1]) / 2e-4, rel=1e-3)


@pytest.mark.parametrize("form", FORMS)
def test_parts_of_a_batch_give_what_the_whole_gives(form, student, text):
    duo = soft(FORMS[form])
    whole = duo(student, text, step=0, generator=stream(7)).loss_BL
    parts = [duo(student, text.part(*ends), step=0, generator=stream(7)).loss_BL for ends in ((0, 2), (2, 6))]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-6, atol=1e-9)


def test_it_needs_no_table_of_positions_and_states(random_dit, largest):
    """Neither form, nor the loss: nothing as large as B x L x K is ever made."""
    student = random_dit(0, torch.float32, vocab_size=2000, length=40, time=True)
    batch = _Rows(torch.randint(2000, (30, 40)), 0, 30)
    for top, bound in ((6, 1 << 20), (0, 1 << 20)):
        with largest() as most:
            soft(top)(student, batch, step=0, generator=stream(8)).loss_BL.sum().backward()
        assert most.size <= bound < 30 * 40 * 2000


def test_after_its_steps_it_is_the_nelbo(student, text):
    found = soft()(student, text, step=10, generator=stream(9)).loss_BL
    assert torch.equal(found, MDLM(Uniform())(student, text, step=10, generator=stream(9)).loss_BL)
    assert states_of(student).mask is None


def test_what_cannot_be_is_said(student, text, random_dit):
    for settings, message in (
        ({"soft_steps": -1}, "at least 0"),
        ({"soft_window": (0.1, 0.9)}, "two shares, falling"),
        ({"soft_tau": 0.0}, "above 0"),
        ({"soft_top": 1}, "2 or more, or 0 for all"),
    ):
        with pytest.raises(UserError, match=message):
            SoftStart(**settings)
    with pytest.raises(UserError, match="duo is for the uniform process"):
        Duo(Masked())
    with pytest.raises(UserError, match="how many steps"):
        Duo(soft=SoftStart())
    with pytest.raises(UserError, match="without a mask state"):
        soft()(random_dit(0), text, step=10, generator=stream(0))
    prompts = replace(text)
    object.__setattr__(prompts, "prompts_T", torch.ones(len(text.tokens_BL), dtype=torch.long))
    with pytest.raises(UserError, match="prompts are given to a masked process only"):
        soft()(student, prompts, step=0, generator=stream(0))
