"""AR: next-token prediction, for a causal baseline that also serves as a judge.

Shapes: B sequences, L positions, D features, V states.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from unmask.base.errors import UserError
from unmask.models.denoiser import Denoiser
from unmask.objectives.base import IDENTITY, RECONSTRUCT, Batch, LossOutput
from unmask.objectives.divergences import token_nll


@dataclass(frozen=True)
class AR:
    """-log p(x_i | x_<i) at every position but the first, which nothing precedes: its weight is 0."""

    forwards: ClassVar[float] = 3
    regions: ClassVar[tuple[str, ...]] = ("reconstruct",)

    def __call__(self, student: Denoiser, batch: Batch, *, step: int, generator: torch.Generator) -> LossOutput:
        x0_BL = batch.tokens_BL
        B, L = x0_BL.shape
        if L < 2:
            raise UserError("next-token prediction needs sequences of at least 2 tokens")
        h_ND = student.features(x0_BL[:, :-1]).flatten(0, 1)
        nll_N = token_nll(student.logits(h_ND), x0_BL[:, 1:].flatten(), student.mask_id)
        loss_BL = torch.cat([nll_N.new_zeros(B, 1), nll_N.view(B, L - 1)], dim=1)
        weight_BL = torch.ones_like(loss_BL)
        weight_BL[:, 0] = 0
        region_BL = torch.full_like(x0_BL, RECONSTRUCT, dtype=torch.int8)
        region_BL[:, 0] = IDENTITY
        return LossOutput(loss_BL, weight_BL, region_BL)
