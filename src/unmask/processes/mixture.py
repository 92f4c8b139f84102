"""The law of a step of the uniform process as a mixture of parts that are cheap to draw from.

With x_0 ~ p, i = z_t, T = K gamma_t p(i) + 1 - gamma_t and gamma_{t|s} = gamma_t / gamma_s, the posterior is

q(v) T = (gamma_s - gamma_t) p(v)  +  (1 - gamma_{t|s}) (1 - gamma_s) / K  +  [v = i] · the rest
          a token of the model        a uniform one                        what stands stays

and the Psi law c q_{s|t} + (1 - c) [gamma_s q_{0|t} + (1 - gamma_s) / K] has the same three parts and a uniform one
that does not ask the model. So one uniform number a position decides what it becomes, and since T >= 1 - gamma_t it
often decides before the model is asked that what stands stays.

Shapes: any leading dimensions "...".
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Mixture(NamedTuple):
    """q(v) = fresh / K + (token p(v) + uniform / K) / T + [v = i] · the rest, T = own p(i) + least."""

    K: float
    fresh: float
    token: float
    uniform: float
    own: float
    least: float

    def may_change(self, u: Tensor) -> Tensor:
        """Whether a position with this uniform number is drawn anew under some p: elsewhere what stands stays."""
        return (u - self.fresh) * self.least < self.token + self.uniform


def uniform_mixture(gamma_s: float, gamma_t: float, K: int, kept: float = 1.0) -> Mixture:
    """Of the step from t to s; `kept` is the c of the Psi law, 1 is the posterior."""
    between = gamma_t / gamma_s  # gamma_{t|s}
    return Mixture(
        K=K,
        fresh=(1 - kept) * (1 - gamma_s),
        token=kept * (gamma_s - gamma_t) + (1 - kept) * gamma_s * (1 - gamma_t),
        uniform=kept * (1 - between) * (1 - gamma_s),
        own=K * gamma_t,
        least=1 - gamma_t,
    )
