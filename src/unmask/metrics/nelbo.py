"""Likelihood on held-out text: the N-step NELBO of a sampler, and the usual ELBO of its model.

log q_u(x) is the log-probability with which the sampler writes a text x given its plan u (sampling/teacher_forcing).
NELBO_N = E_u E_data[-log q_u(x)] bounds the few-step sampler's own negative log-likelihood from above. There is no
judge to please, and sharpening a calibrated model does not improve it. Text i meets the same plan u in every model,
number of steps and grid, so differences are paired over texts and plans. A process that draws every position at every
step has the bound of its path instead (sampling/path_bound).

Shapes: T texts, B of them at once, L positions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unmask.checkpoint.identity import weights_hash
from unmask.checkpoint.io import Checkpoint
from unmask.core import provenance
from unmask.core.errors import UserError
from unmask.core.ranks import Ranks, interleaved, joined
from unmask.core.streams import stream
from unmask.inference.cache import block_of
from unmask.inference.categorical import Law
from unmask.inference.ready import Precision, make_ready, usual_batch
from unmask.metrics.elbo import elbo_of, nll_of, order_agnostic_masks, process_elbo_of, process_views
from unmask.metrics.score import Ratio, Score, Unavailable
from unmask.metrics.texts import Texts, check_same_tokenizer
from unmask.models.denoiser import check_denoiser, is_causal, states_of
from unmask.plans.every import EveryPosition, check_times, plan_of
from unmask.plans.grids import Grid, make_grid
from unmask.plans.plan import USUAL, Plan, by_threshold, choose_grid
from unmask.processes import Process
from unmask.sampling.path_bound import path_bound
from unmask.sampling.teacher_forcing import teacher_force
from unmask.sampling.verbs import chosen_plan


@dataclass(frozen=True, eq=False)
class Likelihood:
    """Nats per token and per byte; differences are taken between their ratios, which have one entry a text."""

    per_token: Score
    per_byte: Score
    perplexity: Score  # exp of the nats per token
    nfe: float | None = None  # mean forwards a text, of a sampler


def nelbo(
    checkpoint: Checkpoint, texts: Texts, steps: int | None = None, *, plan: str | Plan | None = None,
    grid: str | Path | Grid | None = None, law: Law | None = None, seed: int = 0, batch: int | None = None,
    device: str = "auto", precision: Precision = "auto", compile: bool = False,
) -> Likelihood:  # fmt: skip
    """The N-step NELBO of a model, plan and grid on held-out texts; under torchrun the processes share the texts.

    Without `steps`, 8 or the grid's own. What a law (top-p, top-k) rules out has no likelihood. `seed` names u, `batch`
    is the number of views in a forward.
    """
    _check(checkpoint, texts, batch, causal=False)
    plan = plan_of(checkpoint.process, chosen_plan(plan, own=block_of(checkpoint.model)), USUAL)
    if isinstance(plan, EveryPosition):
        grid = check_times(plan, make_grid(grid or "uniform", steps, usual=8))
        _check_path(checkpoint.process, plan)
    elif (grid := choose_grid(plan, grid, steps, usual=8)).argmax_tail:
        raise UserError("the mdlm grid fills its last positions by argmax and has no likelihood: take the grid uniform")
    law, process = law or Law(), checkpoint.process
    with joined(device) as ranks:
        body = make_ready(checkpoint.model, ranks.device, precision, compile)
        rows = batch or usual_batch(checkpoint.model, ranks.device)

        def work(share: list[int]) -> list[list[float]]:
            x_TL = texts.tokens_TL[share]
            if isinstance(plan, EveryPosition):
                nats_T = path_bound(body, x_TL, plan, grid, process, law=law, seed=seed, indices=share, rows=rows)
                nats_T = nats_T + process.prior_nats(body.states) * x_TL.shape[1]  # type: ignore[attr-defined]
                steps_T = torch.full_like(nats_T, len(plan.times(grid)) - 1)
                return torch.stack([nats_T, steps_T], dim=1).tolist()
            forced = teacher_force(
                body, x_TL, plan, grid, process.schedule, step_law=checkpoint.step_law, law=law, seed=seed,
                indices=share, rows=rows,
            )  # fmt: skip
            return torch.stack([-forced.log_q_TL.sum(1), forced.nfe_T.double()], dim=1).tolist()

        nll_T, nfe_T = _shared(work, len(texts), rows, ranks).T
        used = None if by_threshold(plan) else grid
        record = _record(
            checkpoint, texts, ranks, score="nelbo", steps=used and used.steps, plan=plan.name,
            grid=used and used.to_json(), seed=seed, nfe=float(nfe_T.mean()), law=vars(law),
            precision=body.precision,
        )  # fmt: skip
    return _likelihood(nll_T, texts, record, float(nfe_T.mean()))


def elbo(
    checkpoint: Checkpoint, texts: Texts, *, masks: int = 1, seed: int = 0, batch: int | None = None,
    device: str = "auto", precision: Precision = "auto",
) -> Likelihood:  # fmt: skip
    """The usual ELBO of a diffusion model, or the exact likelihood of a causal one, on held-out texts.

    `masks` views of each text are taken; of a masked process, k masked positions stratified over its views and over
    texts. A causal model is read in float32 whatever the precision: its likelihood is exact.
    """
    if masks < 1:
        raise UserError(f"masks must be at least 1, not {masks}")
    causal = is_causal(checkpoint.model)
    _check(checkpoint, texts, batch, causal=causal)
    T, L = texts.tokens_TL.shape
    with joined(device) as ranks:
        if causal:
            assert isinstance(checkpoint.model, nn.Module)
            model: Any = copy.deepcopy(checkpoint.model).to(ranks.device, torch.float32).eval()
            used = "float32"
        else:
            body = make_ready(checkpoint.model, ranks.device, precision)
            model, used = body.model, body.precision
        noise, process = stream(seed, "elbo"), checkpoint.process
        masked_PTL = order_agnostic_masks(T, L, noise, views=masks) if process.by_plan else torch.empty(0)
        views = [] if process.by_plan else [process_views(process, states_of(model), T, L, noise) for _ in range(masks)]
        budget = 2**32 if ranks.device.type == "cuda" else 2**27
        rows = batch or max(1, budget // (4 * L * model.vocab_size))

        @torch.no_grad()  # not inference_mode: a process's own loss may differentiate inside
        def work(share: list[int]) -> list[list[float]]:
            x0_BL = texts.tokens_TL[share].to(ranks.device)
            if causal:
                nll_B = nll_of(model, x0_BL)
            else:
                terms = [elbo_of(model, x0_BL, masked_TL[share]) for masked_TL in masked_PTL]
                terms += [process_elbo_of(model, process, x0_BL, *(part[share] for part in view)) for view in views]
                nll_B = torch.stack(terms).mean(0)
            return nll_B.cpu().double()[:, None].tolist()

        nats_T = _shared(work, T, rows, ranks)[:, 0]
        score = "nll" if causal else "elbo"
        record = _record(checkpoint, texts, ranks, score=score, masks=masks, seed=seed, precision=used)
    scored = replace(texts, tokens_TL=texts.tokens_TL[:, 1:]) if causal else texts  # nothing precedes the first token
    return _likelihood(nats_T * scored.tokens_TL.shape[1], scored, record, None)


def _check_path(process: Process, plan: EveryPosition) -> None:
    """What has an N-step bound of a process that draws every position at every step."""
    if plan.greedy:
        raise Unavailable(f"{plan.name} ends with the likeliest tokens, and other texts have no probability")
    if not hasattr(process, "prior_nats"):
        raise Unavailable(f"the process {process.name} does not say how far z_1 is from its prior (prior_nats)")


def _check(checkpoint: Checkpoint, texts: Texts, batch: int | None, *, causal: bool) -> None:
    if batch is not None and batch < 1:
        raise UserError(f"batch must be at least 1, not {batch}")
    model, (_, L) = checkpoint.model, texts.tokens_TL.shape
    if not causal:
        check_denoiser(model)
    check_same_tokenizer(texts, checkpoint.tokenizer, "the model")
    if bool((texts.tokens_TL < 0).any()):
        raise UserError("texts of different lengths have no likelihood together: cut them into blocks of one length")
    if model.length < L or (causal and L < 2):
        raise UserError(f"texts of {L} tokens do not fit a model of length {model.length}: cut them to its length")


def _shared(work: Callable[[list[int]], list[list[float]]], total: int, rows: int, ranks: Ranks) -> Tensor:
    """work(numbers) of all texts, dealt out to the processes a few at a time; one row of numbers a text."""
    rows_of_texts: list[list[float]] = []
    size = rows * ranks.world
    for start in range(0, total, size):
        share = list(range(start + ranks.rank, min(start + size, total), ranks.world))
        rows_of_texts += interleaved(ranks.together(lambda share=share: work(share) if share else []))  # type: ignore[misc]
    return torch.tensor(rows_of_texts, dtype=torch.float64)


def _record(checkpoint: Checkpoint, texts: Texts, ranks: Ranks, **facts: Any) -> dict[str, Any]:
    model = {**checkpoint.provenance, "sha256": weights_hash(checkpoint.model)}
    return provenance.record(ranks.device, model=model, texts=texts.record, **facts)


def _likelihood(nll_T: Tensor, texts: Texts, record: dict[str, Any], nfe: float | None) -> Likelihood:
    if not bool(nll_T.isfinite().all()):
        raise Unavailable("the model gives a held-out text no probability (or NaN): top-p or top-k, or broken weights")
    scored_T = torch.full_like(nll_T, texts.tokens_TL.shape[1])

    def score(bottom_T: Tensor, unit: str, exponential: bool = False) -> Score:
        ratio = Ratio.of(nll_T, bottom_T, exponential).together(texts.cluster_T)
        return Score.of(ratio, unit, record, seed=int(record["seed"]))

    per_token, per_byte = score(scored_T, "nats/token"), score(texts.bytes_T, "nats/byte")
    return Likelihood(per_token, per_byte, score(scored_T, "perplexity", True), nfe)
