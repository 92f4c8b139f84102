"""Remasking (ReMDM): a revealed token may be masked again and drawn anew, so that early mistakes can be mended.

From time t to s < t a visible token is masked with probability sigma, and a masked one is revealed with the probability
that keeps the marginals: (gamma_s - (1 - sigma) gamma_t) / (1 - gamma_t). The rule `confidence` does not keep them: as
published it reveals as if sigma were 0, so that what it masks again is missing until later steps. Both are decided
before any logits are seen, so here too the head runs only on the positions a step reveals.

Shapes: B sequences, L positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from unmask.core.errors import UserError, check_name

USUAL_ETA = {"cap": 0.02, "rescale": 0.015, "confidence": 1.0}


@dataclass(frozen=True)
class Remask:
    """The rule for sigma, with sigma_max = min(1, (1 - gamma_s) / gamma_t).

    cap: min(eta, sigma_max). rescale: eta sigma_max. confidence: eta sigma_max shared out over the visible tokens by
    softmax(-probability each had when it was drawn), so that the least sure get most.
    """

    rule: Literal["cap", "rescale", "confidence"] = "cap"
    eta: float | None = None  # None: the rule's usual one

    def __post_init__(self) -> None:
        check_name("remasking rule", self.rule, USUAL_ETA)
        if self.eta is None:
            object.__setattr__(self, "eta", USUAL_ETA[self.rule])
        elif not 0 <= self.eta <= 1:
            raise UserError(f"remasking eta must be between 0 and 1, not {self.eta}")

    def sigma(self, gamma_t: float, gamma_s: float, visible_BL: Tensor, drawn_p_BL: Tensor) -> Tensor:
        """The probability of being masked again: one number, or one a position for `confidence`."""
        assert self.eta is not None
        most = min(1.0, (1 - gamma_s) / gamma_t) if gamma_t > 0 else 1.0
        if self.rule == "cap":
            return torch.tensor(min(self.eta, most), dtype=torch.float64)
        if self.rule == "rescale":
            return torch.tensor(self.eta * most, dtype=torch.float64)
        unsure_BL = (-drawn_p_BL).masked_fill(~visible_BL, -torch.inf).softmax(-1)
        return self.eta * most * unsure_BL.nan_to_num()  # a row with nothing visible has nothing to remask


def reveal_chance(gamma_t: float, gamma_s: float, sigma: Tensor) -> Tensor:
    """P(visible at s | masked at t) that keeps the marginal at gamma_s, sigma of the visible ones being lost."""
    if gamma_t >= 1:
        return torch.ones_like(sigma)
    return ((gamma_s - (1 - sigma) * gamma_t) / (1 - gamma_t)).clamp(0, 1)
