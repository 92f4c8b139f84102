"""`unmask bench sampler`: our sampler against the plain published one, same model, same run, per forward.

The plain one computes full logits, the carry-over rule (Duo's: the posterior) and a float64 Gumbel race over all
positions; it is timed with the body as published (eager, autocast) and with the very body ours uses. "Body alone" is
the floor of any sampler that runs one forward a step. "A call of sample" has all that a user waits for in it, the
decoding of texts too, once the model is ready.

Shapes: B sequences, L positions, V states.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from unmask.bench import plain_uniform
from unmask.bench.timing import Columns, Preset, Row, Timing, chosen_model, gib, measure, random_model, rate_of, report
from unmask.checkpoint.io import Checkpoint
from unmask.core.errors import UserError
from unmask.core.ranks import pick_device
from unmask.data.tokenizer import Tokenizer
from unmask.inference.ready import Ready, make_ready
from unmask.models.denoiser import Denoiser, states_of
from unmask.models.dit.published import GPT2_STATES
from unmask.models.family import family_of
from unmask.plans.every import EveryPosition, any_plan, plan_of
from unmask.plans.grids import make_grid
from unmask.plans.plan import USUAL, Plan
from unmask.processes import Uniform
from unmask.sampling.ancestral import ancestral
from unmask.sampling.sample import start_run
from unmask.sampling.verbs import sample

HALF, STEP = 0.5, 0.05  # the time of the plain step, and how far it goes


def sampler(
    *,
    preset: Preset | None = None,
    model: str | None = None,
    steps: list[int] = [8, 32],  # noqa: B006  read only
    batch: int | None = None,
    process: Literal["masked", "uniform"] | None = None,
    plan: str | None = None,
    grid: str | None = None,
    device: str = "auto",
    compile: bool | None = None,
    repeats: int = 5,
    json: bool = False,
) -> dict[str, Any]:
    """Time the plain published sampler and ours, side by side.

    Args:
        preset: the model's shape, with random weights: speed does not depend on what it learnt (default: pocket)
        model: a checkpoint to time instead
        steps: numbers of steps for ours
        batch: sequences at a time; by default 32 on a GPU, 8 elsewhere
        process: of a model of random weights: masked as MDLM, or uniform as Duo (default: masked)
        plan: our plan (default: the process's)
        grid: our grid (default: rank, or uniform for the process uniform)
        device: where to run: auto, cpu, cuda or mps
        compile: compile the body, by default on a GPU only
        repeats: timed repeats of each row, the median counts
        json: print JSON instead of a table
    """
    place = pick_device(device)
    if min(steps, default=0) < 1 or (batch is not None and batch < 1) or repeats < 1:
        raise UserError("steps, batch and repeats must be at least 1")
    if model and process:
        raise UserError(f"--model {model} brings its own process: leave out --process, or --model")
    checkpoint, cuda = chosen_model(model, preset), place.type == "cuda"
    if process == "uniform":
        checkpoint = Checkpoint(random_model(preset or "pocket", time=True), Uniform())
    if checkpoint.tokenizer is None and checkpoint.model.vocab_size == GPT2_STATES:
        checkpoint = replace(checkpoint, tokenizer=Tokenizer.load("gpt2"))
    B = batch or (32 if cuda else 8)
    with torch.inference_mode():
        body = make_ready(checkpoint.model, place, "auto", cuda if compile is None else compile)
        chosen = plan_of(checkpoint.process, None if plan is None else any_plan(plan), USUAL)
        usual = "uniform" if isinstance(chosen, EveryPosition) else "rank"
        grids = [make_grid(grid or usual, N) for N in steps]
        lines = _measure(checkpoint, body, B, chosen, grids, repeats)
    ratios = _ratios(lines)
    columns: Columns = {
        "": lambda row: row["name"],
        "steps": lambda row: str(row["steps"] or ""),
        "ms / sequence-step": lambda row: f"{row['ms_per_sequence_step']:.3f}",
        "tokens/s": lambda row: f"{row['tokens_per_second']:,.0f}" if row["tokens_per_second"] else "",
        "of matmul rate": lambda row: f"{row['flops_share']:.0%}",
        "x body alone": lambda row: f"{row['over_body']:.2f}",
        "peak GiB": gib,
    }
    return report(
        lines, checkpoint.model, place, f"Sampler on {{device}}, batch {B}", columns, _words(ratios), as_json=json,
        facts={"ratios": ratios, "batch": B}, process=checkpoint.process.name, plan=chosen.name, grid=grids[0].name,
    )  # fmt: skip


class _Published:
    """The body and head as published: eager, under bf16 autocast on a GPU."""

    def __init__(self, model: Any, place: torch.device) -> None:
        self.model = copy.deepcopy(model).to(place).eval()
        self.autocast = partial(torch.autocast, place.type, dtype=torch.bfloat16, enabled=place.type == "cuda")

    def features(self, z_BL: Tensor, *time_B: Tensor) -> Tensor:
        with self.autocast():
            return self.model.features(z_BL, *time_B)

    def logits(self, h_BLD: Tensor) -> Tensor:
        with self.autocast():
            return self.model.logits(h_BLD)


def _measure(checkpoint: Checkpoint, body: Ready, B: int, plan: Plan, grids: list[Any], repeats: int) -> list[Row]:
    """One step of the plain sampler is from a half-masked batch: its cost does not depend on the step."""
    model, place = checkpoint.model, body.device
    published = _Published(model, place)  # now: both are in memory for every row
    L, states = model.length, states_of(model)
    body_flops, head_flops = family_of(model).flops(model, L)
    half_BL = torch.randint(states.size, (B, L), device=place)
    if states.mask is not None:
        half_BL = torch.where(torch.rand(B, L, device=place) < 0.5, half_BL, states.mask)
    time_B = checkpoint.process.condition(torch.full((B,), HALF, dtype=torch.float64))
    given = (half_BL,) if time_B is None else (half_BL, time_B.to(place))

    def row(name: str, timing: Timing, forwards: float = 1, steps: int | None = None, head: bool = True) -> Row:
        flops = B * L * (forwards * body_flops + head * head_flops)
        per_step = timing.seconds / forwards / B
        return {
            "name": name, "steps": steps, "ms_per_sequence_step": per_step * 1e3,
            "tokens_per_second": B * L / timing.seconds if steps else None,
            "flops_share": flops / timing.seconds / rate_of(place), "over_body": per_step * B / alone.seconds,
            "spread": timing.spread, "peak_gib": timing.peak_gib,
        }  # fmt: skip

    alone = measure(lambda: body.features(*given), place, repeats=max(repeats, 10), warmup=3)
    rows = [row("body alone", alone, head=False)]
    for grid in grids:
        run = start_run(checkpoint, body, plan=plan, grid=grid)
        work, before = partial(run.batch, list(range(B)), torch.full((B, L), -1)), body.forwards
        work()
        forwards = body.forwards - before
        rows.append(row("ours", measure(work, place, repeats=repeats), forwards, grid.steps))
        how: dict[str, Any] = {"plan": plan, "grid": grid, "batch": B, "device": place.type, "compile": body.compiled}
        call = partial(sample, checkpoint, B, **how)
        rows.append(row("a call of sample", measure(call, place, repeats=repeats), forwards, grid.steps))
    for name, engine in (("plain, our body", body), ("plain, eager body", published)):
        rows.append(row(name, measure(partial(_plain, engine, model, *given), place, repeats=repeats)))
    return rows


def _plain(engine: Any, model: Denoiser, half_BL: Tensor, *time_B: Tensor) -> Tensor:
    states = states_of(model)

    def noise(shape: torch.Size, dtype: torch.dtype) -> Tensor:
        return torch.rand(shape, dtype=dtype, device=half_BL.device)

    if time_B:
        logits_BLK = engine.logits(engine.features(half_BL, *time_B))[..., : states.size]
        return plain_uniform.step(logits_BLK, half_BL, 1 - HALF, 1 - HALF + STEP, noise)
    assert states.mask is not None
    how = {"states": states.size, "mask_id": states.mask, "temperature": 1.0, "dtype": torch.float64, "noise": noise}
    return next(ancestral(engine, half_BL, (HALF, HALF - STEP), **how))  # type: ignore[arg-type]


def _ratios(rows: list[Row]) -> list[Row]:
    """Ours against each plain one, for every number of steps."""
    found = []
    for ours in (row for row in rows if row["name"] == "ours"):
        ratios: Row = {"steps": ours["steps"], "over_body": ours["over_body"]}
        for plain in (row for row in rows if row["name"].startswith("plain")):
            ratios[f"faster than {plain['name']}"] = plain["ms_per_sequence_step"] / ours["ms_per_sequence_step"]
            if ours["peak_gib"] is not None:
                ratios[f"memory of {plain['name']}"] = ours["peak_gib"] / plain["peak_gib"]
        found.append(ratios)
    return found


def _words(ratios: list[Row]) -> list[str]:
    words = []
    for one in ratios:
        faster = ", ".join(f"{value:.1f}x {key}" for key, value in one.items() if key.startswith("faster"))
        words.append(f"{one['steps']} steps: {faster}; {one['over_body']:.2f}x the body alone")
    return words
