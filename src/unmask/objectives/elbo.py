"""The ELBO, which trains the teacher: of any process in continuous time, or of N steps of one plan.

NELBO   = E_t [ the process's own term at time t ]
        = E_t [ -gamma'(t) / (1 - gamma(t)) · sum over masked i of -log p(x_i | z_t) ] for the masked process
        = E_k [ L/k · the same sum over k positions masked at random ], k uniform on 1..L: `exact_counts`
NELBO_N = E_k [ N · sum over the i that step k of N reveals of -log p(x_i | z_k) ]

The last is of the views that the sampler meets when it writes in N steps on that plan with the grid `rank`, and of
nothing else: where the steps before k have revealed their positions, it scores those of step k. Its mean is the N-step
NELBO of metrics/nelbo.py. (To score every masked position of such a view would be another objective: under a locked
plan, who is masked with whom says when they are revealed.)

Shapes: B sequences, L positions, T = batch.total rows of the global batch, N positions that carry loss (flat, through
(B, L)).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from unmask.core.devices import to_device
from unmask.core.errors import UserError
from unmask.models.denoiser import Denoiser, states_of
from unmask.objectives.base import (
    IDENTITY,
    RECONSTRUCT,
    Batch,
    LossOutput,
    given_in,
    keep_given,
    positions_where,
    rows_of,
)
from unmask.objectives.divergences import Scored, by_autograd, cross_entropy
from unmask.objectives.head_loss import Fusible, Score, loss_at
from unmask.plans.grids import assign_steps, make_grid
from unmask.plans.plan import draw_u, locked_plan
from unmask.processes import Masked, Process, States, View
from unmask.processes.masked import hide, is_masked
from unmask.processes.process import condition_at
from unmask.processes.schedule import stratified


@dataclass(frozen=True)
class MDLM(Fusible):
    """The ELBO teacher. Times, or steps, are stratified over the global batch.

    Args:
        process: how text is corrupted
        plan: the law of u
        plan_steps: train on the views of a sampler that writes in so many steps on the plan; None: on views of all
            times
        exact_counts: mask exactly k positions, k stratified on 1..L: the same mean, less noise
    """

    process: Process = field(default_factory=Masked)
    plan: str = "iid"
    plan_steps: int | None = None
    exact_counts: bool = False

    forwards: ClassVar[float] = 3
    regions: ClassVar[tuple[str, ...]] = ("reconstruct",)

    def __post_init__(self) -> None:
        if locked_plan(self.plan).for_steps and self.plan_steps is None:
            raise UserError(f"the plan {self.plan} is made for one number of steps: give plan_steps, or another plan")
        if self.plan_steps is not None and self.plan_steps < 1:
            raise UserError(f"plan_steps is a number of sampling steps: at least 1, not {self.plan_steps}")
        if self.plan_steps is not None and not self.process.by_plan:
            raise UserError(f"plan_steps is for a process that goes by a plan, not for {self.process.name}")
        if self.exact_counts and (self.plan != "iid" or self.plan_steps is not None or not self.process.by_plan):
            raise UserError("exact_counts is for the masked process in random order: leave out plan and plan_steps")

    def __call__(self, student: Denoiser, batch: Batch, *, step: int, generator: torch.Generator) -> LossOutput:
        given_TL = given_in(batch)
        view, t_B = self._view(batch, states_of(student), generator)
        if given_TL is None:
            loss_BL = self.nats_of(student, batch.tokens_BL, view, t_B)
            weight_BL = torch.ones_like(loss_BL)
        else:  # every answer counts alike, however long it is
            free_BL = ~given_TL[rows_of(batch)]
            share_B = 1 / free_BL.sum(1)
            loss_BL = self.nats_of(student, batch.tokens_BL, view, t_B, share_B)
            weight_BL = to_device((free_BL * share_B[:, None]).float(), loss_BL.device)
        region_BL = torch.where(view.scored_BL, RECONSTRUCT, IDENTITY).to(torch.int8)
        return LossOutput(loss_BL, weight_BL, to_device(region_BL, loss_BL.device))

    def nats_of(
        self, student: Denoiser, x0_BL: Tensor, view: View, t_B: Tensor, share_B: Tensor | None = None,
        read_BLD: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """The weighted loss at every position of a view, (B, L): a text's sum is its term of the NELBO.

        `share_B`: what each text's loss will be multiplied by on its way into the total; None: the same.
        `read_BLD`: what the network reads in place of the view's tokens, as its `embed` gives it.
        """
        device, scored_N = x0_BL.device, positions_where(view.scored_BL)
        row_N = scored_N // x0_BL.shape[1]
        chosen_N = to_device(scored_N, device)
        score = self._score(view, x0_BL.flatten()[chosen_N], view.z_BL.flatten()[chosen_N], t_B, row_N)
        total_B = view.weight_B if share_B is None else view.weight_B * share_B
        weight_N, time_B = to_device(total_B[row_N].float(), device), condition_at(self.process, t_B, device)
        seen = view.z_BL if read_BLD is None else read_BLD
        nll_BL = loss_at(student, seen, chosen_N, score, weight_N=weight_N, time_B=time_B, x0_BL=x0_BL)
        return to_device(view.weight_B.to(nll_BL.dtype)[:, None], device) * nll_BL

    def _score(self, view: View, x0_N: Tensor, z_N: Tensor, t_B: Tensor, row_N: Tensor) -> Score:
        """The loss of a piece: the cross-entropy, or the process's own."""
        if view.score is not None:
            run = self.fused(view.score)
            numbers = [to_device(value_B.float()[row_N], x0_N.device) for value_B in view.score_B]
            return lambda table, part: Scored(*run(table, x0_N[part], z_N[part], *(value[part] for value in numbers)))
        if view.loss is None:
            run = self.fused(cross_entropy)
            return lambda logits_CW, part: run(logits_CW, x0_N[part])
        own, t_N = view.loss, to_device(t_B[row_N], x0_N.device)
        return lambda table, part: by_autograd(lambda logits: own(logits, x0_N[part], z_N[part], t_N[part]), table)

    def _view(self, batch: Batch, states: States, generator: torch.Generator) -> tuple[View, Tensor]:
        """Drawn for the whole global batch, so that ranks and micro-batches together have what one process has."""
        rows, (B, L) = rows_of(batch), batch.tokens_BL.shape
        t_B = stratified(batch.total, generator)[rows]
        law = "permutation" if self.exact_counts else self.plan
        if given_in(batch) is not None and (self.exact_counts or self.plan_steps is not None):
            raise UserError("exact_counts and plan_steps are for whole texts, not for prompts and their answers")
        u_TL = draw_u((batch.total, L), law, generator=generator, steps=self.plan_steps)
        noise_BL = keep_given(self.process.noise(u_TL, states, generator), batch, self.process)[rows]
        if self.exact_counts:
            k_B = (t_B * L).ceil()
            masked_BL = is_masked(noise_BL, 1 - k_B / L)  # u of a permutation: one position in each 1/L
            return View(hide(batch.tokens_BL, masked_BL, states), masked_BL, L / k_B), t_B
        if self.plan_steps is None:
            return self.process.view(batch.tokens_BL, noise_BL, t_B, states), t_B
        steps, plan = self.plan_steps, locked_plan(self.plan)
        now_B1 = ((1 - t_B) * steps).long().clamp(max=steps - 1)[:, None]  # N equal shares of time: every step as often
        blank_BL, grid = torch.ones(B, L, dtype=torch.bool), make_grid("rank", steps)
        step_BL = assign_steps(noise_BL, blank_BL, grid, self.process.schedule, plan.cells(steps))
        z_BL = hide(batch.tokens_BL, step_BL >= now_B1, states)
        return View(z_BL, step_BL == now_B1, torch.full_like(t_B, steps)), t_B
