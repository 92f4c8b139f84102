"""CD4LM: nested masks with random ratios, a fixed teacher, soft targets and the tokens themselves.

The student's view hides a share r_s ~ U(.4, .9) of a text, the teacher's a share r_t = clip(r_s U(.3, .7), .1, .6), and
what is hidden from the teacher is hidden from the student too. On every position hidden from the student, with
temperature T = 2 on both sides:

L = w min(T² KL(teacher_T || student_T), 5) + (1 - w) min(-log p_student(x_0), 5),   w from .9 to .5 over the run

Where the teacher sees the token its law is a point mass (the carry-over rule). The published code takes each min of the
mean over what one device holds; ours takes it of every token (docs/distillation.md says why).

Shapes: B sequences, L positions, T = batch.total rows of the global batch, N positions masked for the student: first
those masked in both views, then those that only the teacher sees. C of them in a piece, W columns of logits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from unmask.core.errors import UserError
from unmask.models.denoiser import Denoiser, states_of
from unmask.objectives.base import Batch, LossOutput, rows_of
from unmask.objectives.distil.base import Distillation, Source
from unmask.objectives.distil.curriculum import Curriculum
from unmask.objectives.divergences import Scored, at_least_float32, cross_entropy, forward_kl, point_mass
from unmask.objectives.head_loss import Score
from unmask.processes import Masked
from unmask.processes.schedule import LogLinear, stratified


@dataclass(frozen=True, eq=False)
class CD4LM(Distillation):
    """CD4LM's nested-mask objective. It has no rounds: `at` keeps the teacher.

    Args:
        steps: optimiser steps of the whole run, over which the weight of the soft targets falls
        temperature: T, on both sides
        clamp: the most that either term of a token counts; above it the token has no gradient
    """

    plan: str = "permutation"  # masks of a fixed number of tokens, as published
    steps: int = 50_000
    temperature: float = 2.0
    clamp: float = 5.0

    forwards: ClassVar[float] = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 1:
            raise UserError(f"steps of the whole run must be at least 1, not {self.steps}")
        if not (self.temperature > 0 and self.clamp > 0):
            raise UserError(f"temperature and clamp must be above 0, not {self.temperature} and {self.clamp}")

    def at(self, round: int, curriculum: Curriculum, teacher: Source) -> CD4LM:
        return replace(self, tau=curriculum.tau(round))

    def soft_weight(self, step: int) -> float:
        """.9 for a tenth of the run, then down to .5 along a cosine."""
        done = min(1.0, max(0.0, (step / self.steps - 0.1) / 0.9))
        return 0.5 + 0.4 * (1 + math.cos(math.pi * done)) / 2

    def __call__(self, student: Denoiser, batch: Batch, *, step: int, generator: torch.Generator) -> LossOutput:
        self._frozen.check(student)
        x0_BL, rows = batch.tokens_BL, rows_of(batch)
        r_s_T = stratified(batch.total, generator, low=0.4, high=0.9)
        r_t_T = (r_s_T * stratified(batch.total, generator, low=0.3, high=0.7)).clamp(0.1, 0.6)
        if not self._process.by_plan:
            raise UserError(f"CD4LM is for the masked process, and this one is {self._process.name}: take dcd or elbo")
        u_BL = self._noise(batch, None, generator, student)[rows]
        by_share = Masked(LogLinear(eps=0.0))  # its time is the masked share
        pair = by_share.couple(x0_BL, u_BL, r_t_T[rows], r_s_T[rows], states_of(student))
        return self._loss_of(student, x0_BL, pair, partial(self._score, weight=self.soft_weight(step)))

    def _score(self, target_ND: Tensor, token_N: Tensor, weight: float) -> Score:
        run = self._fused(_both_terms)

        def score(logits_CW: Tensor, part: slice) -> Scored:
            if part.start < len(target_ND):
                target_CW = self._frozen.logits(target_ND[part], logits_CW.shape[1])
            else:
                target_CW = point_mass(token_N[part], logits_CW)
            return run(logits_CW, target_CW, token_N[part], weight, self.temperature, self.tau, self.clamp)

        return score


def _both_terms(
    logits_CW: Tensor, target_CW: Tensor, token_C: Tensor, weight: float, T: float, tau: float, most: float
) -> Scored:
    """weight · T² KL(target_T || student_T) + (1 - weight) · cross-entropy, each clamped."""
    logits_CW, dtype = at_least_float32(logits_CW), logits_CW.dtype
    log_p_CW = (logits_CW / T).log_softmax(-1)
    log_q_CW = (at_least_float32(target_CW) / (T * tau)).log_softmax(-1)
    soft = forward_kl(log_p_CW, log_q_CW)
    soft = _clamped(T * T * soft.loss_C, T * soft.slope_CV, most)  # the derivative by the logits brings 1/T
    hard = _clamped(*cross_entropy(logits_CW, token_C), most)
    slope_CW = weight * soft.slope_CV + (1 - weight) * hard.slope_CV
    return Scored(weight * soft.loss_C + (1 - weight) * hard.loss_C, slope_CW.to(dtype))


def _clamped(loss_C: Tensor, slope_CW: Tensor, most: float) -> Scored:
    return Scored(loss_C.clamp(max=most), slope_CW * (loss_C <= most)[:, None])
