"""MCD: masked consistency distillation, one round of it (Algorithm 1 and the hybrid objective of the paper).

One u a position locks two views of a text together: the student's z_t, and the teacher's z_s with s = t - delta, in
which a few more tokens are visible. Where both are masked the student learns the teacher's law; where only its own is,
the token itself:

L = sum over i of  m_s D(p_student(. | z_t), p_teacher(. | z_s; tau))  +  (m_t - m_s) (-log p_student(x_0 | z_t))

Shapes: B sequences, L positions, T = batch.total rows of the global batch, N positions masked for the student: first
those masked in both views, then those that only the teacher sees.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from unmask.core.errors import UserError, check_name
from unmask.models.denoiser import Denoiser, states_of
from unmask.objectives.base import Batch, LossOutput, rows_of
from unmask.objectives.distil.base import Distillation, Source, check_gap, steps_of_gap
from unmask.objectives.distil.curriculum import Curriculum
from unmask.objectives.divergences import DIVERGENCES, Scored, compare, cross_entropy, point_mass
from unmask.objectives.head_loss import Score
from unmask.processes import Pair
from unmask.processes.schedule import stratified

Loss = Literal["reverse", "forward", "jsd", "tvd", "kl_forward", "kl_backward"]
Reduction = Literal["token_mean", "sum", "term_means"]
ONE_DIVERGENCE = {"kl_forward": "forward", "kl_backward": "reverse"}  # the settings of the paper's ablation


@dataclass(frozen=True, eq=False)
class MCD(Distillation):
    """Masked consistency distillation at one gap and one temperature.

    Args:
        delta: the gap t - s
        divergence: where both views are masked: KL(student || teacher), KL(teacher || student), Jensen-Shannon, total
            variation; cross-entropy on the tokens that only the teacher sees. `kl_forward` and `kl_backward` are the
            ablation's: one divergence over all of them, where a token that the teacher sees is a point mass
        reduction: one mean over the positions masked for the student; the sum over a sequence's positions (mean over
            sequences); or the mean of each of the two terms, added
        reconstruct: weight of the second term, the tokens that only the teacher sees; 0 leaves it out
    """

    tau: float = 0.96
    delta: float = 1 / 512
    divergence: Loss = "reverse"
    reduction: Reduction = "token_mean"
    reconstruct: float = 1.0

    forwards: ClassVar[float] = 4
    curriculum: ClassVar[Curriculum] = Curriculum()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_gap(self.delta)
        if not 0 <= self.reconstruct < math.inf:
            raise UserError(f"reconstruct is a weight, 0 or more, not {self.reconstruct}")
        check_name("divergence", self.divergence, get_args(Loss))
        check_name("reduction", self.reduction, get_args(Reduction))

    def at(self, round: int, curriculum: Curriculum, teacher: Source) -> MCD:
        return replace(self, teacher=teacher, delta=curriculum.delta(round), tau=curriculum.tau(round))

    def __call__(self, student: Denoiser, batch: Batch, *, step: int, generator: torch.Generator) -> LossOutput:
        self._frozen.check(student)
        x0_BL, rows = batch.tokens_BL, rows_of(batch)
        t_T = stratified(batch.total, generator, low=self.delta)
        s_T = (t_T - self.delta).clamp(min=0)
        noise_TL = self._noise(batch, steps_of_gap(self.delta), generator, student)
        pair = self._process.couple(x0_BL, noise_TL[rows], s_T[rows], t_T[rows], states_of(student))
        weights = self._weights(pair, noise_TL, s_T, t_T, student)
        return self._loss_of(student, x0_BL, pair, self._score, *weights)

    def _score(self, target_ND: Tensor, token_N: Tensor) -> Score:
        """The loss of a piece, which lies either among the positions masked in both views or among the revealed."""
        name = ONE_DIVERGENCE.get(self.divergence)
        against_teacher = self._against(target_ND, name or self.divergence)
        run_compare, run_cross_entropy = self._fused(compare), self._fused(cross_entropy)

        def score(logits_CW: Tensor, part: slice) -> Scored:
            if part.start < len(target_ND):
                return against_teacher(logits_CW, part)
            if name is None:
                found = run_cross_entropy(logits_CW, token_N[part])
            else:
                found = run_compare(DIVERGENCES[name], logits_CW, point_mass(token_N[part], logits_CW), 1.0)
            return found if self.reconstruct == 1 else Scored(*(self.reconstruct * values for values in found))

        return score

    def _weights(
        self, pair: Pair, noise_TL: Tensor, s_T: Tensor, t_T: Tensor, student: Denoiser
    ) -> tuple[Tensor, float]:
        """weight_BL in float32, and what the losses are multiplied by, so that the engine's mean is the reduction.

        The engine gives sum(loss · weight) / sum(weight) over the global batch.
        """
        distil, reconstruct, identity, scale = 1.0, 1.0, 0.0, 1.0
        if self.reduction == "sum":  # a mean over all T L positions, times L
            identity, scale = 1.0, noise_TL.shape[1]
        elif self.reduction == "term_means":  # the weights of each term sum to 1
            # the regions of the whole global batch, whose tokens do not matter
            anything_TL = torch.zeros(noise_TL.shape[:2], dtype=torch.int64)
            everyone = self._process.couple(anything_TL, noise_TL, s_T, t_T, states_of(student))
            counts = int(everyone.distil.sum()), int(everyone.reconstruct.sum())
            distil, reconstruct = (1 / max(1, count) for count in counts)
            scale = sum(count > 0 for count in counts)
        masked_BL = torch.where(pair.distil, distil, reconstruct)
        return torch.where(pair.scored, masked_BL, identity).float(), scale
