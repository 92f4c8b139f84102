"""Optimiser steps timed side by side: the same model and optimiser, another loss a row.

A step is forward, backward and AdamW, over `accumulate` micro-batches; a timed repeat is several steps in a row, as in
training, where the host prepares the next step while the device works on this one.

Shapes: B sequences, L positions.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from unmask.bench.timing import Columns, Row, Timing, gib, measure, rate_of
from unmask.core.devices import to_device
from unmask.core.errors import UserError
from unmask.core.ranks import pick_device
from unmask.core.streams import stream
from unmask.data.loader import Batch
from unmask.models.dit.network import DiT
from unmask.models.family import family_of
from unmask.training.optim import adamw

Loss = Callable[[Batch], Tensor]
IN_A_ROW = 4  # steps of one timed repeat, if there is time

COLUMNS: Columns = {
    "": lambda row: row["name"],
    "tokens/s": lambda row: f"{row['tokens_per_second']:,.0f}",
    "ms / sequence": lambda row: f"{row['ms_per_sequence']:.2f}",
    "of matmul rate": lambda row: f"{row['flops_share']:.0%}",
    "peak GiB": gib,
}


def checked_place(device: str, seconds: float, *counts: int | None) -> torch.device:
    """The device, if these counts and seconds can be run."""
    place = pick_device(device)
    if min(1 if count is None else count for count in counts) < 1 or seconds <= 0:
        raise UserError("batch, length, accumulate and repeats must be at least 1, and seconds above 0")
    return place


class Steps:
    """A student in training and its optimiser, shared by all rows of a table."""

    def __init__(self, student: DiT, place: torch.device, length: int | None, compile: bool) -> None:
        self.student, self.place, self.compiled = student.to(place).train(), place, compile
        self.L = length or student.length
        if compile:
            family_of(student).compile(student)
        self.optimiser = adamw(student, betas=(0.9, 0.999), weight_decay=0.0)

    def flops(self, name: str) -> float:
        """Of the products that a row does for one token."""
        raise NotImplementedError

    def step(self, loss: Loss, B: int, accumulate: int) -> None:
        """One optimiser step over accumulate · B sequences."""
        total = accumulate * B
        for start in range(0, total, B):
            generator = stream(0, "tokens", start)
            x0_BL = to_device(torch.randint(self.student.vocab_size - 1, (B, self.L), generator=generator), self.place)
            with torch.autocast(self.place.type, torch.bfloat16, enabled=self.place.type == "cuda"):
                value = loss(Batch(x0_BL, start, total))
            value.backward()
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)

    def row(self, name: str, loss: Loss, B: int, accumulate: int, repeats: int, seconds: float) -> Row:
        self._forget()
        one = measure(lambda: self.step(loss, B, accumulate), self.place, repeats=1, warmup=1)
        fit = max(1, int(seconds / one.seconds))  # steps for which there is time
        together = min(IN_A_ROW, fit)

        def work() -> None:
            for _ in range(together):
                self.step(loss, B, accumulate)

        timing = measure(work, self.place, repeats=min(repeats, fit // together), warmup=0)  # it is warm by now
        sequences = B * accumulate * together
        return {
            "name": name,
            "tokens_per_second": sequences * self.L / timing.seconds,
            "ms_per_sequence": timing.seconds / sequences * 1e3,
            "flops_share": sequences * self.L * self.flops(name) / timing.seconds / rate_of(self.place),
            "spread": timing.spread,
            "peak_gib": timing.peak_gib,
        }

    def largest_batch(self, loss: Loss) -> int:
        """The most sequences that fit under a loss: from two small batches the need is a straight line."""
        _, whole = torch.cuda.mem_get_info(self.place)
        small, large = 4, 8
        needs = [self._peak(loss, size) for size in (small, large)]
        if needs[0] is None or needs[1] is None:
            return next((size for size in (2, 1) if self._peak(loss, size) is not None), 1)
        slope = (needs[1] - needs[0]) / (large - small)
        guess = max(large, int((0.98 * whole / 2**30 - needs[0]) / slope) + small)
        while guess > large and self._peak(loss, guess) is None:
            guess -= max(1, guess // 16)
        return guess

    def _peak(self, loss: Loss, B: int) -> float | None:
        """GiB that a step needs, None if there are not so many."""
        self._forget()
        try:
            timing: Timing = measure(lambda: self.step(loss, B, 1), self.place, repeats=1, warmup=1)
            return timing.peak_gib
        except torch.OutOfMemoryError:
            self.optimiser.zero_grad(set_to_none=True)
            return None

    def _forget(self) -> None:
        """Give cached memory back, so that what one row leaves is not in another's way."""
        if self.place.type == "cuda":
            torch.cuda.empty_cache()


def ratios(plain: Row, ours: Row) -> dict[str, float]:
    """Speed and memory of the second against the first."""
    found = {"speed": ours["tokens_per_second"] / plain["tokens_per_second"]}
    return found if ours["peak_gib"] is None else {**found, "memory": ours["peak_gib"] / plain["peak_gib"]}


def in_words(found: dict[str, float], what: str = "") -> str:
    memory = f", with {found['memory']:.0%} of the memory" if "memory" in found else ""
    return f"{what}ours does {found['speed']:.2f}x the tokens of the plain step{memory}"
