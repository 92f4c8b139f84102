"""The uniform process: at time t a token is kept with probability alpha(t), else drawn evenly from all states. Duo's.

It is the other shadow of the Gaussian latent w = alpha~ onehot(x) + sigma~ eps (gaussian.py): z = argmax w, where the
masked process only asks whether w_x is largest. One eps is the noise of a position for all times. Two numbers are all
that its argmax ever uses of it:

    argmax w = x  iff  alpha~/sigma~ + eps_x > M = max over j != x of eps_j  iff  u < P(t), u = F_Y(Y), Y = M - eps_x
    else it is the rival j* that holds M, and that is the same rival at all times

u is uniform, and j* is uniform over the K - 1 rivals and independent of u: exchanging the rivals' names changes neither
M nor eps_x. So z_t = x where u < P(t), else j*, has exactly the joint law over all times of the argmax of one eps, and
no table of positions x K is needed. P(t) = alpha + (1 - alpha)/K: a token drawn evenly is x again once in K. It is the
same F_Y as the masked process's gamma.

A model's law p is, as in Duo, the law of x_0 before z_t is seen at that very position: `posterior` and the NELBO bring
what z_t says there.

Shapes: B sequences, L positions, M or C chosen positions, K = V states (W >= V columns: the rest is padding).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from unmask.core.devices import to_device
from unmask.core.errors import UserError
from unmask.processes.mixture import Mixture, uniform_mixture
from unmask.processes.process import Pair, States, View, check_order, per_sequence, register_process
from unmask.processes.schedule import LogLinear, Schedule


def kept(alpha: Tensor, K: int) -> Tensor:
    """P(z_t = x_0) = alpha + (1 - alpha)/K."""
    return alpha + (1 - alpha) / K


def argmax_of(x0_BL: Tensor, noise_BL2: Tensor, kept_BL: Tensor, K: int) -> Tensor:
    """z_t of noise (u, v), which is on the CPU: x_0 where u < P(t), else the rival that v names."""
    u_BL, v_BL = noise_BL2.unbind(-1)
    number_BL = to_device((v_BL * (K - 1)).long().clamp_(max=K - 2), x0_BL.device)
    return torch.where(to_device(u_BL < kept_BL, x0_BL.device), x0_BL, number_BL + (number_BL >= x0_BL))


def size_of(states: States) -> int:
    """K; a mask would be one of the states that a token turns into."""
    if states.mask is not None:
        raise UserError("the uniform process needs a model without a mask state, and this one has one: train a new one "
                        "with --process uniform, or leave the process out")  # fmt: skip
    return states.size


def log_posterior(log_p_MV: Tensor, z_M: Tensor, alpha_s: Tensor, alpha_t: Tensor) -> Tensor:
    """log q(z_s = v | z_t) by Bayes' rule, p the law of x_0 without z_t; alphas are scalars or (M,), alpha_s may be 1.

    q = [ (K a_t p_v + a_t/a_s - a_t) [v = z] + (a_s - a_t) p_v + (1 - a_t/a_s)(1 - a_s)/K ] / (K a_t p_z + 1 - a_t)
    """
    M, K = log_p_MV.shape
    a_s, a_t = (alpha.to(log_p_MV).expand(M)[:, None] for alpha in (alpha_s, alpha_t))
    p_z_M1 = log_p_MV.gather(-1, z_M[:, None]).exp()
    anywhere_M1 = (1 - a_t / a_s) * (1 - a_s) / K
    law_MV = torch.logaddexp(log_p_MV + (a_s - a_t).log(), anywhere_M1.log().expand(M, K))
    at_z_M1 = (K * a_t + a_s - a_t) * p_z_M1 + (a_t / a_s - a_t) + anywhere_M1
    return law_MV.scatter(-1, z_M[:, None], at_z_M1.log()) - (K * a_t * p_z_M1 + 1 - a_t).log()


def rate_of_nelbo(
    logits_CW: Tensor, x0_C: Tensor, z_C: Tensor, alpha_C: Tensor, beta_C: Tensor, kappa_C: Tensor, speed_C: Tensor
) -> tuple[Tensor, Tensor]:
    """Duo's Rao-Blackwellised NELBO of a position at one time, in nats per unit of time, and its slope by the logits.

    beta = 1 - alpha, kappa = K alpha / beta, speed = -d alpha/dt, p = softmax(logits), y = kappa p, l = log1p(y) (Duo's
    log(thetabar / beta)), S = sum_j l_j, Lambda = log1p(kappa), d = kappa (1 - p_x)/(1 + y_x):

        z != x:  speed [ (Lambda - l_x)/beta + (l_z - y_z/(1 + y_z))/(alpha beta) + (Lambda - S)/(K alpha) ]
        z  = x:  speed/(1 + kappa) [ d/beta + (d - log1p(d))/alpha + (Lambda - S)/(K alpha) ]

    These are Duo's sums with the terms that cancel taken out by hand: no term is far larger than the result.
    """
    logits = logits_CW.to(torch.promote_types(logits_CW.dtype, torch.float32))
    alpha, beta, kappa, speed = (value.to(logits)[:, None] for value in (alpha_C, beta_C, kappa_C, speed_C))
    x_C1, z_C1 = x0_C[:, None], z_C[:, None]
    same = x_C1 == z_C1
    log_p = logits.log_softmax(-1)
    p = log_p.exp()
    y = kappa * p
    inverse = 1 / (1 + y)
    S = y.log1p().sum(-1, keepdim=True)
    p_x, p_z, y_x, y_z = (part.gather(-1, place) for part in (p, y) for place in (x_C1, z_C1))
    in_x, in_z = 1 / (1 + y_x), 1 / (1 + y_z)
    d = -kappa * log_p.gather(-1, x_C1).expm1() * in_x
    full = kappa.log1p()
    rest = (full - S) / (kappa * beta)
    moved = (full - y_x.log1p()) / beta + (y_z.log1p() - y_z * in_z) / (alpha * beta) + rest
    stayed = d / beta + (d - d.log1p()) / alpha + rest
    speed = torch.where(same, speed / (1 + kappa), speed)
    loss = speed * torch.where(same, stayed, moved)
    # g = d loss / d p: a part that all states have, and one at x and at z
    everywhere = -speed / beta * inverse
    at_x = torch.where(same, 0.0, -speed * kappa / beta * in_x)
    at_z_moved = speed * kappa * y_z * in_z.square() / (alpha * beta)
    at_z = torch.where(same, speed * kappa * in_z / alpha * (1 - (1 + kappa) * in_z / beta), at_z_moved)
    mean = (p * everywhere).sum(-1, keepdim=True) + p_x * at_x + p_z * at_z
    # no scatter: compiled, all this is read off the logits in one pass
    state_W = torch.arange(logits.shape[1], device=logits.device)
    slope = p * (everywhere - mean) + torch.where(state_W == x_C1, p_x * at_x, 0.0)
    slope = slope + torch.where(state_W == z_C1, p_z * at_z, 0.0)
    return loss[:, 0], slope.to(logits_CW.dtype)


@register_process
@dataclass(frozen=True)
class Uniform:
    """Uniform-state diffusion: Duo.

    Args:
        schedule: alpha(t), the probability that a token has not been drawn anew at time t
    """

    schedule: Schedule = field(default_factory=LogLinear)

    name: ClassVar[str] = "uniform"
    by_plan: ClassVar[bool] = False

    def condition(self, t: Tensor) -> Tensor:
        """sigma = -log alpha: a text does not show how noisy it is."""
        return -self.schedule.gamma(t.double()).log().float()

    def prior(self, length: int, states: States, generator: torch.Generator) -> Tensor:
        return torch.randint(size_of(states), (length,), generator=generator)

    def noise(self, u_BL: Tensor, states: States, generator: torch.Generator) -> Tensor:
        """(u, v): u says until when a token is kept, v which rival it becomes."""
        return torch.stack([u_BL, torch.rand(u_BL.shape, generator=generator, dtype=u_BL.dtype)], dim=-1)

    def corrupt(self, x0_BL: Tensor, noise_BL: Tensor, t_B: Tensor, states: States) -> Tensor:
        """z_t = argmax(alpha~ x_0 + sigma~ eps)."""
        K = size_of(states)
        kept_BL = per_sequence(kept(self.schedule.gamma(t_B), K), noise_BL[..., 0])
        return argmax_of(x0_BL, noise_BL, kept_BL, K)

    def couple(self, x0_BL: Tensor, noise_BL: Tensor, s_B: Tensor, t_B: Tensor, states: States) -> Pair:
        """Two times of one noise. Every position is distilled: z_t never says which tokens are the text's own."""
        check_order(s_B, t_B)
        z_t, z_s = (self.corrupt(x0_BL, noise_BL, time, states) for time in (t_B, s_B))
        everywhere = torch.ones(x0_BL.shape, dtype=torch.bool)
        return Pair(z_t, z_s, distil=everywhere, reconstruct=~everywhere, s=s_B, t=t_B)

    def view(self, x0_BL: Tensor, noise_BL: Tensor, t_B: Tensor, states: States) -> View:
        """NELBO = E_t [ sum over all positions of `rate_of_nelbo` ], as Duo has it: without the constant
        KL(q(z_1 | x_0) || prior), which is 0 but for the schedule's eps."""
        t_B = t_B.double()
        alpha_B, speed_B = self.schedule.gamma(t_B), -self.schedule.derivative(t_B)
        beta_B = speed_B / self.schedule.elbo_weight(t_B)  # 1 - alpha, to its last digits
        kappa_B = size_of(states) * alpha_B / beta_B
        return View(
            self.corrupt(x0_BL, noise_BL, t_B, states), torch.ones(x0_BL.shape, dtype=torch.bool),
            torch.ones_like(t_B), score=rate_of_nelbo, score_B=(alpha_B, beta_B, kappa_B, speed_B),
        )  # fmt: skip

    def posterior(self, log_p_MV: Tensor, z_M: Tensor, s: Tensor, t: Tensor, states: States) -> Tensor:
        """log q(z_s = v | z_t) where x_0 has the law p before z_t is seen."""
        return log_posterior(log_p_MV, z_M, self.schedule.gamma(s), self.schedule.gamma(t))

    def marginal(self, log_p_MV: Tensor, t: Tensor, states: States) -> Tensor:
        """log q(z_t = v) where x_0 has the law p."""
        alpha = self.schedule.gamma(t).to(log_p_MV).expand(len(log_p_MV))[:, None]
        return torch.logaddexp(alpha.log() + log_p_MV, ((1 - alpha) / size_of(states)).log())

    def mixture(self, s: float, t: float, states: States, c: float = 1.0) -> Mixture:
        """The posterior, or with c < 1 the Psi law, as parts to draw from."""
        alpha_s, alpha_t = self.schedule.gamma(torch.tensor([s, t], dtype=torch.float64)).tolist()
        return uniform_mixture(alpha_s, alpha_t, size_of(states), c)

    def prior_nats(self, states: States) -> float:
        """KL(q(z_1 | x_0) || prior) of a token, which is not 0 where the schedule ends above 0."""
        K, alpha = size_of(states), self.schedule.eps
        own, other = alpha + (1 - alpha) / K, (1 - alpha) / K
        return own * math.log(K * own) + (K - 1) * other * math.log(K * other)
