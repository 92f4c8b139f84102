"""How well a model in training predicts held-out text: the mean over sequences with its standard error.

The numbers are those of metrics.elbo: the ELBO for a masked model, the exact likelihood for a causal one. Noise is
fixed, whatever the run's seed, and stratified over the sequences, so two evaluations differ by the weights alone; the
standard error treats sequences as independent, which overstates it. The sequences are shared out over the processes.

Shapes: B sequences, L positions, T all sequences of the evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from unmask.core.devices import to_device
from unmask.core.errors import UserError
from unmask.core.ranks import Ranks
from unmask.core.streams import stream
from unmask.data.answers import Data
from unmask.data.loader import Batch
from unmask.metrics.elbo import elbo_of, nll_of, order_agnostic_masks, process_elbo_of, process_views
from unmask.models.denoiser import Denoiser, states_of
from unmask.objectives.base import check_given, given_in
from unmask.processes import Process

ATTENTION_SEQUENCES = 4

Scorer = Callable[[Tensor, slice], Tensor]  # of sequences and their places among all: nats per token of each
Own = Callable[..., Scorer]  # (student, first=the first batch)


@dataclass(frozen=True)
class HeldOutScore:
    """Nats per token on held-out text: the mean over sequences and its standard error."""

    kind: str  # "elbo", "nelbo": upper bounds on the negative log-likelihood; "nll": the thing itself
    nats: float
    stderr: float | None  # None of a single sequence
    sequences: int

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.nats, 700.0))

    def __str__(self) -> str:
        return f"{self.kind.upper()} {with_stderr(self.nats, self.stderr)} nats/token, perplexity {self.perplexity:.1f}"


def with_stderr(value: float, stderr: float | None, digits: int = 4) -> str:
    """A number and its standard error, where it has one."""
    return f"{value:.{digits}f}" + ("" if stderr is None else f" ± {stderr:.{digits}f}")


@torch.no_grad()
def likelihood(
    student: Denoiser, data: Data, *, sequences: int, micro_batch: int, process: Process | None, ranks: Ranks,
    autocast: Callable[[], AbstractContextManager[None]] = nullcontext, own: Own | None = None,
) -> HeldOutScore:  # fmt: skip
    """Evaluate a student (in eval mode) on blocks evenly spaced over the split, shared by all processes; `own`: a
    scorer."""
    if data.blocks < ranks.world:
        raise UserError(f"the {data.split} split has {data.blocks} blocks of {data.length} tokens for {ranks.world} "
                        "processes: hold out more text, or use --eval_every 0")  # fmt: skip
    total = max(ranks.world, min(sequences, data.blocks) // ranks.world * ranks.world)
    batches = list(data.eval_batches(total, micro_batch * ranks.world))
    score = (own or partial(_scorer, process=process))(student, first=batches[0])
    values_T = torch.zeros(total, dtype=torch.float32, device=ranks.device)
    for batch in batches:
        share = len(batch.tokens_BL) // ranks.world
        rows = slice(ranks.rank * share, (ranks.rank + 1) * share)
        places = slice(batch.start + rows.start, batch.start + rows.stop)
        with autocast():
            values_T[places] = score(to_device(batch.tokens_BL[rows], ranks.device), places).float()
    values_T = ranks.sum(values_T).cpu().double()
    stderr = float(values_T.std()) / math.sqrt(total) if total > 1 else None
    kind = "nelbo" if own else "nll" if process is None else "elbo"
    return HeldOutScore(kind, float(values_T.mean()), stderr, total)


def _scorer(student: Denoiser, *, process: Process | None, first: Batch) -> Scorer:
    """A function of sequences and their places among all: nats per token of each, which `first` is the first batch of.
    No process: of a causal model. Where prompts are given: of the answers and what fills them up."""
    if process is None:
        return lambda x0_BL, places: nll_of(student, x0_BL)
    check_given(first, process)
    noise, total, length, given_TL = stream(0, "evaluate"), first.total, first.tokens_BL.shape[1], given_in(first)
    if process.by_plan:
        masked_TL = order_agnostic_masks(total, length, noise, given_TL=given_TL)[0]
        return lambda x0_BL, places: elbo_of(student, x0_BL, masked_TL[places])
    views = process_views(process, states_of(student), total, length, noise)
    return lambda x0_BL, places: process_elbo_of(student, process, x0_BL, *(part[places] for part in views))


def half_masked(data: Data, mask_id: int | None) -> Tensor:
    """A few sequences evenly spaced over the loader's split, half of each masked (where there is a mask)."""
    count = min(ATTENTION_SEQUENCES, data.blocks)
    x0_BL = torch.cat([batch.tokens_BL for batch in data.eval_batches(count, count)])
    if mask_id is None:
        return x0_BL
    place_BL = torch.rand(x0_BL.shape, generator=stream(0, "attention")).argsort(-1)
    return x0_BL.masked_fill(place_BL < x0_BL.shape[1] / 2, mask_id)
