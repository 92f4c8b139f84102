"""What a person sees while a run goes on: a bar with loss, ELBO, tokens/s, MFU and time left, or plain lines in a log.

Refuses to know training. Writes to stderr; only the first process has one that shows anything.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Column

LEAST_BAR = 8  # characters


def short(number: float) -> str:
    """1234567 as 1.23M."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"


class Progress:
    """A bar on a terminal, lines elsewhere, nothing if not `shown`. Use it as a context."""

    def __init__(self, total: int, done: int, *, shown: bool) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._shown, self._total = shown, total
        self._count_width = len(f"{total}/{total}")
        self._numbers: dict[str, str] = {}
        self._bar: Bar | None = None
        if shown and self._console.is_terminal:
            columns: list[Any] = [
                TextColumn("training"),
                BarColumn(bar_width=None),
                MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=self._count_width)),
                TextColumn("{task.fields[numbers]}"),
                TextColumn("left"),
                TimeRemainingColumn(table_column=Column(no_wrap=True, min_width=len("0:00:00"))),
            ]
            self._bar = Bar(*columns, console=self._console, refresh_per_second=4)
            self._task = self._bar.add_task("", total=total, completed=done, numbers="")

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, done: int) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=done)

    def numbers(self, **numbers: str) -> None:
        """Numbers to show beside the bar until they are given anew."""
        self._numbers |= numbers
        if self._bar is not None:
            self._bar.update(self._task, numbers=self._fitting())

    def _fitting(self) -> str:
        """As many numbers as leave room for the bar, the count and the time left; the last ones (speed) go first."""
        room = self._console.width - len("training ") - LEAST_BAR - self._count_width - len("   left 0:00:00 ")
        shown = [f"{name} {text}" for name, text in self._numbers.items()]
        while shown and len("  ".join(shown)) > room:
            shown.pop()
        return "  ".join(shown)

    def milestone(self, done: int, text: str) -> None:
        """A line that stays; where there is no bar it carries the numbers too."""
        if self._shown:
            beside = "" if self._bar else "".join(f", {name} {value}" for name, value in self._numbers.items())
            self._console.print(f"step {done}/{self._total}: {text}{beside}")


def note(text: str, shown: bool = True) -> None:
    """Something the user should know, whether progress is shown or not; `shown` is false on all but one process."""
    if shown:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"note: {text}", markup=False)
