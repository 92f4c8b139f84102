"""`unmask bench distill`: our MCD step against the plain one, same models, same noise, same run.

Plain is the algorithm as one would write it down: full logits of both models at every position, float32 log-softmax
tables of them, the divergence and the cross-entropy from these, autograd. It has the very bodies ours has (compiled, if
ours are), so the difference is what is done with the vocabulary. A step is forward, backward and AdamW, over
`accumulate` micro-batches; a timed repeat is several steps in a row, as in training, where the host prepares the next
step while the device works on this one.

Shapes: B sequences, L positions, V states.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from unmask.bench.steps import COLUMNS, Steps, checked_place, in_words, ratios
from unmask.bench.timing import Preset, Row, random_model, rate_of, show
from unmask.core import provenance
from unmask.core.devices import to_device
from unmask.core.errors import UserError
from unmask.core.streams import stream
from unmask.data.loader import Batch
from unmask.models.denoiser import log_probs, states_of
from unmask.models.dit.network import DiT
from unmask.models.family import config_to_json, family_of
from unmask.objectives.distil.mcd import MCD
from unmask.objectives.distil.teacher import Teacher
from unmask.plans.plan import draw_u
from unmask.processes.schedule import stratified


def distill(
    *,
    preset: Preset = "pocket",
    length: int | None = None,
    batch: int | None = None,
    accumulate: int = 1,
    delta: float = 1 / 512,
    device: str = "auto",
    compile: bool | None = None,
    only_ours: bool = False,
    repeats: int = 5,
    seconds: float = 60.0,
    json: bool = False,
) -> dict[str, Any]:
    """Time one optimiser step of MCD, the plain one and ours, side by side.

    Args:
        preset: the models' shape, with random weights (speed does not depend on what they learnt)
        length: tokens in a sequence (default: the model's)
        batch: sequences in a micro-batch; by default the most that the plain step can hold on a GPU, 8 elsewhere
        accumulate: micro-batches in an optimiser step
        delta: the gap between the views
        device: where to run: auto, cpu, cuda or mps
        compile: compile the bodies and our loss, by default on a GPU only
        only_ours: leave the plain step out (a batch that only ours can hold)
        repeats: timed repeats of each row, the median counts
        seconds: about the most to spend on the repeats of a row
        json: print JSON instead of a table
    """
    place = checked_place(device, seconds, accumulate, repeats, batch, length)
    cuda = place.type == "cuda"
    if cuda and only_ours and batch is None:
        raise UserError("without the plain step nobody knows what it can hold: give --batch")
    bench = Bench(random_model(preset), place, length, delta, cuda if compile is None else compile)
    # a batch of another size is a shape of its own, not the start of a slower kernel for all sizes
    with torch._dynamo.config.patch(automatic_dynamic_shapes=False) if cuda else nullcontext():
        B = batch or (bench.largest_batch(bench.plain) if cuda else 8)
        losses = {"ours": bench.ours} if only_ours else {"plain": bench.plain, "ours": bench.ours}
        lines = [bench.row(name, loss, B, accumulate, repeats, seconds) for name, loss in losses.items()]
    result: Row = {
        "lines": lines,
        "ratios": {} if only_ours else ratios(*lines),
        "matmul_tflops": rate_of(place) / 1e12,
        "model": config_to_json(bench.student),
        "length": bench.L,
        "batch": B,
        "accumulate": accumulate,
        "compiled": bench.compiled,
        "record": provenance.record(place, delta=delta),
    }
    sequences = f"{accumulate} x " * (accumulate > 1) + f"{B} sequences of {bench.L}"
    words = [] if only_ours else [in_words(result["ratios"])]
    show(result, json, f"An MCD step on {result['record']['device']}: {sequences}", COLUMNS, words)
    return result


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
