"""AR: next-token prediction, for a causal baseline that also serves as a judge.

Shapes: B sequences, L positions, D features, N positions that carry loss, W columns of logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from unmask.core.errors import UserError
from unmask.models.denoiser import Denoiser
from unmask.objectives.base import IDENTITY, RECONSTRUCT, Batch, LossOutput
from unmask.objectives.divergences import cross_entropy
from unmask.objectives.head_loss import Fusible, head_loss, piece_sizes


@dataclass(frozen=True)
class AR(Fusible):
    """-log p(x_i | x_<i) at every position but the first, which nothing precedes: its weight is 0."""

    forwards: ClassVar[float] = 3
    regions: ClassVar[tuple[str, ...]] = ("reconstruct",)

    def __call__(self, student: Denoiser, batch: Batch, *, step: int, generator: torch.Generator) -> LossOutput:
        x0_BL = batch.tokens_BL
        B, L = x0_BL.shape
        if L < 2:
            raise UserError("next-token prediction needs sequences of at least 2 tokens")
        # the last token is read for nothing: without it the length would be odd, and compiled strides padded
        h_ND, token_N = student.features(x0_BL)[:, :-1].flatten(0, 1), x0_BL[:, 1:].flatten()
        run = self.fused(cross_entropy)
        sizes = piece_sizes(student, x0_BL.device, len(token_N))
        nll_N = head_loss(student, h_ND, sizes, lambda logits_CW, part: run(logits_CW, token_N[part]))
        loss_BL = torch.cat([nll_N.new_zeros(B, 1), nll_N.view(B, L - 1)], dim=1)
        weight_BL = torch.ones_like(loss_BL)
        weight_BL[:, 0].zero_()  # not "= 0": that is a copy from the host, which waits for the device
        region_BL = torch.full_like(x0_BL, RECONSTRUCT, dtype=torch.int8)
        region_BL[:, 0].fill_(IDENTITY)
        return LossOutput(loss_BL, weight_BL, region_BL)
