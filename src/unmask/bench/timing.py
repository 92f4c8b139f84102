"""Timing as it should be done: warm up, wait for the device, repeat, take the median; peak memory.

Refuses to know what is timed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from unmask.training.speed import wait


@dataclass(frozen=True)
class Timing:
    """Median seconds of a call, the spread between its fastest and slowest repeat, and the peak memory it needed."""

    seconds: float
    spread: float
    peak_bytes: int | None  # None where the device does not tell


def measure(work: Callable[[], object], device: torch.device, *, repeats: int = 5, warmup: int = 1) -> Timing:
    """Time `work` on a device."""
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
    peak = torch.cuda.max_memory_allocated(device) if cuda else None
    return Timing(middle, (max(seconds) - min(seconds)) / middle, peak)


def told_rate(tflops: float) -> str:
    """A matmul rate in words: a CPU's lies below 1 TFLOP/s, and needs the digits that a GPU's does not."""
    shown = f"{tflops:.1f}" if tflops >= 10 else f"{tflops:.2g}"
    return f"matmul rate measured here: {shown} TFLOP/s"
