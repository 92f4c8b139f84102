"""Texts as they come: each is printed once it and those before it are done, so that an interrupt loses none of them.

On a terminal a line on stderr says meanwhile how far the work is; it is wiped before anything is printed. Both are
given to the sampler as callbacks. Refuses to know how texts are drawn.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from unmask.sampling.samples import Samples, StepView

OFTEN = 0.1  # seconds between two pictures of the bar
WIDTH = 20  # characters of the bar


def counted(number: float, thing: str) -> str:
    """1 token, 2 tokens, 12.5 forwards."""
    shown = f"{number:,}" if isinstance(number, int) else f"{number:.4g}"
    return f"{shown} {thing}" + ("" if number == 1 else "s")


def nats(samples: Samples, rows: Sequence[int]) -> str:
    """Nats of a drawn token over some samples; nothing for a draw that has no law."""
    drawn = ~samples.given[rows]
    per_token = -float(samples.log_q[rows][drawn].mean())
    return "" if per_token != per_token else f" · {per_token:.3f} nats/token"


def plain_lines(samples: Samples, row: int, index: int, n: int, is_terminal: bool) -> Iterator[str]:
    """The text of a row, which is sample `index` of n; if there are several, with a rule above."""
    from unmask.cli.watch import legible

    if n > 1:
        rule = f"── {index + 1} of {n} · {counted(int(samples.nfe[row]), 'forward')}{nats(samples, [row])} "
        rule = f"{rule:─<72}"
        yield f"\x1b[2m{rule}\x1b[0m" if is_terminal else rule
    if samples.text:
        yield legible(samples.text[row]) if is_terminal else samples.text[row]
    else:
        yield " ".join(str(token) for token in samples.tokens[row].tolist() if token >= 0)


class Printer:
    """Prints n texts to stdout in their order; batches may come in another one, and some of them twice."""

    def __init__(self, n: int) -> None:
        self.n, self.is_terminal = n, sys.stdout.isatty()
        self._printed: set[int] = set()
        self._waiting: dict[int, list[str]] = {}

    def take(self, samples: Samples, indices: Sequence[int]) -> None:
        """Samples that are done; nothing is printed yet."""
        for row, index in enumerate(indices):
            if index not in self._printed:
                self._waiting[index] = list(plain_lines(samples, row, index, self.n, self.is_terminal))

    def print_ready(self) -> None:
        """All texts that have no gap before them."""
        while (index := len(self._printed)) in self._waiting:
            self._print(index)

    def print_all(self) -> int:
        """All that are done, gaps or not: no more will come. Gives how many were printed in all."""
        for index in sorted(self._waiting):
            self._print(index)
        return len(self._printed)

    def _print(self, index: int) -> None:
        for line in [""] * bool(self._printed) + self._waiting.pop(index):
            print(line)
        sys.stdout.flush()
        self._printed.add(index)


class StepBar:
    """A callback for `sample`: the step under way as one line on stderr, where that is a terminal."""

    def __init__(self, n: int, stream: TextIO | None = None) -> None:
        self.n, self.done = n, 0
        self._stream = stream or sys.stderr
        self.shown = self._stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
        self._drawn_at, self._is_drawn = time.monotonic(), False

    def __call__(self, view: StepView) -> None:
        if not self.shown or time.monotonic() < self._drawn_at + OFTEN:
            return
        full = WIDTH * view.step // view.steps
        texts = f"  {self.done} of {counted(self.n, 'text')} done" if self.n > 1 else ""
        line = f"step {view.step:,} of {view.steps:,}  {'━' * full}{'─' * (WIDTH - full)}{texts}"
        columns = shutil.get_terminal_size().columns
        self._stream.write(f"\r\x1b[2K{line[: columns - 1]}")
        self._stream.flush()
        self._drawn_at, self._is_drawn = time.monotonic(), True

    def wipe(self) -> None:
        if self._is_drawn:
            self._stream.write("\r\x1b[2K")
            self._stream.flush()
            self._is_drawn = False
