"""Oracles: small sources whose posterior is known exactly, as Denoisers. No training, so all error is the sampler's.

`Enumerated` holds every sequence of a short line (a few thousand) and answers any masked view by looking it up.
`TrigramMixture` (its own file) does longer lines by forward-backward. Both give log p(x_i = v | what is visible) as
features, so the head is the identity; both know log p(x) of a whole line and draw x ~ p.

Oracles are no networks: they live on the CPU in float64.

Shapes: B sequences, L positions, V tokens, K = V + 1 states (the mask is the last).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from unmask.core.errors import UserError
from unmask.models.denoiser import MASK_LOGIT

MOST_STATES = 1 << 21  # masked views a table may hold: 16 MiB of float64


def as_features(posterior_BLV: Tensor) -> Tensor:
    """log-probabilities with the mask's column: what an oracle returns for features."""
    log_p_BLV = posterior_BLV.log().clamp_(min=MASK_LOGIT)
    return F.pad(log_p_BLV, (0, 1), value=MASK_LOGIT)


def point_masses(posterior_BLV: Tensor, z_BL: Tensor) -> Tensor:
    """A visible position is certain; what `posterior_BLV` says there is replaced."""
    V = posterior_BLV.shape[-1]
    certain_BLV = F.one_hot(z_BL, V + 1)[..., :V].to(posterior_BLV.dtype)
    return torch.where((z_BL < V)[..., None], certain_BLV, posterior_BLV)


class Enumerated:
    """The exact denoiser of a law given as a table p of shape (V,) * L.

    It holds p(x_A) of every set A of visible tokens; then p(x_i = v | x_A) is one entry over another.
    """

    def __init__(self, p: Tensor) -> None:
        V, L = p.shape[0], p.ndim
        if (V + 1) ** L > MOST_STATES:
            raise UserError(f"{V} tokens at {L} positions have {(V + 1) ** L} masked views, too many to hold")
        self.tokens, self.length, self.vocab_size, self.mask_id = V, L, V + 1, V
        marginal = p.double()
        for position in range(L):  # state V of a position means: summed over, not seen
            marginal = torch.cat([marginal, marginal.sum(position, keepdim=True)], position)
        self._marginal = marginal.flatten()

    @property
    def p(self) -> Tensor:
        """The law itself, a table of shape (V,) * L."""
        table = self._marginal.view((self.vocab_size,) * self.length)
        return table[(slice(self.tokens),) * self.length]

    def _index(self, z_BL: Tensor) -> Tensor:
        """Where a masked view stands in the flat table."""
        place_L = self.vocab_size ** torch.arange(self.length - 1, -1, -1)
        return (z_BL * place_L).sum(-1)

    def features(self, z: Tensor) -> Tensor:
        """log p(x_i = v | the visible tokens of z); uniform where they have probability zero."""
        filled_BLVL = z[:, None, None, :].repeat(1, self.length, self.tokens, 1)
        here = torch.arange(self.length)
        filled_BLVL[:, here, :, here] = torch.arange(self.tokens)  # position i := v
        joint_BLV = self._marginal[self._index(filled_BLVL)]
        evidence_BL1 = joint_BLV.sum(-1, keepdim=True)
        posterior_BLV = torch.where(evidence_BL1 > 0, joint_BLV / evidence_BL1, 1 / self.tokens)
        return as_features(point_masses(posterior_BLV, z))

    def logits(self, h: Tensor) -> Tensor:
        return h

    def log_prob(self, x_BL: Tensor) -> Tensor:
        """log p of what is visible in x: of whole lines, or of the seen part of a masked view."""
        return self._marginal[self._index(x_BL)].log()

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """x ~ p, (n, L)."""
        flat = torch.multinomial(self.p.flatten(), n, replacement=True, generator=generator)
        return torch.stack(torch.unravel_index(flat, (self.tokens,) * self.length), dim=1)


def _every_line(length: int, tokens: int) -> list[Tensor]:
    """x_0 ... x_{L-1} of every line at once, each broadcastable to (V,) * L."""
    shape = torch.eye(length, dtype=torch.int64) * (tokens - 1) + 1
    return [torch.arange(tokens).view(*sizes) for sizes in shape.tolist()]


def _by_rule(length: int, tokens: int, keep: float, free: int, rule: Callable[..., Any]) -> Tensor:
    """The first `free` tokens are uniform, each later x_i is rule(x, i) with the kernel keep I + (1 - keep)/V."""
    step = keep * torch.eye(tokens, dtype=torch.float64) + (1 - keep) / tokens
    x = _every_line(length, tokens)
    p = torch.full((tokens,) * length, (1 / tokens) ** min(free, length), dtype=torch.float64)
    for i in range(free, length):
        p = p * step[rule(x, i), x[i]]
    return p


def sticky(length: int = 8, tokens: int = 3, stay: float = 0.8) -> Tensor:
    """A chain: uniform start, transition stay I + (1 - stay)/V. Neighbours depend most."""
    return copy_at_lag(length, tokens, 1, stay)


def copy_at_lag(length: int = 8, tokens: int = 3, lag: int = 4, keep: float = 0.9) -> Tensor:
    """x_{i+lag} repeats x_i with the kernel keep I + (1 - keep)/V; the first `lag` tokens are uniform."""
    return _by_rule(length, tokens, keep, lag, lambda x, i: x[i - lag])


def order2(length: int = 8, tokens: int = 3, keep: float = 0.9) -> Tensor:
    """Two topics, each a rule on the last two tokens that holds with the kernel keep I + (1 - keep)/V; uniform start.

    One repeats the token before last, the other makes the three sum to 0 modulo V.
    """
    repeated = _by_rule(length, tokens, keep, 2, lambda x, i: x[i - 2])
    summed = _by_rule(length, tokens, keep, 2, lambda x, i: (-x[i - 2] - x[i - 1]) % tokens)
    return (repeated + summed) / 2


def topic(length: int = 8, tokens: int = 3, keep: float = 0.8) -> Tensor:
    """Exchangeable: a favourite token is drawn, then every position shows it with the kernel keep I + (1 - keep)/V.

    Distance plays no part, so spacing positions cannot help.
    """
    laws = [_by_rule(length, tokens, keep, 0, lambda x, i, token=token: token) for token in range(tokens)]
    return torch.stack(laws).mean(0)


SOURCES: dict[str, Callable[..., Tensor]] = {"sticky": sticky, "order2": order2, "topic": topic, "copy": copy_at_lag}
