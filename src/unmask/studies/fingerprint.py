"""What a sampler does, as a key: tokens and log q of a fixed tiny draw.

A kept cell is found again by the law that drew it. Code that changes the law (the draw, a plan, a rule of ties) changes
the tiny draw, and so the key: cells of the old law are drawn again, without a version number that somebody must
remember to raise. A draw takes milliseconds, and is made once a process for every plan, grid and temperature.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from unmask.checkpoint.io import Checkpoint
from unmask.core.hashing import key_of
from unmask.core.streams import stream
from unmask.inference.categorical import Law
from unmask.inference.ready import make_ready
from unmask.inference.step_law import Factorised, StepLaw
from unmask.models.dit.network import DiT
from unmask.models.family import family_of
from unmask.plans.grids import Grid
from unmask.plans.plan import Plan
from unmask.processes import Process
from unmask.sampling.causal import draw_texts
from unmask.sampling.sample import start_run
from unmask.theory.oracle import Enumerated, sticky

TEXTS, CPU = 4, torch.device("cpu")


class _Table:
    """A denoiser of lines of 6 tokens in 4 states: each looks at itself and at its left neighbour."""

    vocab_size, length = 4, 6

    def __init__(self, masked: bool) -> None:
        self.mask_id = 3 if masked else None

    def features(self, z: Tensor, time: Tensor | None = None) -> Tensor:
        table_VV = torch.linspace(-1, 2, 16, dtype=torch.float64).view(4, 4).sin()
        return table_VV[z] + 0.5 * table_VV.T[z.roll(1, -1)]

    def logits(self, h: Tensor) -> Tensor:
        return h


@cache
def behaviour(
    plan: str | Plan | None, grid: Grid, heat: float, process: Process, step_law: StepLaw, masked: bool
) -> str:  # fmt: skip
    """Of the sampler: where it goes by a plan with an exact denoiser of lines of 6 tokens, in float64."""
    model = Enumerated(sticky(length=6, tokens=3)) if process.by_plan else _Table(masked)

    def draw(law: StepLaw) -> str:
        tiny = Checkpoint(model, process=process, step_law=law)
        run = start_run(tiny, make_ready(model, CPU), plan=plan, grid=grid, law=Law(heat))
        rows = run.batch(list(range(TEXTS)), torch.full((TEXTS, model.length), -1))
        return _key(torch.stack([row.tokens_L for row in rows]), torch.stack([row.log_q_L for row in rows]), digits=9)

    try:
        return draw(step_law)
    except Exception:
        if isinstance(step_law, Factorised):
            raise
        return draw(Factorised())  # a law that reads a network's own features is known by its settings alone


@cache
def causal_behaviour(temperature: float) -> str:
    """Of the causal sampler: a network of fixed weights, in float32, and so to fewer digits."""
    model = DiT(9, 6, hidden=16, cond=8, blocks=1, heads=2, dropout=0.0, causal=True).eval()
    generator = stream(0, "fingerprint")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    family = family_of(model)
    network = family.causal_copy(model, torch.float32, CPU)
    with torch.inference_mode():
        drawn = draw_texts(family, network, 0, list(range(TEXTS)), Law(temperature), 0, CPU)
    return _key(*drawn, digits=3)


def _key(tokens_TL: Tensor, log_q_TL: Tensor, digits: int) -> str:
    """Rounded: the last digits may differ from machine to machine."""
    return key_of(tokens_TL.tolist(), [[f"{x:.{digits}g}" for x in row] for row in log_q_TL.double().tolist()])[:24]
