"""`unmask bench chain`: the time of a step with and without a chain's head, and of a causal model of the same size.

All three write whole texts. The head runs in rounds until nothing changes (inference/chain_draws.py): with Gumbel
noise, which is what `sample` uses; with one uniform a position, which changes tokens more often; and by speculative
acceptance. Random weights cost what trained ones cost, but for the rounds: a trained head needs its own number of them,
so give it with --model. With --data the N-step NELBO with and without the head is measured too, and compared at equal
seconds. The causal model keeps keys and values and goes token after token, on a GPU by CUDA graphs.

Shapes: B sequences, L positions.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from functools import partial
from itertools import pairwise
from typing import Any, get_args

import torch
from torch import nn

from unmask.bench.timing import Columns, Preset, Row, Timing, chosen_model, gib, measure, report
from unmask.checkpoint.io import Checkpoint
from unmask.core.errors import UserError
from unmask.core.ranks import pick_device
from unmask.inference.categorical import Law
from unmask.inference.chain import Chain
from unmask.inference.chain_draws import Noise
from unmask.inference.ready import Ready, make_ready
from unmask.inference.step_law import Factorised, StepLaw
from unmask.metrics.nelbo import nelbo
from unmask.metrics.score import Ratio, difference
from unmask.metrics.texts import held_out
from unmask.models.family import family_of
from unmask.plans.grids import make_grid
from unmask.sampling.causal import draw_texts, quick_reader
from unmask.sampling.sample import start_run
from unmask.training.chain import new_head

STRENGTH = 0.1  # of a random head's output layer, which is zero at birth: enough to change some tokens


def chain(
    *,
    preset: Preset | None = None,
    model: str | None = None,
    steps: list[int] = [8],  # noqa: B006  read only
    batches: list[int] | None = None,
    rivals: list[int] = [1, 64],  # noqa: B006  read only
    plan: str = "comb",
    device: str = "auto",
    compile: bool | None = None,
    repeats: int = 3,
    data: str | None = None,
    texts: int = 64,
    json: bool = False,
) -> dict[str, Any]:
    """Time steps with and without a chain's head, and the causal model of the same size with a cache.

    Args:
        preset: the model's shape, with random weights, and a head of the usual shape beside it (default: pocket)
        model: a model with a head to time instead: the run of `unmask train --objective chain`
        steps: numbers of steps
        batches: texts at a time; by default 1 and 32 on a GPU, 1 and 8 elsewhere
        rivals: texts at a time of the causal model
        plan: which positions a step draws
        device: where to run: auto, cpu, cuda or mps
        compile: compile the body and the draws, by default on a GPU only
        repeats: timed repeats of each row, the median counts
        data: held-out text, to measure the N-step NELBO with and without the head as well (with --model)
        texts: how many held-out texts to take
        json: print JSON instead of a table
    """
    place = pick_device(device)
    cuda = place.type == "cuda"
    batches = batches or [1, 32 if cuda else 8]
    if min(*steps, *batches, *rivals, repeats) < 1:
        raise UserError("steps, batches, rivals and repeats must be at least 1")
    if data and not model:
        raise UserError("--data is for a head that was trained, and this one is random: give it with --model")
    checkpoint = chosen_model(model, preset)
    if model is None:
        checkpoint = dataclasses.replace(checkpoint, step_law=_random_head(checkpoint, preset or "pocket"))
    if not isinstance(checkpoint.step_law, Chain):
        raise UserError(f"{model} has no chain: give the run of `unmask train --objective chain`, or a --preset")
    lines: list[Row] = []
    with torch.inference_mode():
        ready = make_ready(checkpoint.model, place, "auto", cuda if compile is None else compile)
        for B in batches:
            for N in steps:
                lines += _steps(checkpoint, ready, plan, N, B, repeats)
        if family_of(checkpoint.model).name == "dit":
            lines += _rivals(checkpoint, place, rivals)
        if data:
            _likelihoods(checkpoint, lines, plan, data, texts, device, cuda if compile is None else compile)
    columns: Columns = {
        "": lambda row: row["name"],
        "batch": lambda row: str(row["batch"]),
        "steps": lambda row: str(row["steps"]),
        "ms / step": lambda row: f"{row['ms_per_step']:.2f}",
        "rounds / step": lambda row: "" if row["rounds"] is None else f"{row['rounds']:.2f}",
        "x no head": lambda row: "" if row["over_without"] is None else f"{row['over_without']:.2f}",
        "ms / text": lambda row: f"{row['ms_per_text']:.1f}",
        **({"nats / token": lambda row: f"{row['nats']:.3f}" if "nats" in row else ""} if data else {}),
        "peak GiB": gib,
    }
    words = _words(lines, random=model is None)
    return report(
        lines, checkpoint.model, place, "Chain on {device}", columns, words, as_json=json,
        facts={"random": model is None}, plan=plan,
    )  # fmt: skip


def _random_head(base: Checkpoint, name: str) -> Chain:
    head = new_head(base, name, 0, {})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        nn.init.normal_(head.out.weight, std=STRENGTH)
    return Chain(head.eval().requires_grad_(False))


def _row(name: str, B: int, N: int, timing: Timing, **of_head: float | None) -> Row:
    return {
        "name": name, "batch": B, "steps": N, "ms_per_step": timing.seconds / N * 1e3, "seconds": timing.seconds,
        "ms_per_text": timing.seconds / B * 1e3, "spread": timing.spread, "peak_gib": timing.peak_gib,
        **{"rounds": None, "most_rounds": None, "over_without": None, **of_head},
    }  # fmt: skip


def _steps(checkpoint: Checkpoint, ready: Ready, plan: str, N: int, B: int, repeats: int) -> list[Row]:
    """A batch of B texts in N steps: without the head, and with it by each kind of draw."""
    chained = checkpoint.step_law
    assert isinstance(chained, Chain)
    noises: tuple[Noise, ...] = get_args(Noise)
    laws: dict[str, StepLaw] = {"no head": Factorised()}
    laws |= {f"head, {noise}": dataclasses.replace(chained, noise=noise) for noise in noises}
    rows: list[Row] = []
    for name, law in laws.items():
        one = dataclasses.replace(checkpoint, step_law=law)
        run = start_run(one, ready, plan=plan, grid=make_grid("rank", N))
        work = partial(run.batch, list(range(B)), torch.full((B, checkpoint.model.length), -1))
        texts = work()  # the noise is fixed: every repeat takes as many rounds
        steps, rounds = sum(text.nfe for text in texts), [text.rounds for text in texts if text.rounds is not None]
        timing = measure(work, ready.device, repeats=repeats)
        over = timing.seconds / rows[0]["seconds"] if rows else None
        mean, most = sum(rounds) / steps if rounds else None, max(rounds, default=None)
        rows.append(_row(name, B, N, timing, rounds=mean, most_rounds=most, over_without=over))
    return rows


def _likelihoods(
    checkpoint: Checkpoint, lines: list[Row], plan: str, data: str, texts: int, device: str, compile: bool
) -> None:
    """The N-step NELBO of every line without a head and with Gumbel noise, and what the head gains at equal seconds."""
    assert checkpoint.tokenizer is not None
    shown = held_out(data, checkpoint.tokenizer, checkpoint.model.length, count=texts)
    laws = {"no head": Factorised(), "head, gumbel": checkpoint.step_law}
    found: dict[tuple[str, int], Ratio] = {}
    for row in lines:
        if (key := (row["name"], row["steps"])) not in found and row["name"] in laws:
            one = dataclasses.replace(checkpoint, step_law=laws[row["name"]])
            scored = nelbo(one, shown, row["steps"], plan=plan, device=device, compile=compile)
            assert scored.per_token.ratio is not None
            found[key] = scored.per_token.ratio
        if key in found:
            row["nats"] = found[key].value
    for row in lines:
        if row["name"] == "head, gumbel":
            alone = [(other["seconds"], found["no head", other["steps"]]) for other in lines
                     if (other["name"], other["batch"]) == ("no head", row["batch"])]  # fmt: skip
            equal = at_seconds(alone, row["seconds"])
            less = equal and difference(found[row["name"], row["steps"]], equal, "nats/token", {})
            row["less_at_equal_seconds"] = less and [less.value, less.low, less.high]


def at_seconds(points: Iterable[tuple[float, Ratio]], seconds: float) -> Ratio | None:
    """A NELBO at so many seconds, text by text, linear in their logarithm between two points; None beyond all of
    them."""
    known = sorted(points, key=lambda point: point[0])
    for (before, a), (after, b) in pairwise(known):
        if before <= seconds <= after:
            share = math.log(seconds / before) / math.log(after / before) if after > before else 0.0
            return dataclasses.replace(a, top_n=torch.lerp(a.top_n, b.top_n, share))
    return None


def _rivals(checkpoint: Checkpoint, place: torch.device, batches: list[int]) -> list[Row]:
    """The causal model of the same shape with random weights: a text a token at a time."""
    family, config = family_of(checkpoint.model), dataclasses.replace(checkpoint.model.config, causal=True)  # type: ignore[attr-defined]
    dtype = torch.bfloat16 if place.type == "cuda" else torch.float32
    network = family.causal_copy(family.build(config).eval(), dtype, place)
    L, rows = config.length, []
    for B in batches:
        read = quick_reader(family, network, B, place)
        work = partial(draw_texts, family, network, 0, list(range(B)), Law(), 0, place, read)
        timing = measure(work, place, repeats=1, warmup=int(place.type == "cuda"))  # which records the graphs
        rows.append(_row("causal, cached", B, L, timing))
    return rows


def _words(lines: list[Row], random: bool) -> list[str]:
    """What the head costs, and how its speed compares with that of the causal model at the same batch."""
    rivals = {row["batch"]: row["seconds"] for row in lines if row["name"].startswith("causal")}
    words = []
    for row in lines:
        if not row["name"].startswith("head, gumbel"):
            continue
        sentence = f"batch {row['batch']}, {row['steps']} steps: {row['over_without']:.2f}x the step without the head"
        if row["batch"] in rivals:
            sentence += f", {rivals[row['batch']] / row['seconds']:.1f}x the speed of the causal model"
        if "nats" in row and row["less_at_equal_seconds"]:
            value, low, high = row["less_at_equal_seconds"]
            sentence += (
                f"; less the model alone at equal seconds: {value:+.3f} nats a token ({low:+.3f} to {high:+.3f})"
            )
        elif "nats" in row:
            sentence += "; slower than all that was timed without it: give more --steps"
        words.append(sentence)
    if random:
        words.append("random weights: a trained head needs another number of rounds (--model RUN)")
    return words
