"""MDLM: the continuous-time ELBO of masked diffusion, which trains the teacher.

NELBO = E_t [ -gamma'(t) / (1 - gamma(t)) · sum over masked i of -log p(x_i | z_t) ]

Shapes: B sequences, L positions, D features, V states, T = batch.total rows of the global batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch

from unmask.models.denoiser import Denoiser
from unmask.objectives.base import IDENTITY, RECONSTRUCT, Batch, LossOutput
from unmask.objectives.divergences import token_nll
from unmask.process.locking import draw_u
from unmask.process.masking import is_masked
from unmask.process.schedule import LogLinear, Schedule
from unmask.process.times import stratified


@dataclass(frozen=True)
class MDLM:
    """The ELBO teacher. Times are stratified over the global batch; `plan` says where u comes from."""

    schedule: Schedule = field(default_factory=LogLinear)
    plan: str = "iid"

    forwards: ClassVar[float] = 3
    regions: ClassVar[tuple[str, ...]] = ("reconstruct",)

    def __call__(self, student: Denoiser, batch: Batch, *, step: int, generator: torch.Generator) -> LossOutput:
        x0_BL = batch.tokens_BL
        B, L = x0_BL.shape
        rows = slice(batch.start, batch.start + B)
        t_B = stratified(batch.total, generator)[rows]
        u_BL = draw_u((batch.total, L), self.plan, generator=generator)[rows]
        masked_BL = is_masked(u_BL, self.schedule.gamma(t_B))
        weight_B = self.schedule.elbo_weight(t_B)

        chosen = masked_BL.flatten().nonzero()[:, 0].to(x0_BL.device)  # found on the CPU: no wait for the device
        masked_BL = masked_BL.to(x0_BL.device)
        h_ND = student.features(torch.where(masked_BL, student.mask_id, x0_BL)).flatten(0, 1).index_select(0, chosen)
        nll_N = token_nll(student.logits(h_ND), x0_BL.flatten()[chosen], student.mask_id)
        weight_N = weight_B.repeat_interleave(L).to(nll_N.dtype).to(x0_BL.device)[chosen]
        loss_BL = nll_N.new_zeros(B * L).index_put((chosen,), weight_N * nll_N).view(B, L)
        region_BL = torch.where(masked_BL, RECONSTRUCT, IDENTITY).to(torch.int8)
        return LossOutput(loss_BL, torch.ones_like(loss_BL), region_BL)
