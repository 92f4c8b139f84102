"""`unmask bench distill`: our MCD step against the plain one, same models, same noise, same run.

Plain is the algorithm as one would write it down: full logits of both models at every position, float32 log-softmax
tables of them, the divergence and the cross-entropy from these, autograd. It has the very bodies ours has (compiled, if
ours are), so the difference is what is done with the vocabulary.

Shapes: B sequences, L positions, V states.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from unmask.bench.steps import StepOptions, Steps, time_losses
from unmask.bench.timing import random_model
from unmask.core.devices import to_device
from unmask.core.errors import UserError
from unmask.core.streams import stream
from unmask.core.verbs import verb
from unmask.data.loader import Batch
from unmask.models.denoiser import log_probs, states_of
from unmask.models.dit.network import DiT
from unmask.models.family import family_of
from unmask.objectives.distil.mcd import MCD
from unmask.objectives.distil.teacher import Teacher
from unmask.plans.plan import draw_u
from unmask.processes.schedule import stratified


@verb
def distill(
    *, delta: float = 1 / 512, only_ours: bool = False, seconds: float = 60.0, options: StepOptions
) -> dict[str, Any]:
    """Time one optimiser step of MCD, the plain one and ours, side by side.

    Args:
        delta: the gap between the views
        only_ours: leave the plain step out (a batch that only ours can hold)
        seconds: about the most to spend on the repeats of a row
    """
    if options.place.type == "cuda" and only_ours and options.batch is None:
        raise UserError("without the plain step nobody knows what it can hold: give --batch")
    bench = Bench(random_model(options.preset), options.place, options.length, delta, options.compiled)
    losses = {"ours": bench.ours} if only_ours else {"plain": bench.plain, "ours": bench.ours}
    pairs = {} if only_ours else {"": ("plain", "ours")}
    return time_losses(bench, "An MCD step", losses, pairs, options, seconds, largest=bench.plain, delta=delta)


class Bench(Steps):
    """A student, its teacher and its optimiser, shared by all rows of the table."""

    def __init__(self, student: DiT, place: torch.device, length: int | None, delta: float, compile: bool) -> None:
        self.objective = MCD(student.to(place).train(), delta=delta)  # which copies the student before it is compiled
        super().__init__(student, place, length, compile)
        assert isinstance(self.objective.teacher, Teacher)
        self.teacher = self.objective.teacher
        self.teacher_head = copy.deepcopy(student.head).requires_grad_(False)
        self.teacher_condition = student._condition().detach()
        if compile:
            self.objective.compile()

    def ours(self, batch: Batch) -> Tensor:
        output = self.objective(self.student, batch, step=0, generator=stream(0, "noise"))
        return (output.loss_BL * output.weight_BL).sum()

    def plain(self, batch: Batch) -> Tensor:
        """The paper's equation on full tables."""
        generator, x0_BL, delta = stream(0, "noise"), batch.tokens_BL, self.objective.delta
        rows = slice(batch.start, batch.start + len(x0_BL))
        t_B = stratified(batch.total, generator, low=delta)[rows]
        u_BL = draw_u((batch.total, self.L), "iid", generator=generator)[rows]
        mask_id, states = self.student.mask_id, states_of(self.student)
        pair = self.teacher.process.couple(x0_BL, u_BL, t_B - delta, t_B, states)
        with torch.no_grad():
            logits_BLV = self.teacher_head(self.teacher.features(pair.z_s), self.teacher_condition)
            log_q_BLV = log_probs(logits_BLV / self.objective.tau, mask_id)
        log_p_BLV = log_probs(self.student(pair.z_t), mask_id)
        kl_BL = (log_p_BLV.exp() * (log_p_BLV - log_q_BLV)).sum(-1)
        nll_BL = -log_p_BLV.gather(-1, x0_BL[..., None])[..., 0]
        both_BL, revealed_BL = (to_device(mask_BL, self.place) for mask_BL in (pair.distil, pair.reconstruct))
        return (kl_BL * both_BL + nll_BL * revealed_BL).sum()

    def flops(self, name: str) -> float:
        """Of the products for one token: three passes of the student (two of them backward), one of the teacher."""
        masked = 1 - float(self.teacher.process.schedule.gamma(torch.tensor((1 + self.objective.delta) / 2)))
        body, head = family_of(self.student).flops(self.student, self.L)
        return 4 * (body + (masked if name == "ours" else 1.0) * head)
