"""The Gaussian-discrete duality: masking a token is projecting a noisy one-hot vector in K dimensions, and replacing it
by another (uniform.py) is taking the vector's argmax. One latent, one integral F, two shadows.

A token k becomes the latent w = alpha onehot(k) + sigma eps, eps standard normal in K dimensions, and survives iff w_k
beats every rival. That happens iff Y < alpha/sigma, where Y = max over j != k of eps_j, minus eps_k. With F the CDF
of Y, alpha/sigma = F^-1(gamma) makes a token survive with probability gamma, and u = F(Y) is the scalar that locks it.
The argmax is k in the same event, so F(alpha/sigma) = a + (1 - a)/K for a uniform process that keeps a share a.

F is a mixture of normal CDFs: given the rivals' maximum M = m, P(Y <= y) = Phi(y - m). The density of M is smooth and
falls off fast on both sides, so equally spaced nodes (the trapezoid rule) integrate over it to the last digits of a
float64.

Probabilities are float64 and live on the CPU, wherever the input was: not
every accelerator has float64. Shapes: K states with the mask, M nodes, any leading dimensions "...".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from unmask.core.errors import UserError

_STEP = 1 / 24  # between nodes: rounding is all that is left up to K = 10^7
_LEAST_WEIGHT = 1e-40  # nodes that weigh less are dropped
_LEAST_GAMMA = 1e-200  # below it, densities underflow
_CHUNK = 2048  # values at a time: bounds the (chunk, M) working memory to some 10 MB


@dataclass(frozen=True)
class Calibration:
    """The latent's signal alpha and noise sigma at which a token survives with probability gamma; float64 tensors."""

    gamma: Tensor
    ratio: Tensor  # alpha / sigma; negative iff gamma < 1/K

    @property
    def sigma(self) -> Tensor:
        """Variance preserving: alpha^2 + sigma^2 = 1."""
        return 1 / torch.hypot(torch.ones_like(self.ratio), self.ratio)

    @property
    def alpha(self) -> Tensor:
        return self.ratio * self.sigma

    def __iter__(self) -> Iterator[Tensor]:
        """So that `alpha, sigma = duality.calibrate(gamma)` reads as the equation does."""
        return iter((self.alpha, self.sigma))


@dataclass(frozen=True)
class UniformCalibration:
    """What the latent's argmax is at noise n = log(sigma^2 / alpha^2), which Duo calls gamma; float64 tensors."""

    alpha: Tensor  # of the uniform process: the share that has not been drawn anew
    beta: Tensor  # 1 - alpha, to its own last digits
    slope: Tensor  # d alpha / d n


@dataclass(frozen=True)
class GaussianDuality:
    """The duality for K states, the mask included (K = 50258 for GPT-2): a token has K - 1 rivals."""

    K: int

    def __post_init__(self) -> None:
        if self.K < 2:
            raise UserError(f"the duality needs K >= 2 states (tokens and the mask), not {self.K}")

    @cached_property
    def _nodes(self) -> tuple[Tensor, Tensor]:
        """Nodes m and weights h g(m), where g = (K-1) phi Phi^(K-2) is the density of the rivals' maximum."""
        m = torch.arange(-16, 16 + _STEP / 2, _STEP, dtype=torch.float64)
        log_phi = -0.5 * m.square() - 0.5 * math.log(2 * math.pi)
        weight = (math.log(_STEP * (self.K - 1)) + log_phi + (self.K - 2) * torch.special.log_ndtr(m)).exp()
        keep = weight > _LEAST_WEIGHT
        return m[keep], weight[keep] / weight.sum()

    def cdf(self, y: Tensor | float) -> Tensor:
        """F_Y(y) = integral of phi(e) Phi(y+e)^(K-1) de = E[Phi(y - M)], M the rivals' maximum."""
        return _by_chunks(lambda part: self._tail(part, torch.ones_like(part)), _float64(y)).clamp(max=1)

    def inverse(self, gamma: Tensor | float) -> Tensor:
        """F_Y^-1(gamma), by Newton's method on the logarithm of the smaller tail.

        Y has a log-concave density, so log F and log(1 - F) are concave: whatever the start, after one step Newton
        approaches the root from one side and cannot overshoot.
        """
        gamma = _float64(gamma)
        outside = gamma[~((gamma >= _LEAST_GAMMA) & (gamma < 1))]  # so that NaN is outside too
        if outside.numel():
            raise UserError(
                f"gamma is a probability: inside (0, 1), at least {_LEAST_GAMMA:g}, not {float(outside[0]):g}"
            )
        return _by_chunks(self._solve, gamma)

    def calibrate(self, gamma: Tensor | float, signed: bool = False) -> Calibration:
        """Lemma 3.1: alpha/sigma = F_Y^-1(gamma). Below gamma = 1/K that is negative; only `signed=True` allows it."""
        gamma = _float64(gamma)
        ratio = self.inverse(gamma)
        if signed:
            return Calibration(gamma, ratio)
        if bool((gamma < 1 / self.K).any()):
            raise UserError(
                f"gamma = {float(gamma.min()):g} is below 1/K = {1 / self.K:g}: F_Y(0) = 1/K, so with alpha >= 0 the "
                "projection keeps at least 1/K of the tokens; take a larger gamma, or signed=True for a negative alpha"
            )
        return Calibration(gamma, ratio.clamp(min=0))  # at gamma = 1/K rounding may leave -1e-16

    def uniform(self, noise: Tensor | float) -> UniformCalibration:
        """alpha = (K F(r) - 1)/(K - 1) and d alpha/d noise at r = alpha/sigma = exp(-noise/2)."""
        noise = _float64(noise)
        ratio, scale = (-noise / 2).exp(), self.K / (self.K - 1)
        beta = scale * _by_chunks(lambda part: self._tail(part, -torch.ones_like(part)), ratio)
        slope = -scale * ratio / 2 * _by_chunks(self._density, ratio)
        return UniformCalibration((1 - beta).clamp(min=0), beta.clamp(max=1), slope)

    def latent(self, eps: Tensor, k: Tensor | int, calibration: Calibration) -> Tensor:
        """w_t = alpha x_0 + sigma eps, x_0 the one-hot vector of k: (..., K), (...) -> (..., K)."""
        k = self._token(eps, k)
        alpha, sigma = (part.to(eps.dtype).to(eps.device) for part in (calibration.alpha, calibration.sigma))
        return (sigma[..., None] * eps).scatter_add_(-1, k, alpha[..., None].expand(k.shape))

    def project(self, w: Tensor, k: Tensor | int) -> Tensor:
        """P(w_t): does token k survive, w_k > max over j != k of w_j? A tie does not. (..., K), (...) -> (...) bool."""
        own, rival = self._own_and_rival(w, k)
        return own > rival

    def u_of_noise(self, eps: Tensor, k: Tensor | int) -> Tensor:
        """The u that locks a token: u = F_Y(Y), Y = max over j != k of eps_j, minus eps_k. Uniform on [0, 1)."""
        own, rival = self._own_and_rival(eps, k)
        return self.cdf(_float64(rival) - _float64(own)).clamp(max=1 - 2.0**-53)

    def _own_and_rival(self, values: Tensor, k: Tensor | int) -> tuple[Tensor, Tensor]:
        k = self._token(values, k)
        return values.gather(-1, k).squeeze(-1), values.scatter(-1, k, -math.inf).amax(-1)

    def _token(self, values: Tensor, k: Tensor | int) -> Tensor:
        """k as an index (..., 1) into the last dimension of `values`, which must have K coordinates."""
        if values.ndim == 0 or values.shape[-1] != self.K:
            raise UserError(f"the last dimension must hold the K = {self.K} states, not {tuple(values.shape)}")
        k = torch.as_tensor(k, device=values.device)
        if bool(((k < 0) | (k >= self.K)).any()):
            raise UserError(f"a token must lie in 0..{self.K - 1}, but k runs from {int(k.min())} to {int(k.max())}")
        return k.expand(values.shape[:-1])[..., None]

    def _tail(self, y: Tensor, side: Tensor) -> Tensor:
        """P(Y <= y) where side is 1, P(Y > y) where it is -1; each to its own last digits, however small. y is (N,)."""
        m, weight = self._nodes
        # no matrix product: how one sums, and so the last digit, may depend on the number of rows
        return torch.erfc((m - y[:, None]) * (math.sqrt(0.5) * side[:, None])).mul_(weight / 2).sum(-1)

    def _density(self, y: Tensor) -> Tensor:
        """F_Y'(y) = E[phi(y - M)]; y is (N,)."""
        m, weight = self._nodes
        return (m - y[:, None]).square_().mul_(-0.5).exp_() @ (weight / math.sqrt(2 * math.pi))

    def _solve(self, gamma: Tensor) -> Tensor:
        m, weight = self._nodes
        side = torch.where(gamma < 0.5, 1.0, -1.0).double()
        smaller = torch.minimum(gamma, 1 - gamma)  # exact: near 1 no digits are lost
        mean = (weight * m).sum()
        spread = (1 + (weight * (m - mean).square()).sum()).sqrt()
        y = mean + spread * torch.special.ndtri(gamma)  # the normal law with Y's mean and variance
        for _ in range(40):
            tail = self._tail(y, side)
            step = side * (smaller / tail).log() * tail / self._density(y)
            y = y + step
            if bool((step.abs() <= 1e-10 * (1 + y.abs())).all()):  # convergence is quadratic: what is left is rounding
                return y
        raise AssertionError(f"Newton's method did not settle for K = {self.K}")


def _float64(value: Tensor | float) -> Tensor:
    if isinstance(value, Tensor):
        return value.cpu().double()  # in this order: not every device can hold a float64
    return torch.tensor(value, dtype=torch.float64)


def _by_chunks(function: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """function over the flattened values, a chunk at a time."""
    return torch.cat([function(part) for part in values.reshape(-1).split(_CHUNK)]).reshape(values.shape)
