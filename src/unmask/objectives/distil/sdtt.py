"""SDTT: self-distillation through time, one round of it.

From a view z_t the frozen teacher takes k ancestral steps of delta/k by itself. The target at a position is the
teacher's law at the step that revealed it, or at the last step if it is still masked; the student learns to give all
of it at once, from z_t.

One u a position says when it is revealed: u masks it at t, and the same u says in which small step it becomes visible,
 with the ancestral law P(masked at s | masked at t) = (1 - gamma_s)/(1 - gamma_t). So the draw runs only where
a step reveals something, and the last step draws nothing, since no one reads what it reveals.

Shapes: B sequences, L positions, T = batch.total rows of the global batch, N positions masked for the student, D
features.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar, Literal

import torch
from torch import Tensor

from unmask.core.devices import to_device
from unmask.core.errors import UserError, check_name
from unmask.models.denoiser import Denoiser, states_of
from unmask.objectives.base import DISTIL, IDENTITY, Batch, LossOutput, positions_where, rows_of
from unmask.objectives.distil.base import Distillation, Source, check_gap, steps_of_gap
from unmask.objectives.distil.curriculum import Curriculum
from unmask.objectives.divergences import DIVERGENCES
from unmask.objectives.head_loss import loss_at
from unmask.processes.masked import hide, is_masked
from unmask.processes.schedule import stratified


@dataclass(frozen=True, eq=False)
class SDTT(Distillation):
    """Self-distillation through time at one gap.

    The teacher draws from its own law; tau sharpens the target only.

    Args:
        delta: the student's jump; the teacher's step is delta/k
        k: teacher steps in one student step
        divergence: of the student's law from the target; `reverse` is KL(student || teacher), as published
    """

    delta: float = 1 / 512
    k: int = 2
    divergence: Literal["reverse", "forward", "jsd", "tvd"] = "reverse"

    regions: ClassVar[tuple[str, ...]] = ("distil",)
    curriculum: ClassVar[Curriculum] = Curriculum(rounds=7, tau_start=1.0, tau_drop=0.0)  # down to 8 student steps

    def __post_init__(self) -> None:
        super().__post_init__()
        check_gap(self.delta)
        if self.k < 1:
            raise UserError(f"the teacher takes at least k = 1 steps, not {self.k}")
        check_name("divergence", self.divergence, DIVERGENCES)

    @property
    def forwards(self) -> float:
        return 3 + self.k

    def at(self, round: int, curriculum: Curriculum, teacher: Source) -> SDTT:
        return replace(self, teacher=teacher, delta=curriculum.delta(round), tau=curriculum.tau(round))

    def __call__(self, student: Denoiser, batch: Batch, *, step: int, generator: torch.Generator) -> LossOutput:
        self._frozen.check(student)
        x0_BL, rows = batch.tokens_BL, rows_of(batch)
        t_B = stratified(batch.total, generator, low=self.delta)[rows]
        if not self._process.by_plan:
            raise UserError(f"SDTT rolls out a masked process, and this one is {self._process.name}: take dcd or elbo")
        u_BL = self._noise(batch, steps_of_gap(self.delta), generator, student)[rows]
        noise_BL = torch.rand(batch.total, x0_BL.shape[1], generator=generator, dtype=torch.float64)[rows]

        times = [(t_B - j * self.delta / self.k).clamp(min=0) for j in range(self.k)]  # each step starts at one of them
        masked = [is_masked(u_BL, self._process.schedule.gamma(time)) for time in times]
        z_BL = hide(x0_BL, masked[0], states_of(student))
        chosen_N = positions_where(masked[0])
        target_ND = self._rollout(z_BL, x0_BL, masked, chosen_N, noise_BL)
        score = self._against(target_ND, self.divergence)
        loss_BL = loss_at(student, z_BL, to_device(chosen_N, x0_BL.device), score, x0_BL=x0_BL)
        weight_BL = to_device(masked[0], x0_BL.device).to(loss_BL.dtype)
        region_BL = torch.where(masked[0], DISTIL, IDENTITY).to(torch.int8)
        return LossOutput(loss_BL, weight_BL, to_device(region_BL, x0_BL.device))

    @torch.no_grad()
    def _rollout(self, z_BL: Tensor, x0_BL: Tensor, masked: list[Tensor], chosen_N: Tensor, noise_BL: Tensor) -> Tensor:
        """The teacher's features at N positions, each from the step that settles it.

        masked[j] says what is masked when step j starts: it settles whatever the next step does not.
        """
        device = z_BL.device
        z_BL = z_BL.clone()
        h_ND = self._frozen.features(z_BL, x0_BL=x0_BL).flatten(0, 1)
        target_ND = h_ND.index_select(0, to_device(chosen_N, device))
        for before_BL, after_BL in pairwise(masked):
            if len(revealed_M := positions_where(before_BL & ~after_BL)):
                at_M = to_device(revealed_M, device)
                noise_M = noise_BL.flatten()[revealed_M]
                if device.type == "cuda":  # elsewhere the draw knows best where float64 is
                    noise_M = to_device(noise_M, device)
                z_BL.view(-1)[at_M] = self._frozen.draw(h_ND, at_M, z_BL.shape[1], noise_M).to(device)
            h_ND = self._frozen.features(z_BL, x0_BL=x0_BL).flatten(0, 1)
            still_M = positions_where(after_BL.flatten()[chosen_N])
            target_ND.index_copy_(0, to_device(still_M, device), h_ND[to_device(chosen_N[still_M], device)])
        return target_ND
