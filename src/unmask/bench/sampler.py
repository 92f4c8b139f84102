"""`unmask bench sampler`: our sampler against the plain published one, same model, same run, per forward.

The plain one computes full logits, the carry-over rule and a float64 Gumbel race over all positions; it is timed with
the body as published (eager, autocast) and with the very body ours uses. "Ready alone" is the floor of any sampler that
runs one forward a step.

Shapes: B sequences, L positions, V states.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from unmask.bench.timing import Timing, measure, told_rate
from unmask.checkpoint.io import Checkpoint, load
from unmask.core import provenance
from unmask.core.errors import UserError
from unmask.core.ranks import pick_device
from unmask.inference.ready import Ready, make_ready
from unmask.models.denoiser import check_denoiser
from unmask.models.dit.network import DiT
from unmask.models.family import family_of
from unmask.plans.grids import make_grid
from unmask.sampling.ancestral import ancestral
from unmask.sampling.sample import start_run
from unmask.training.speed import matmul_rate


@dataclass(frozen=True)
class Line:
    """One measured row of the table."""

    name: str
    steps: int | None
    ms_per_sequence_step: float
    tokens_per_second: float | None
    flops_share: float  # of the measured matmul rate
    over_body: float
    spread: float
    peak_gib: float | None


def sampler(
    *,
    preset: Literal["tiny", "mini", "pocket", "study", "small", "medium", "large"] | None = None,
    model: str | None = None,
    steps: list[int] = [8, 32],  # noqa: B006  read only
    batch: int | None = None,
    plan: str = "golden",
    grid: str = "rank",
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
        plan: our plan
        grid: our grid
        device: where to run: auto, cpu, cuda or mps
        compile: compile the body, by default on a GPU only
        repeats: timed repeats of each row, the median counts
        json: print JSON instead of a table
    """
    place = pick_device(device)
    if min(steps, default=0) < 1 or (batch is not None and batch < 1) or repeats < 1:
        raise UserError("steps, batch and repeats must be at least 1")
    if model and preset:
        raise UserError(f"--model {model} brings its own shape: leave out --preset, or --model")
    cuda = place.type == "cuda"
    checkpoint = load(model) if model else Checkpoint(random_model(preset or "pocket"))
    denoiser = checkpoint.model
    if not isinstance(denoiser, DiT):
        raise UserError("the bench times DiT models: give one with --model, or a preset")
    check_denoiser(denoiser)
    B = batch or (32 if cuda else 8)
    with torch.inference_mode():
        lines = _measure(
            denoiser.to(place).eval(),
            checkpoint,
            place,
            B,
            steps,
            plan,
            grid,
            cuda if compile is None else compile,
            repeats,
        )
    result = {
        "lines": [asdict(line) for line in lines],
        "ratios": _ratios(lines),
        "matmul_tflops": matmul_rate(place, torch.bfloat16 if cuda else torch.float32) / 1e12,
        "model": asdict(denoiser.config),
        "batch": B,
        "record": provenance.record(place, plan=plan, grid=grid),
    }
    _show(result, json)
    return result


def random_model(preset: str) -> DiT:
    """A model of a preset's shape with random weights, the output layers too (fresh ones are zero)."""
    with torch.random.fork_rng(devices=[]):  # whoever calls keeps their own noise
        torch.manual_seed(0)
        model = DiT.preset(preset)
        for weight in model.parameters():
            if weight.ndim > 1 and not bool(weight.any()):
                nn.init.normal_(weight, std=0.02)
    return model


class _Published:
    """The body and head as published: eager, under bf16 autocast on a GPU."""

    def __init__(self, model: DiT, place: torch.device) -> None:
        self.model, self.place = model, place

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.place.type, dtype=torch.bfloat16, enabled=self.place.type == "cuda")

    def features(self, z_BL: Tensor) -> Tensor:
        with self._autocast():
            return self.model.features(z_BL)

    def logits(self, h_BLD: Tensor) -> Tensor:
        with self._autocast():
            return self.model.logits(h_BLD)


def _measure(
    model: DiT, checkpoint: Checkpoint, place: torch.device, B: int, steps: list[int], plan: str, grid: str,
    compile: bool, repeats: int,
) -> list[Line]:  # fmt: skip
    L, (body_flops, head_flops) = model.length, family_of(model).flops(model, model.length)
    rate = matmul_rate(place, torch.bfloat16 if place.type == "cuda" else torch.float32)
    body = make_ready(model, place, "auto", compile)
    masked_BL = torch.full((B, L), model.mask_id, device=place)
    half_BL = torch.where(torch.rand(B, L, device=place) < 0.5, torch.randint_like(masked_BL, model.mask_id), masked_BL)

    def line(name: str, timing: Timing, N: int | None, forwards: float, head_positions: float) -> Line:
        flops = forwards * B * L * body_flops + head_positions * head_flops
        per_step = timing.seconds / forwards / B
        floor = alone.seconds / B
        return Line(
            name, N, per_step * 1e3, B * L / timing.seconds if N else None, flops / timing.seconds / rate,
            per_step / floor, timing.spread, None if timing.peak_bytes is None else timing.peak_bytes / 2**30,
        )  # fmt: skip

    alone = measure(lambda: body.features(half_BL), place, repeats=max(repeats, 10), warmup=3)
    lines = [line("body alone", alone, None, 1, 0)]
    for N in steps:
        run = start_run(checkpoint, body, plan=plan, grid=make_grid(grid, N))
        before = body.forwards
        work = partial(run.batch, list(range(B)), torch.full((B, L), -1))
        work()
        forwards = body.forwards - before
        timing = measure(work, place, repeats=repeats)
        lines.append(line("ours", timing, N, forwards, B * L))
    for name, plain in _plain_samplers(model, body, place, half_BL, compile):
        lines.append(line(name, measure(plain, place, repeats=repeats), None, 1, B * L))
    return lines


def _plain_samplers(
    model: DiT, body: Ready, place: torch.device, half_BL: Tensor, compile: bool
) -> list[tuple[str, Callable[[], Tensor]]]:
    """One step of the plain sampler from a half-masked batch (its cost does not depend on the step)."""

    def noise(shape: torch.Size, dtype: torch.dtype) -> Tensor:
        return torch.rand(shape, dtype=dtype, device=place)

    def step(engine: Any) -> Tensor:
        walk = ancestral(
            engine, half_BL, (0.5, 0.45), states=model.vocab_size, mask_id=model.mask_id, temperature=1.0,
            dtype=torch.float64, noise=noise,
        )  # fmt: skip
        return next(walk)

    eager = ("plain, eager body", lambda: step(_Published(model, place)))
    same = ("plain, our body", lambda: step(body))
    return [same, eager]


def _ratios(lines: list[Line]) -> list[dict[str, float | int | None]]:
    """Ours against each plain one, for every number of steps."""
    plain = {line.name: line for line in lines if line.name.startswith("plain")}
    found: list[dict[str, float | int | None]] = []
    for ours in lines:
        if ours.name != "ours":
            continue
        row: dict[str, float | int | None] = {"steps": ours.steps, "over_body": ours.over_body}
        for name, other in plain.items():
            row[f"faster than {name}"] = other.ms_per_sequence_step / ours.ms_per_sequence_step
            if ours.peak_gib is not None and other.peak_gib is not None:
                row[f"memory of {name}"] = ours.peak_gib / other.peak_gib
        found.append(row)
    return found


def _show(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        import json

        print(json.dumps(result))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"Sampler on {result['record']['device']}, batch {result['batch']}")
    for column in ("", "steps", "ms / sequence-step", "tokens/s", "of matmul rate", "x body alone", "peak GiB"):
        table.add_column(column, justify="left" if not column else "right")
    for row in result["lines"]:
        table.add_row(
            row["name"],
            str(row["steps"] or ""),
            f"{row['ms_per_sequence_step']:.3f}",
            f"{row['tokens_per_second']:,.0f}" if row["tokens_per_second"] else "",
            f"{row['flops_share']:.0%}",
            f"{row['over_body']:.2f}",
            "" if row["peak_gib"] is None else f"{row['peak_gib']:.2f}",
        )
    console = Console()
    console.print(table)
    for row in result["ratios"]:
        faster = ", ".join(f"{value:.1f}x {key}" for key, value in row.items() if str(key).startswith("faster"))
        console.print(f"{row['steps']} steps: {faster}; {row['over_body']:.2f}x the body alone")
    console.print(told_rate(result["matmul_tflops"]))
