"""Optimiser steps timed side by side: the same model and optimiser, another loss a row.

A step is forward, backward and AdamW, over `accumulate` micro-batches; a timed repeat is several steps in a row, as in
training, where the host prepares the next step while the device works on this one.

Shapes: B sequences, L positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.bench.timing import Columns, Preset, Row, gib, measure, rate_of, report
from unmask.core.devices import to_device
from unmask.core.errors import UserError
from unmask.core.progress import note
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


@dataclass(frozen=True)
class StepOptions:
    """What every bench of a training step takes.

    Args:
        preset: the model's shape, with random weights (speed does not depend on what it learnt)
        length: tokens in a sequence (default: the model's)
        batch: sequences in a micro-batch; by default the most that the plain step can hold on a GPU, 8 elsewhere
        accumulate: micro-batches in an optimiser step
        device: where to run: auto, cpu, cuda or mps
        compile: compile the bodies and our loss, by default on a GPU only
        repeats: timed repeats of each row, the median counts
        json: print JSON instead of a table
    """

    preset: Preset = "pocket"
    length: int | None = None
    batch: int | None = None
    accumulate: int = 1
    device: str = "auto"
    compile: bool | None = None
    repeats: int = 5
    json: bool = False

    def __post_init__(self) -> None:
        if min(1 if n is None else n for n in (self.batch, self.length, self.accumulate, self.repeats)) < 1:
            raise UserError("batch, length, accumulate and repeats must be at least 1")

    @property
    def place(self) -> torch.device:
        return pick_device(self.device)

    @property
    def compiled(self) -> bool:
        return self.place.type == "cuda" if self.compile is None else self.compile


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
        rate = sequences * self.L / timing.seconds
        return {
            "name": name, "tokens_per_second": rate, "ms_per_sequence": timing.seconds / sequences * 1e3,
            "flops_share": rate * self.flops(name) / rate_of(self.place),
            "spread": timing.spread, "peak_gib": timing.peak_gib,
        }  # fmt: skip

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
            return measure(lambda: self.step(loss, B, 1), self.place, repeats=1, warmup=1).peak_gib
        except torch.OutOfMemoryError:
            self.optimiser.zero_grad(set_to_none=True)
            return None

    def _forget(self) -> None:
        """Give cached memory back, so that what one row leaves is not in another's way."""
        if self.place.type == "cuda":
            torch.cuda.empty_cache()


def time_losses(
    bench: Steps, title: str, losses: Mapping[str, Loss], pairs: Mapping[str, tuple[str, str]], options: StepOptions,
    seconds: float, *, largest: Loss, **recorded: float,
) -> Row:  # fmt: skip
    """A row for each loss, and for each pair (plain, ours) how much faster ours is; a single pair needs no name.

    `largest`: the loss that says how many sequences fit. `seconds`: about the most to spend on the repeats of a row.
    """
    if seconds <= 0:
        raise UserError("seconds must be above 0")
    cuda, accumulate = bench.place.type == "cuda", options.accumulate
    rows: dict[str, Row] = {}
    # a batch of another size is a shape of its own, not the start of a slower kernel for all sizes
    with torch._dynamo.config.patch(automatic_dynamic_shapes=False) if cuda else nullcontext():
        B = options.batch or (bench.largest_batch(largest) if cuda else 8)
        for name, loss in losses.items():
            rows[name] = bench.row(name, loss, B, accumulate, options.repeats, seconds)
            cells = {head: cell(rows[name]) for head, cell in COLUMNS.items() if head}
            note(f"{name}: " + ", ".join(f"{value} {head}" for head, value in cells.items() if value))
    ratios = {name: _ratios(rows[plain], rows[ours]) for name, (plain, ours) in pairs.items()}
    facts = {"ratios": ratios.get("", ratios), "length": bench.L, "batch": B, "accumulate": accumulate,
             "compiled": bench.compiled}  # fmt: skip
    sequences = f"{accumulate} x " * (accumulate > 1) + f"{B} sequences of {bench.L}"
    return report(
        [*rows.values()], bench.student, bench.place, f"{title} on {{device}}: {sequences}", COLUMNS,
        [_in_words(name, ratio) for name, ratio in ratios.items()], as_json=options.json, facts=facts, **recorded,
    )  # fmt: skip


def _ratios(plain: Row, ours: Row) -> dict[str, float]:
    found = {"speed": ours["tokens_per_second"] / plain["tokens_per_second"]}
    return found if ours["peak_gib"] is None else {**found, "memory": ours["peak_gib"] / plain["peak_gib"]}


def _in_words(name: str, ratio: dict[str, float]) -> str:
    memory = f", with {ratio['memory']:.0%} of the memory" if "memory" in ratio else ""
    return (f"{name}: " if name else "") + f"ours does {ratio['speed']:.2f}x the tokens of the plain step{memory}"
