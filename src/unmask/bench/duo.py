"""`unmask bench duo`: our training step of Duo against the plain one, with and without the curriculum, in one run.

Plain is the algorithm as one would write it down: logits at every position, a float32 table of their softmax, the
NELBO's sum and gathers from it, autograd; in the curriculum also the whole Gaussian latent of positions x states, its
softmax and the product with the table of tokens. It has the very body ours has (compiled, if ours is), so the
difference is what is done with the vocabulary.

Shapes: B sequences, L positions, K = V states.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unmask.bench.steps import Loss, StepOptions, Steps, time_losses
from unmask.bench.timing import random_model
from unmask.core.devices import to_device
from unmask.core.streams import stream
from unmask.core.verbs import verb
from unmask.data.loader import Batch
from unmask.models.denoiser import states_of
from unmask.models.dit.network import DiT
from unmask.models.family import family_of
from unmask.objectives.duo import Duo, SoftStart, latent_at
from unmask.processes.schedule import stratified
from unmask.processes.soft import signal_and_noise

SOFT = 10**9  # steps of a curriculum that never ends


@verb
def duo(*, seconds: float = 3.0, options: StepOptions) -> dict[str, Any]:
    """Time one optimiser step of Duo's training, the plain one and ours, side by side.

    Args:
        seconds: about the most to spend on the repeats of a row
    """
    bench = Bench(random_model(options.preset, time=True), options.place, options.length, options.compiled)
    pairs = {"nelbo": ("plain", "ours"), "curriculum": ("plain, curriculum", "ours, curriculum")}
    title = "A training step of Duo"
    return time_losses(bench, title, bench.losses, pairs, options, seconds, largest=bench.plain_soft)


class Bench(Steps):
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
