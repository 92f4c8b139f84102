"""Contenders timed in turn, round after round: ratios are taken within each, so that a disturbed host bends none."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from unmask.bench.timing import Row
from unmask.training.speed import wait


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
