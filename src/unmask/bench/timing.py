"""What the benches of speed share: timing as it should be done, models of random weights, and how a result is shown."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from rich.console import Console
from torch import nn

from unmask.checkpoint.io import Checkpoint, load
from unmask.core import provenance
from unmask.core.errors import UserError
from unmask.core.show import table
from unmask.models.denoiser import check_denoiser
from unmask.models.dit.network import DiT
from unmask.models.family import config_to_json
from unmask.training.speed import matmul_rate, wait

Preset = Literal["tiny", "mini", "pocket", "study", "small", "medium", "large"]
Row = dict[str, Any]  # one measured row of the table
Columns = dict[str, Callable[[Row], str]]  # of a table, each with what it shows of a row


@dataclass(frozen=True)
class Timing:
    """Median seconds of a call, the spread between its fastest and slowest repeat, and the peak memory it needed."""

    seconds: float
    spread: float
    peak_gib: float | None  # None where the device does not say


def measure(work: Callable[[], object], device: torch.device, *, repeats: int = 5, warmup: int = 1) -> Timing:
    """Warm up, wait for the device, repeat, take the median."""
    for _ in range(warmup):
        work()
    wait(device)
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        wait(device)
        seconds.append(time.perf_counter() - start)
    middle = statistics.median(seconds)
    peak = torch.cuda.max_memory_allocated(device) / 2**30 if cuda else None
    return Timing(middle, (max(seconds) - min(seconds)) / middle, peak)


def rate_of(device: torch.device) -> float:
    """The matmul rate in the precision that networks have there."""
    return matmul_rate(device, torch.bfloat16 if device.type == "cuda" else torch.float32)


def random_model(preset: str, **changes: Any) -> DiT:
    """A model of a preset's shape with random weights, the output layers too (fresh ones are zero)."""
    with torch.random.fork_rng(devices=[]):  # whoever calls keeps their own noise
        torch.manual_seed(0)
        model = DiT.preset(preset, **changes)
        for weight in model.parameters():
            if weight.ndim > 1 and not bool(weight.any()):
                nn.init.normal_(weight, std=0.02)
    return model


def chosen_model(model: str | None, preset: Preset | None) -> Checkpoint:
    """The checkpoint to time, or a model of random weights."""
    if model and preset:
        raise UserError(f"--model {model} brings its own shape: leave out --preset, or --model")
    checkpoint = load(model) if model else Checkpoint(random_model(preset or "pocket"))
    check_denoiser(checkpoint.model)
    return checkpoint


def report(
    lines: list[Row], model: Any, place: torch.device, title: str, columns: Columns, words: Sequence[str], *,
    as_json: bool, facts: Row, **recorded: Any,
) -> Row:  # fmt: skip
    """The result of a bench, printed as JSON, or as a table with a function for each column and sentences beneath."""
    rate, record = rate_of(place) / 1e12, provenance.record(place, **recorded)
    result = {"lines": lines, "matmul_tflops": rate, "model": config_to_json(model), **facts, "record": record}
    if as_json:
        print(json.dumps(result))
        return result
    console = Console(highlight=False)
    rows = [[cell(row) for cell in columns.values()] for row in lines]
    console.print(table(title.format(device=record["device"]), list(columns), rows))
    shown = f"{rate:.1f}" if rate >= 10 else f"{rate:.2g}"  # a CPU's rate lies below 1 TFLOP/s
    for line in [*words, f"matmul rate measured here: {shown} TFLOP/s"]:
        console.print(line)
    return result


def gib(row: Row) -> str:
    return "" if row["peak_gib"] is None else f"{row['peak_gib']:.2f}"


@dataclass(frozen=True)
class Contender:
    """What does a forward each time that it is asked for the next. Its memory is to be taken at the first one."""

    facts: Row
    loop: Iterator[None]
    warm: int  # forwards before the first round
    count: int  # of a turn
    skip: int = 0  # before each turn, not timed
    size: float = 1.0  # what one counts for


@torch.inference_mode()
def in_turns(
    contenders: Sequence[Contender], device: torch.device, rounds: int, enough: Callable[[], bool]
) -> list[Row]:
    """The facts of each, with its median time a forward, that of every round, and its peak memory as if it were alone.
    After the first round, no further one begins once it is `enough`."""
    floor = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    peaks = [_warmed(one, floor, device) for one in contenders]
    ms: list[list[float]] = [[] for _ in contenders]
    for number in range(rounds):
        if number and enough():
            break
        for one, mine in zip(contenders, ms, strict=True):
            mine.append(_turn(one, device))
    return [
        {**one.facts, "ms_a_forward": statistics.median(mine), "ms_of_rounds": mine, "peak_gib": peak}
        for one, mine, peak in zip(contenders, ms, peaks, strict=True)
    ]


def over(one: Row, other: Row) -> list[float]:
    """How many times the time of another one takes: the median over rounds, the least and the most."""
    ratios = [mine / theirs for mine, theirs in zip(one["ms_of_rounds"], other["ms_of_rounds"], strict=True)]
    return [statistics.median(ratios), min(ratios), max(ratios)]


def _warmed(one: Contender, floor: int, device: torch.device) -> float | None:
    """Its first forwards, in which graphs are captured; the peak in GiB, without what others hold."""
    if device.type == "cuda":
        held = torch.cuda.memory_allocated(device) - floor
        torch.cuda.reset_peak_memory_stats(device)
    _go(one.loop, one.warm)
    return (torch.cuda.max_memory_allocated(device) - held) / 2**30 if device.type == "cuda" else None


def _turn(one: Contender, device: torch.device) -> float:
    _go(one.loop, one.skip)
    wait(device)
    begun = time.perf_counter()
    _go(one.loop, one.count)
    wait(device)
    return 1e3 * (time.perf_counter() - begun) / (one.count * one.size)


def _go(loop: Iterator[None], count: int) -> None:
    for _ in range(count):
        next(loop)
