"""`unmask bench duo`: our training step of Duo against the plain one, with and without the curriculum, in one run.

Plain is the algorithm as one would write it down: logits at every position, a float32 table of their softmax, the
NELBO's sum and gathers from it, autograd; in the curriculum also the whole Gaussian latent of positions x states, its
softmax and the product with the table of tokens. It has the very body ours has (compiled, if ours is), so the
difference is what is done with the vocabulary.

Shapes: B sequences, L positions, K = V states.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from unmask.bench.steps import COLUMNS, Loss, Steps, checked_place, in_words, ratios
from unmask.bench.timing import Preset, Row, random_model, rate_of, show
from unmask.core import provenance
from unmask.core.devices import to_device
from unmask.core.progress import note
from unmask.core.streams import stream
from unmask.data.loader import Batch
from unmask.models.denoiser import states_of
from unmask.models.dit.network import DiT
from unmask.models.family import config_to_json, family_of
from unmask.objectives.duo import Duo, SoftStart, latent_at
from unmask.processes.schedule import stratified
from unmask.processes.soft import signal_and_noise

SOFT = 10**9  # steps of a curriculum that never ends


def duo(
    *,
    preset: Preset = "pocket",
    length: int | None = None,
    batch: int | None = None,
    accumulate: int = 1,
    device: str = "auto",
    compile: bool | None = None,
    repeats: int = 5,
    seconds: float = 3.0,
    json: bool = False,
) -> dict[str, Any]:
    """Time one optimiser step of Duo's training, the plain one and ours, side by side.

    Args:
        preset: the model's shape, with random weights (speed does not depend on what it learnt)
        length: tokens in a sequence (default: the model's)
        batch: sequences in a micro-batch; by default the most that the plain curriculum can hold on a GPU, 8 elsewhere
        accumulate: micro-batches in an optimiser step
        device: where to run: auto, cpu, cuda or mps
        compile: compile the body and our loss, by default on a GPU only
        repeats: timed repeats of each row, the median counts
        seconds: about the most to spend on the repeats of a row
        json: print JSON instead of a table
    """
    place = checked_place(device, seconds, accumulate, repeats, batch, length)
    cuda = place.type == "cuda"
    bench = Bench(random_model(preset, time=True), place, length, cuda if compile is None else compile)
    # a batch of another size is a shape of its own, not the start of a slower kernel for all sizes
    with torch._dynamo.config.patch(automatic_dynamic_shapes=False) if cuda else nullcontext():
        B = batch or (bench.largest_batch(bench.plain_soft) if cuda else 8)
        lines = []
        for name, loss in bench.losses.items():
            lines.append(bench.row(name, loss, B, accumulate, repeats, seconds))
            said = {head: cell(lines[-1]) for head, cell in COLUMNS.items() if head}
            note(f"{name}: " + ", ".join(f"{value} {head}" for head, value in said.items() if value))
    found = {line["name"]: line for line in lines}
    result: Row = {
        "lines": lines,
        "ratios": {
            "nelbo": ratios(found["plain"], found["ours"]),
            "curriculum": ratios(found["plain, curriculum"], found["ours, curriculum"]),
        },
        "matmul_tflops": rate_of(place) / 1e12,
        "model": config_to_json(bench.student),
        "length": bench.L,
        "batch": B,
        "accumulate": accumulate,
        "compiled": bench.compiled,
        "record": provenance.record(place),
    }
    sequences = f"{accumulate} x " * (accumulate > 1) + f"{B} sequences of {bench.L}"
    words = [in_words(ratio, f"{name}: ") for name, ratio in result["ratios"].items()]
    show(result, json, f"A training step of Duo on {result['record']['device']}: {sequences}", COLUMNS, words)
    return result


class Bench(Steps):
    """A student and the losses of its rows."""

    def __init__(self, student: DiT, place: torch.device, length: int | None, compile: bool) -> None:
        super().__init__(student, place, length, compile)
        self.ours = {
            "ours": Duo(),
            "ours, curriculum": Duo(soft=SoftStart(soft_steps=SOFT)),
            "ours, curriculum, all of the latent": Duo(soft=SoftStart(soft_steps=SOFT, soft_top=0)),
        }
        if compile:
            for objective in self.ours.values():
                objective.compile()

    @property
    def losses(self) -> dict[str, Loss]:
        ours = {name: self._loss(objective) for name, objective in self.ours.items()}
        first, *curricula = ours.items()
        return dict([("plain", self.plain), first, ("plain, curriculum", self.plain_soft), *curricula])

    def _loss(self, objective: Duo) -> Loss:
        def loss(batch: Batch) -> Tensor:
            output = objective(self.student, batch, step=0, generator=stream(0, "noise"))
            return (output.loss_BL * output.weight_BL).sum()

        return loss

    def plain(self, batch: Batch) -> Tensor:
        """Tokens drawn anew, evenly, with probability 1 - alpha; the NELBO at all positions."""
        generator, x0_BL, process = stream(0, "noise"), batch.tokens_BL, self.ours["ours"].process
        rows = slice(batch.start, batch.start + len(x0_BL))
        t_B = stratified(batch.total, generator)[rows]
        u_TL = torch.rand(batch.total, self.L, generator=generator, dtype=torch.float64)
        noise_BL = process.noise(u_TL, states_of(self.student), generator)[rows]
        z_BL = process.corrupt(x0_BL, noise_BL, t_B, states_of(self.student))
        schedule = process.schedule
        return self.nelbo(self.student.embed(z_BL), z_BL, x0_BL, schedule.gamma(t_B), schedule.derivative(t_B))

    def plain_soft(self, batch: Batch) -> Tensor:
        """The whole latent of all positions, its argmax, its softmax and what the network reads of it."""
        generator, x0_BL, K = stream(0, "noise"), batch.tokens_BL, self.student.vocab_size
        soft = self.ours["ours, curriculum"].soft
        t_B = stratified(batch.total, generator)[batch.start : batch.start + len(x0_BL)]
        noise_B, at, span = latent_at(t_B, soft.soft_window, K)
        alpha_B, sigma_B = (to_device(value.float(), self.place) for value in signal_and_noise(noise_B))
        w_BLK = alpha_B[:, None, None] * torch.nn.functional.one_hot(x0_BL, K)
        w_BLK = w_BLK + sigma_B[:, None, None] * torch.randn(*x0_BL.shape, K, device=self.place)
        read_BLD = self.student.embed((w_BLK / soft.soft_tau).softmax(-1))
        return self.nelbo(read_BLD, w_BLK.argmax(-1), x0_BL, at.alpha, span * at.slope)

    def nelbo(self, read_BLD: Tensor, z_BL: Tensor, x0_BL: Tensor, alpha_B: Tensor, slope_B: Tensor) -> Tensor:
        """a'/(K a) · [ K/xbar_z - K/pbar_z - sum_j (xbar_j/xbar_z) log( pbar_z xbar_j / (pbar_j xbar_z) ) ], where
        xbar = K a x + 1 - a and pbar is the same of the model's law: one sum and two gathers, as Duo has it."""
        K, time_B = self.student.vocab_size, to_device((-alpha_B.log()).float(), self.place)
        logits_BLK = self.student.logits(self.student.features(read_BLD, time=time_B))
        a, slope = (to_device(value.float(), self.place)[:, None] for value in (alpha_B, slope_B))
        pbar_BLK = K * a[..., None] * logits_BLK.float().softmax(-1) + (1 - a)[..., None]
        log_BLK = pbar_BLK.log()
        pbar_z, log_z, log_x = (
            table.gather(-1, place[..., None])[..., 0]
            for table, place in ((pbar_BLK, z_BL), (log_BLK, z_BL), (log_BLK, x0_BL))
        )
        same = z_BL == x0_BL
        big, small = K * a + 1 - a, 1 - a
        xbar_z = torch.where(same, big, small)
        others = K * log_z - log_BLK.sum(-1)  # sum over all j of log(pbar_z / pbar_j)
        summed = torch.where(
            same,
            small / big * (others + (K - 1) * (small / big).log()),
            others + (big / small - 1) * (log_z - log_x) - big / small * (small / big).log(),
        )
        return (slope / (K * a) * (K / xbar_z - K / pbar_z - summed)).sum()

    def flops(self, name: str) -> float:
        """Of the products for one token: three passes, two of them backward; the soft input's own are left out."""
        body, head = family_of(self.student).flops(self.student, self.L)
        return 3 * (body + head)
