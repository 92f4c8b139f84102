"""How far a predicted law is from its target, position by position, with its slope: the derivative by the logits.

Slopes are written by hand because autograd keeps several tables of N x V for what needs one, and because a loss that
brings its slope along can be computed piece by piece and let go (head_loss.py). With p = softmax(logits)
and f a function of p, the slope is p (g - sum p g) where g = df/dp.

Shapes: N or C chosen positions, V = K states, the mask included (or more columns, all ruled out).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from unmask.models.denoiser import MASK_LOGIT


class Scored(NamedTuple):
    """The loss of each position (at least float32), and its derivative by that position's logits."""

    loss_C: Tensor
    slope_CV: Tensor


Divergence = Callable[[Tensor, Tensor], Scored]  # of the student's log-probabilities and the target's


def at_least_float32(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def reverse_kl(log_p_CV: Tensor, log_q_CV: Tensor) -> Scored:
    """KL(p || q) of student p and target q: the equation of MCD. g = log p/q (+ 1)."""
    p_CV = log_p_CV.exp()
    ratio_CV = log_p_CV - log_q_CV
    loss_C = (p_CV * ratio_CV).sum(-1)
    return Scored(loss_C, p_CV * (ratio_CV - loss_C[:, None]))


def forward_kl(log_p_CV: Tensor, log_q_CV: Tensor) -> Scored:
    """KL(q || p). The slope is p - q."""
    q_CV = log_q_CV.exp()
    loss_C = (q_CV * (log_q_CV - log_p_CV)).sum(-1)
    return Scored(loss_C, log_p_CV.exp() - q_CV)


def jensen_shannon(log_p_CV: Tensor, log_q_CV: Tensor) -> Scored:
    """(KL(p || m) + KL(q || m)) / 2 with m = (p + q)/2; at most log 2. g = log(p/m) / 2."""
    p_CV = log_p_CV.exp()
    log_m_CV = torch.logaddexp(log_p_CV, log_q_CV) - math.log(2)
    p_over_m_CV = log_p_CV - log_m_CV
    from_p_C = (p_CV * p_over_m_CV).sum(-1) / 2
    from_q_C = (log_q_CV.exp() * (log_q_CV - log_m_CV)).sum(-1) / 2
    return Scored(from_p_C + from_q_C, p_CV * (p_over_m_CV / 2 - from_p_C[:, None]))


def total_variation(log_p_CV: Tensor, log_q_CV: Tensor) -> Scored:
    """sum |p - q| / 2, at most 1. g = sign(p - q) / 2."""
    p_CV = log_p_CV.exp()
    gap_CV = p_CV - log_q_CV.exp()
    g_CV = gap_CV.sign() / 2
    return Scored((gap_CV * g_CV).sum(-1), p_CV * (g_CV - (p_CV * g_CV).sum(-1, keepdim=True)))


DIVERGENCES = {"reverse": reverse_kl, "forward": forward_kl, "jsd": jensen_shannon, "tvd": total_variation}


def compare(divergence: Divergence, logits_CV: Tensor, target_CV: Tensor, tau: float) -> Scored:
    """A divergence of softmax(logits) from softmax(target / tau); states that are ruled out have MASK_LOGIT in both."""
    log_p_CV = at_least_float32(logits_CV).log_softmax(-1)
    log_q_CV = (at_least_float32(target_CV) / tau).log_softmax(-1)
    loss_C, slope_CV = divergence(log_p_CV, log_q_CV)
    return Scored(loss_C, slope_CV.to(logits_CV.dtype))


def cross_entropy(logits_CV: Tensor, token_C: Tensor) -> Scored:
    """-log p(token); the slope is p - onehot."""
    log_p_CV = at_least_float32(logits_CV).log_softmax(-1)
    loss_C = -log_p_CV.gather(-1, token_C[:, None])[:, 0]
    slope_CV = log_p_CV.exp_().scatter_add_(-1, token_C[:, None], torch.full_like(loss_C, -1)[:, None])
    return Scored(loss_C, slope_CV.to(logits_CV.dtype))


def point_mass(token_C: Tensor, like_CV: Tensor) -> Tensor:
    """The carry-over rule where a teacher sees the token: log-probability 0 there, MASK_LOGIT everywhere else."""
    return torch.full_like(like_CV, MASK_LOGIT).scatter_(-1, token_C[:, None], 0.0)


def by_autograd(loss: Callable[[Tensor], Tensor], logits_CV: Tensor) -> Scored:
    """A loss without a slope of its own, differentiated here: several tables of C x V, for losses that nobody tuned."""
    with torch.enable_grad():
        leaf_CV = at_least_float32(logits_CV).detach().requires_grad_(True)
        loss_C = loss(leaf_CV)
        (slope_CV,) = torch.autograd.grad(loss_C.sum(), leaf_CV)
    return Scored(loss_C.detach(), slope_CV.to(logits_CV.dtype))
