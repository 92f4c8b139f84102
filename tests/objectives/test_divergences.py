"""Divergences and their slopes against autograd on formulas written another way, in float64."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.distributions import Categorical, kl_divergence

from unmask.core.streams import stream
from unmask.models.denoiser import MASK_LOGIT
from unmask.objectives.divergences import DIVERGENCES, compare, cross_entropy, point_mass

V, MASK = 7, 4
KEPT = [v for v in range(V) if v != MASK]


def jsd(p: Categorical, q: Categorical) -> torch.Tensor:
    m = Categorical(probs=(p.probs + q.probs) / 2)
    return (kl_divergence(p, m) + kl_divergence(q, m)) / 2


FORMULAS = {
    "reverse": kl_divergence,
    "forward": lambda p, q: kl_divergence(q, p),
    "jsd": jsd,
    "tvd": lambda p, q: (p.probs - q.probs).clamp(min=0).sum(-1),
}


def tables(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two tables of logits in which the mask is ruled out."""
    logits, target = 2 * torch.randn(2, rows, V, generator=stream(0), dtype=torch.float64)
    logits[:, MASK] = target[:, MASK] = MASK_LOGIT
    return logits, target


@pytest.mark.parametrize("name", DIVERGENCES)
@pytest.mark.parametrize("tau", [1.0, 0.7])
def test_a_divergence_and_its_slope(name, tau):
    logits, target = tables(50)
    logits.requires_grad_()
    expected = FORMULAS[name](Categorical(logits=logits[:, KEPT]), Categorical(logits=target[:, KEPT] / tau))
    found = compare(DIVERGENCES[name], logits.detach(), target, tau)
    assert torch.allclose(found.loss_C, expected, atol=1e-12)
    assert torch.allclose(found.slope_CV, torch.autograd.grad(expected.sum(), logits)[0], atol=1e-12)
    assert bool((found.slope_CV[:, MASK] == 0).all())


@pytest.mark.parametrize("name", DIVERGENCES)
def test_a_divergence_of_a_law_from_itself_is_zero_and_pulls_nowhere(name):
    logits, _ = tables(5)
    found = compare(DIVERGENCES[name], logits, logits, 1.0)
    assert float(found.loss_C.abs().max()) < 1e-14
    assert float(found.slope_CV.abs().max()) < 1e-14


def test_divergences_of_laws_that_share_nothing_are_finite():
    """Jensen-Shannon is log 2 and total variation 1; a KL stands at the 1e6 that means log 0."""
    one, other = (point_mass(torch.tensor([token]), torch.zeros(1, V)) for token in (1, 2))
    found = {name: compare(divergence, one, other, 1.0) for name, divergence in DIVERGENCES.items()}
    assert float(found["jsd"].loss_C) == pytest.approx(math.log(2))
    assert float(found["tvd"].loss_C) == 1
    assert float(found["reverse"].loss_C) == float(found["forward"].loss_C) == -MASK_LOGIT


def test_cross_entropy_and_its_slope():
    logits, _ = tables(6)
    logits.requires_grad_()
    expected = F.cross_entropy(logits[:, KEPT], torch.arange(6), reduction="none")
    found = cross_entropy(logits.detach(), torch.tensor(KEPT))
    assert torch.allclose(found.loss_C, expected, atol=1e-12)
    assert torch.allclose(found.slope_CV, torch.autograd.grad(expected.sum(), logits)[0], atol=1e-12)


def test_forward_kl_from_a_revealed_token_is_its_cross_entropy():
    """Exactly, and so is its slope: hence KL-Fwd over all positions is forward KL plus cross-entropy."""
    logits, _ = tables(6)
    token = torch.tensor(KEPT)
    forward = compare(DIVERGENCES["forward"], logits, point_mass(token, logits), 1.0)
    hard = cross_entropy(logits, token)
    assert torch.equal(forward.loss_C, hard.loss_C)
    assert torch.allclose(forward.slope_CV, hard.slope_CV, atol=1e-15)


def test_reverse_kl_from_a_revealed_token_is_a_million_times_the_doubt():
    """KL(student || point mass) = (1 - p(token)) 1e6 - entropy: why the ablation's KL-Bwd failed."""
    logits, _ = tables(6)
    law = Categorical(logits=logits[:, KEPT])
    backward = compare(DIVERGENCES["reverse"], logits, point_mass(torch.tensor(KEPT), logits), 1.0)
    doubt = 1 - law.probs.diagonal()
    assert torch.allclose(backward.loss_C, doubt * -MASK_LOGIT - law.entropy(), rtol=1e-12)
    assert float(backward.loss_C.min()) > 1e5
