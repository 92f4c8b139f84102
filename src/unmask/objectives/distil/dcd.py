"""DCD: discrete consistency distillation, Duo's, one round of it. The uniform shadow of MCD.

One Gaussian noise a position gives two views of a text, the argmax of its latent at t and at s = t - delta: a token
that is lost at t only is itself at s, one that is lost at both is the same other token. The student learns to say of
z_t what the teacher says of z_s, at every position, since z_t does not show which tokens are the text's own:

L = mean over i of D(p_student(. | z_t), p_teacher(. | z_s; tau))

Time is that of the latent: its noise log(sigma^2 / alpha^2), which Duo calls gamma, rises evenly from one end of a
window to the other. The process's own clock is another: `clock` reads it off the share of tokens not drawn anew.

Shapes: B sequences, L positions, T = batch.total rows of the global batch, N = B L positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from unmask.core.errors import UserError, check_name
from unmask.models.denoiser import Denoiser, states_of
from unmask.objectives.base import Batch, LossOutput, rows_of
from unmask.objectives.distil.base import Distillation, Source, check_gap, steps_of_gap
from unmask.objectives.distil.curriculum import Curriculum
from unmask.objectives.divergences import DIVERGENCES
from unmask.objectives.duo import check_window, latent_at
from unmask.processes import Process, Uniform
from unmask.processes.schedule import stratified

WINDOW = (0.9987, 0.0062)  # Duo's noise from -4 to -1 at GPT-2's 50,258 states


def clock(t: Tensor, window: Sequence[float], process: Process, K: int) -> Tensor:
    """The process's time at which as many tokens are kept as in the latent at its time t."""
    return process.schedule.inverse(latent_at(t, window, K)[1].alpha).clamp(0, 1)


@dataclass(frozen=True, eq=False)
class DCD(Distillation):
    """Discrete consistency distillation at one gap.

    Args:
        delta: the gap t - s, in the latent's time
        divergence: of the student's law from the teacher's; `reverse` is KL(student || teacher), as published
        window: the share of tokens that have not been drawn anew, at times 0 and 1
    """

    delta: float = 1 / 512
    divergence: Literal["reverse", "forward", "jsd", "tvd"] = "reverse"
    window: Sequence[float] = WINDOW

    forwards: ClassVar[float] = 4
    regions: ClassVar[tuple[str, ...]] = ("distil",)
    curriculum: ClassVar[Curriculum] = Curriculum(tau_start=1.0, tau_drop=0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_gap(self.delta)
        check_name("divergence", self.divergence, DIVERGENCES)
        check_window("window", self.window)
        if not isinstance(self._process, Uniform):
            raise UserError(f"DCD is for the uniform process, and the teacher's is {self._process.name}: take mcd")

    def at(self, round: int, curriculum: Curriculum, teacher: Source) -> DCD:
        return replace(self, teacher=teacher, delta=curriculum.delta(round), tau=curriculum.tau(round))

    def __call__(self, student: Denoiser, batch: Batch, *, step: int, generator: torch.Generator) -> LossOutput:
        self._frozen.check(student)
        x0_BL, rows, states = batch.tokens_BL, rows_of(batch), states_of(student)
        t_T = stratified(batch.total, generator, low=self.delta)
        both_2T = torch.stack([t_T, (t_T - self.delta).clamp(min=0)])
        t_B, s_B = clock(both_2T[:, rows], self.window, self._process, states.size)
        noise_BL = self._noise(batch, steps_of_gap(self.delta), generator, student)[rows]
        pair = self._process.couple(x0_BL, noise_BL, s_B, t_B, states)
        return self._loss_of(student, x0_BL, pair, lambda target_ND, _: self._against(target_ND, self.divergence))
