"""A mixture of character trigrams with its exact posterior at any masked view, by forward-backward over pairs.

One component a book: hidden are the component and every masked character; the state at position i is the pair
(x_{i-1}, x_i). Lines may be hundreds of characters long.

Shapes: B sequences, L positions, M components, V characters; a, b, c are three characters in a row.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from unmask.core.errors import UserError
from unmask.theory.oracle import as_features, point_masses

ALPHABET = " abcdefghijklmnopqrstuvwxyz"
_ROWS = 64  # lines at a time: their messages stay near the processor
_SCALE_EVERY = 4  # positions; in between a message falls by 1e-28 at most, within float32's range


def encode(text: str) -> Tensor:
    """Lower-case letters and single spaces; everything else is a space."""
    plain = re.sub(r"[^a-z]+", " ", text.lower())
    codes = torch.frombuffer(bytearray(plain, "ascii"), dtype=torch.uint8).long()
    return torch.where(codes == ord(" "), 0, codes - ord("a") + 1)


class TrigramMixture:
    """p(x) = sum_m w_m pair_m(x_1, x_2) prod_i next_m(x_i | x_{i-2}, x_{i-1}), and its posteriors."""

    def __init__(self, weight_M: Tensor, pair_MVV: Tensor, next_MVVV: Tensor, length: int = 64) -> None:
        """Computes in the dtype of the tables: float64, or float32 for twice the speed at 1e-6 of rounding."""
        self.length, self.mask_id = length, pair_MVV.shape[-1]
        self.vocab_size = self.mask_id + 1
        self.weight_M, self.pair_MVV, self.next_MVVV = weight_M, pair_MVV, next_MVVV

    @classmethod
    def fit(
        cls, texts: Sequence[str], length: int = 64, smoothing: float = 1.0, dtype: torch.dtype = torch.float64
    ) -> TrigramMixture:
        """One component a text, equal weights. Trigrams are smoothed by bigrams, those by single characters."""
        V = len(ALPHABET)
        lines = [encode(text) for text in texts]
        if not lines or min(map(len, lines)) < 3:
            raise UserError("a mixture of trigrams needs texts of at least 3 letters each")
        pairs, nexts = [], []
        for line in lines:
            triple = torch.bincount((line[:-2] * V + line[1:-1]) * V + line[2:], minlength=V**3).view(V, V, V).double()
            single_V = (triple.sum((0, 1)) + smoothing / V) / (triple.sum() + smoothing)
            after_VV = (triple.sum(0) + smoothing * single_V) / (triple.sum((0, 2))[:, None] + smoothing)
            nexts.append((triple + smoothing * after_VV) / (triple.sum(2, keepdim=True) + smoothing))
            pairs.append(single_V[:, None] * after_VV)
        weight_M = torch.full((len(lines),), 1 / len(lines), dtype=dtype)
        return cls(weight_M, torch.stack(pairs).to(dtype), torch.stack(nexts).to(dtype), length)

    def _possible(self, z_BL: Tensor) -> Tensor:
        """1 for every character a position may be: one at visible positions, all at masked ones. (L, B, V)"""
        if not 2 <= z_BL.shape[1] <= self.length:
            raise UserError(f"this source has 2 to {self.length} positions, not {z_BL.shape[1]}")
        V = self.mask_id
        seen_BLV = F.one_hot(z_BL, V + 1)[..., :V].to(self.weight_M.dtype)
        return torch.where((z_BL < V)[..., None], seen_BLV, 1.0).transpose(0, 1)

    def _forward(self, possible_LBV: Tensor) -> tuple[list[Tensor], Tensor]:
        """alpha_i(m, a, b) ~ p(m, x_{i-1} = a, x_i = b, evidence up to i) for i = 1 .. L-1, and log p(evidence)_B.

        Kept as (M, b, B, a), so that one step is a batch of small matrix products; scaled now and then, line by line.
        """
        first_MVV = self.weight_M[:, None, None] * self.pair_MVV
        alpha = torch.einsum("mab,Ba,Bb->mbBa", first_MVV, possible_LBV[0], possible_LBV[1])
        by_middle = self.next_MVVV.transpose(1, 2).contiguous()  # (M, b, a, c)
        alphas, log_evidence_B = [alpha], torch.zeros(alpha.shape[2], dtype=torch.float64)
        for i in range(2, len(possible_LBV)):
            alpha = (alpha @ by_middle).mul_(possible_LBV[i]).transpose(1, 3)  # (M, b, B, c) -> (M, c, B, b)
            if i % _SCALE_EVERY == 0:
                total_B = alpha.sum((0, 1, 3))
                alpha = alpha / total_B[:, None]
                log_evidence_B += total_B.double().log()
            alphas.append(alpha)
        return alphas, log_evidence_B + alpha.sum((0, 1, 3)).double().log()

    def features(self, z: Tensor) -> Tensor:
        """log p(x_i = v | the visible characters of z), every component weighed by what it makes of them."""
        return torch.cat([as_features(point_masses(self._posterior(part), part)) for part in z.split(_ROWS)])

    def _posterior(self, z_BL: Tensor) -> Tensor:
        possible_LBV = self._possible(z_BL)
        alphas, _ = self._forward(possible_LBV)
        by_middle_back = self.next_MVVV.permute(0, 2, 3, 1).contiguous()  # (M, b, c, a)
        beta = torch.ones_like(alphas[-1])  # p(evidence after i | m, a, b), as (M, b, B, a)
        posteriors = []
        for i in range(len(alphas), 0, -1):
            joint = alphas[i - 1] * beta
            posteriors.append(joint.sum((0, 3)).T)
            if i == 1:
                posteriors.append(joint.sum((0, 1)))
                break
            # beta_{i-1}(a, b) = sum_c next(c | a, b) possible_i(c) beta_i(b, c)
            beta = (beta * possible_LBV[i].T[:, :, None]).transpose(1, 3) @ by_middle_back
            if i % _SCALE_EVERY == 0:
                beta = beta / beta.amax((0, 1, 3))[:, None]
        posterior_BLV = torch.stack(posteriors[::-1], dim=1)
        return posterior_BLV / posterior_BLV.sum(-1, keepdim=True)

    def logits(self, h: Tensor) -> Tensor:
        return h

    def log_prob(self, x_BL: Tensor) -> Tensor:
        """log p of what is visible in x: of whole lines, or of the seen part of a masked view."""
        return torch.cat([self._forward(self._possible(part))[1] for part in x_BL.split(_ROWS)])

    def draw(self, n: int, generator: torch.Generator, length: int | None = None) -> Tensor:
        """x ~ p, (n, length): a component, a pair, then one character after the other."""
        V = self.mask_id

        def pick(law: Tensor) -> Tensor:
            return torch.multinomial(law, 1, generator=generator).squeeze(-1)

        component_n = torch.multinomial(self.weight_M, n, replacement=True, generator=generator)
        pair_n = pick(self.pair_MVV[component_n].flatten(1))
        x = [pair_n // V, pair_n % V]
        while len(x) < (length or self.length):
            x.append(pick(self.next_MVVV[component_n, x[-2], x[-1]]))
        return torch.stack(x, dim=1)
