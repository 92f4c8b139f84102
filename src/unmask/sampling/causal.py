"""Sampling a causal model with a cache of keys and values: the autoregressive rival.

Each token costs one position's work in every layer instead of the whole sequence's. The text starts from the
end-of-document token, which is not part of it; log q of every token is recorded as in the diffusion sampler.

Shapes: B texts, L tokens.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from unmask.checkpoint.io import Checkpoint
from unmask.core import provenance
from unmask.core.errors import UserError
from unmask.core.ranks import joined
from unmask.core.streams import stream, uniforms
from unmask.inference import categorical
from unmask.inference.categorical import Law
from unmask.inference.ready import Precision, draw_device, is_half, replayed, usual_batch
from unmask.models.denoiser import is_causal
from unmask.models.family import Family, Reader, family_of, plain
from unmask.sampling.samples import Samples


@torch.inference_mode()
def sample_causal(
    checkpoint: Checkpoint, n: int, *, temperature: float = 1.0, seed: int = 0, batch: int | None = None,
    device: str = "auto", precision: Precision = "auto",
) -> Samples:  # fmt: skip
    """Write n texts from left to right, each as long as the model; sample i draws the same noise whatever the batch."""
    model, tokenizer, law = plain(checkpoint.model), checkpoint.tokenizer, Law(temperature)
    if not is_causal(model):
        raise UserError("this model is not causal: draw from it with `unmask sample`")
    if tokenizer is None:
        raise UserError("this model has no tokenizer, so that it has no token to start a text from")
    if batch is not None and batch < 1:
        raise UserError(f"batch must be at least 1, not {batch}")
    with joined(device) as ranks:
        dtype = torch.bfloat16 if is_half(precision, ranks.device) else torch.float32
        family = family_of(model)
        network = family.causal_copy(model, dtype, ranks.device)
        size = batch or usual_batch(model, ranks.device)
        shares = [list(range(start, min(start + size, n))) for start in range(0, n, size)]
        draw = partial(draw_texts, family, network, tokenizer.eos_id, law=law, seed=seed, device=ranks.device)
        mine = [draw(part) for part in shares[ranks.rank :: ranks.world]]
        said = ranks.gather([[tokens.tolist(), log_q.tolist()] for tokens, log_q in mine])
    parts = [said[i % len(said)][i // len(said)] for i in range(len(shares))]
    tokens_nL = torch.tensor([row for tokens, _ in parts for row in tokens])
    log_q_nL = torch.tensor([row for _, log_q in parts for row in log_q], dtype=torch.float64)
    record = provenance.record(
        ranks.device, model=dict(checkpoint.provenance), plan={"name": "causal"}, steps=model.length,
        nfe=float(model.length), temperature=temperature, draw=law.dtype, seed=seed, n=n, cache="keys and values",
        precision=str(dtype).removeprefix("torch."),
    )  # fmt: skip
    text = [tokenizer.decode(row) for row in tokens_nL.tolist()]
    nfe_n = torch.full((n,), model.length)
    return Samples(tokens_nL, torch.zeros_like(tokens_nL, dtype=torch.bool), log_q_nL, nfe_n, text, record)


def draw_texts(
    family: Family, model: Any, start: int, indices: list[int], law: Law, seed: int, device: torch.device,
    read: Reader | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """A batch of texts and the log q of their tokens; a reader that has read other texts starts again."""
    uniform_BL = uniforms((stream(seed, "draw", i) for i in indices), model.length).to(draw_device(device))
    read = read or quick_reader(family, model, len(indices), device)
    read.restart()
    token_B = torch.full((len(indices),), start, device=device)
    tokens, log_q = [], []
    for place in range(model.length):
        drawn = categorical.draw(read(token_B), uniform_BL[:, place], model.mask_id, law)
        token_B = drawn.token_M.to(device)
        tokens.append(token_B)
        log_q.append(drawn.log_q_M.double())
    return torch.stack(tokens, dim=1).cpu(), torch.stack(log_q, dim=1).cpu()


def quick_reader(family: Family, model: Any, rows: int, device: torch.device) -> Reader:
    """A reader by CUDA graphs, where there are some."""
    return family.reader(model, rows, partial(replayed, device=device) if device.type == "cuda" else None)
