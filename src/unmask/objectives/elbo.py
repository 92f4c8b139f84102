"""MDLM: the ELBO of masked diffusion, which trains the teacher. In continuous time, or in N steps of one plan.

NELBO   = E_t [ -gamma'(t) / (1 - gamma(t)) · sum over masked i of -log p(x_i | z_t) ]
NELBO_N = E_k [ N · sum over the i that step k of N reveals of -log p(x_i | z_k) ]

The second is of the views that the sampler meets when it writes in N steps on that plan with the grid `rank`, and of
nothing else: where the steps before k have revealed their positions, it scores those of step k. Its mean is the N-step
NELBO of metrics/nelbo.py. (To score every masked position of such a view would be another objective: under a locked
plan, who is masked with whom says when they are revealed.)

Refuses to know how a step chooses its positions: the sampler's own function says it.

Shapes: B sequences, L positions, T = batch.total rows of the global batch, N positions that carry loss (flat, through
(B, L)).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from unmask.core.devices import to_device
from unmask.core.errors import UserError, unknown
from unmask.models.denoiser import Denoiser
from unmask.objectives.base import IDENTITY, RECONSTRUCT, Batch, LossOutput
from unmask.objectives.distil.base import flat, loss_at, rows_of
from unmask.objectives.divergences import cross_entropy
from unmask.objectives.head_loss import Fusible, even_sizes, piece_size
from unmask.plans.grids import assign_steps, make_grid
from unmask.plans.laws import LAWS, cells_of, draw_u
from unmask.processes.masked import is_masked
from unmask.processes.schedule import LogLinear, Schedule
from unmask.processes.times import stratified


@dataclass(frozen=True)
class MDLM(Fusible):
    """The ELBO teacher. Times, or steps, are stratified over the global batch.

    Args:
        schedule: how the share of masked tokens grows with time
        plan: where u comes from (plans/laws.py)
        plan_steps: train on the views of a sampler that writes in so many steps on the plan; None: on views of all
            times
    """

    schedule: Schedule = field(default_factory=LogLinear)
    plan: str = "iid"
    plan_steps: int | None = None

    forwards: ClassVar[float] = 3
    regions: ClassVar[tuple[str, ...]] = ("reconstruct",)

    def __post_init__(self) -> None:
        if self.plan not in LAWS:
            raise unknown("plan", self.plan, LAWS)
        if self.plan == "stride" and self.plan_steps is None:
            raise UserError("the plan stride is made for one number of steps: give plan_steps, or take another plan")
        if self.plan_steps is not None and self.plan_steps < 1:
            raise UserError(f"plan_steps is a number of sampling steps: at least 1, not {self.plan_steps}")

    def __call__(self, student: Denoiser, batch: Batch, *, step: int, generator: torch.Generator) -> LossOutput:
        x0_BL, device = batch.tokens_BL, batch.tokens_BL.device
        views = self._views(batch, generator)
        scored_N = flat(views.scored_BL)
        pull_N = views.weight_B[scored_N // x0_BL.shape[1]].float()
        chosen_N = to_device(scored_N, device)
        z_BL = torch.where(to_device(views.masked_BL, device), student.mask_id, x0_BL)
        token_N, run = x0_BL.flatten()[chosen_N], self.fused(cross_entropy)
        nll_BL = loss_at(
            student,
            z_BL,
            chosen_N,
            even_sizes(len(scored_N), piece_size(student, device)),
            lambda logits_CW, part: run(logits_CW, token_N[part]),
            to_device(pull_N, device),
        )
        weight_B1 = to_device(views.weight_B.to(nll_BL.dtype)[:, None], device)
        region_BL = torch.where(views.scored_BL, RECONSTRUCT, IDENTITY).to(torch.int8)
        return LossOutput(weight_B1 * nll_BL, torch.ones_like(nll_BL), to_device(region_BL, device))

    def _views(self, batch: Batch, generator: torch.Generator) -> _Views:
        """Drawn for the whole global batch, so that ranks and micro-batches together have what one process has."""
        rows, L = rows_of(batch), batch.tokens_BL.shape[1]
        t_B = stratified(batch.total, generator)[rows]
        u_BL = draw_u((batch.total, L), self.plan, generator=generator, steps=self.plan_steps)[rows]
        if self.plan_steps is None:
            masked_BL = is_masked(u_BL, self.schedule.gamma(t_B))
            return _Views(masked_BL, masked_BL, self.schedule.elbo_weight(t_B))
        steps = self.plan_steps
        now_B1 = ((1 - t_B) * steps).long().clamp(max=steps - 1)[:, None]  # N equal shares of time: every step as often
        blank_BL, cells = torch.ones_like(u_BL, dtype=torch.bool), cells_of(self.plan, steps)
        step_BL = assign_steps(u_BL, blank_BL, make_grid("rank", steps), self.schedule, cells)
        return _Views(step_BL >= now_B1, step_BL == now_B1, torch.full_like(t_B, steps))


@dataclass(frozen=True)
class _Views:
    """Which positions a row hides, which of them carry loss, and what each of these counts. On the CPU."""

    masked_BL: Tensor
    scored_BL: Tensor
    weight_B: Tensor
