"""How well a model predicts held-out text, in nats per token, with a standard error over sequences.

For a masked model this is the ELBO in its order-agnostic form: draw k uniformly from 1..L, mask k positions of the
sequence at random, and take the mean of -log p(x_i | the rest) over them. Its mean over k is the continuous-time
NELBO / L of *every* schedule that runs from clean to all masked, with less noise; a true upper bound on the negative
log-likelihood. (MDLM's own estimate stops at mask probability 1 - eps = 0.999 and so lies up to 0.1% of the all-masked
loss lower.) For a causal model it is the exact -log p(x_i | x_<i), first token not scored.

Noise is fixed by the seed and k stratified over the sequences, so two evaluations differ by the weights alone; the
standard error treats sequences as independent, which overstates it.

Refuses to know training. Shapes: B sequences, L positions, N chosen positions, T all sequences of the evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.streams import stream
from unmask.data.loader import Loader
from unmask.models.denoiser import Denoiser
from unmask.models.ema import EMA
from unmask.objectives.divergences import token_nll
from unmask.parallel.ranks import Ranks
from unmask.parallel.wrap import Wrapped
from unmask.process.times import stratified


@dataclass(frozen=True)
class Likelihood:
    """Nats per token on held-out text: the mean over sequences and its standard error."""

    kind: str  # "elbo": an upper bound on the negative log-likelihood; "nll": the thing itself
    nats: float
    stderr: float
    sequences: int

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.nats, 700.0))

    def __str__(self) -> str:
        name = "ELBO" if self.kind == "elbo" else "NLL"
        return f"{name} {self.nats:.4f} ± {self.stderr:.4f} nats/token, perplexity {self.perplexity:.1f}"


def order_agnostic_masks(total: int, length: int, generator: torch.Generator) -> Tensor:
    """masked_TL with k positions each, k stratified over 1..L, at random places."""
    k_T = torch.ceil(stratified(total, generator) * length)
    rank_TL = torch.rand(total, length, generator=generator, dtype=torch.float64).argsort(dim=1)
    return rank_TL < k_T[:, None]


def elbo_of(student: Denoiser, x0_BL: Tensor, masked_BL: Tensor) -> Tensor:
    """The order-agnostic ELBO term of each sequence, in nats per token: mean of -log p(x_i | z) over masked i."""
    chosen = masked_BL.flatten().nonzero()[:, 0].to(x0_BL.device)
    masked_BL = masked_BL.to(x0_BL.device)
    h_ND = student.features(torch.where(masked_BL, student.mask_id, x0_BL)).flatten(0, 1)[chosen]
    nll_N = token_nll(student.logits(h_ND), x0_BL.flatten()[chosen], student.mask_id)
    nll_BL = nll_N.new_zeros(x0_BL.numel()).index_put((chosen,), nll_N).view_as(x0_BL)
    return nll_BL.sum(1) / masked_BL.sum(1)


def nll_of(student: Denoiser, x0_BL: Tensor) -> Tensor:
    """The exact -log p(x_2..L | x_1) of each sequence under a causal model, per scored token."""
    h_ND = student.features(x0_BL[:, :-1]).flatten(0, 1)
    nll_N = token_nll(student.logits(h_ND), x0_BL[:, 1:].flatten(), student.mask_id)
    return nll_N.view(len(x0_BL), -1).mean(1)


@torch.no_grad()
def likelihood(
    student: Denoiser, data: Loader, *, sequences: int, micro_batch: int, causal: bool, ranks: Ranks, seed: int = 0,
    autocast: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Likelihood:
    """Evaluate a student (in eval mode) on `sequences` blocks evenly spaced over the loader's split.

    All processes call this together and share the sequences; each runs the same number of forward passes.
    """
    if data.blocks < ranks.world:
        raise UserError(f"the {data.split} split has {data.blocks} blocks of {data.length} tokens, fewer than the "
                        f"{ranks.world} processes that share it: hold out more text, or use --eval_every 0")
    total = max(ranks.world, min(sequences, data.blocks) // ranks.world * ranks.world)
    masked_TL = None if causal else order_agnostic_masks(total, data.length, stream(seed, "evaluate"))
    values_T = torch.zeros(total, dtype=torch.float32, device=ranks.device)
    for batch in data.eval_batches(total, micro_batch * ranks.world):
        share = len(batch.tokens_BL) // ranks.world
        rows = slice(ranks.rank * share, (ranks.rank + 1) * share)
        places = slice(batch.start + rows.start, batch.start + rows.stop)
        x0_BL = batch.tokens_BL[rows].to(ranks.device)
        with autocast():
            value_B = nll_of(student, x0_BL) if masked_TL is None else elbo_of(student, x0_BL, masked_TL[places])
        values_T[places] = value_B.float()
    values_T = ranks.sum(values_T).cpu().double()
    stderr = float(values_T.std()) / math.sqrt(total) if total > 1 else math.inf
    return Likelihood("nll" if causal else "elbo", float(values_T.mean()), stderr, total)


@contextmanager
def averaged(wrapped: Wrapped, ema: EMA) -> Iterator[None]:
    """The student with its averaged weights and in eval mode, for the length of a block."""
    student = wrapped.student
    training = student.training
    raw = [parameter.detach().clone() for parameter in student.parameters()]
    ema.copy_to(student)
    student.eval()
    try:
        yield
    finally:
        wrapped.reshard()
        with torch.no_grad():
            for parameter, value in zip(student.parameters(), raw, strict=True):
                parameter.copy_(value)
        student.train(training)
