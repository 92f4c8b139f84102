"""How far the work is, on standard error: a bar on a terminal, lines in a log, nothing where it is not to be shown."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Column

OFTEN = 1.0  # seconds between two lines of a log: a rerun finds hundreds of cells at once
CHUNK = 1 << 18  # bytes between two looks at the bar: moving it for every tweet would cost more than reading it
LEAST_BAR = 8  # characters


def short(number: float) -> str:
    """1234567 as 1.23M."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"


def note(text: str, shown: bool = True) -> None:
    """Something the user should know, whether progress is shown or not; `shown` is false on all but one process."""
    if shown:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"note: {text}", markup=False)


class Progress:
    """The progress of one job, as a context. Called with (what, done, total) it is a callback of the library.

    Args:
        shown: false on all processes but the first, and where the user wants none
        unit: what is counted
        transient: the bar goes away at the end
        console: where to draw, standard error by default
    """

    def __init__(
        self,
        *,
        shown: bool = True,
        unit: Literal["", "bytes"] = "",
        transient: bool = False,
        console: Console | None = None,
    ) -> None:
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._shown, self._began, self._said = shown, time.monotonic(), -OFTEN
        self._what, self._done, self._total = "", 0, 0
        self._numbers: dict[str, str] = {}
        self._task: TaskID | None = None
        self._bar: Bar | None = None
        if shown and self._console.is_terminal and not self._console.is_dumb_terminal:
            columns: list[Any] = [
                TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
                BarColumn(bar_width=None, table_column=Column(min_width=LEAST_BAR, ratio=1)),
                DownloadColumn() if unit else MofNCompleteColumn(table_column=Column(no_wrap=True)),
                TextColumn("{task.fields[numbers]}", markup=False, table_column=Column(no_wrap=True)),
                TimeRemainingColumn(table_column=Column(no_wrap=True, min_width=len("0:00:00"))),
            ]
            self._bar = Bar(*columns, console=self._console, transient=transient, refresh_per_second=4, expand=True)

    @property
    def is_bar(self) -> bool:
        return self._bar is not None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.pause()

    def pause(self) -> None:
        """Leave the terminal to others until there is news."""
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, what: str, done: int, total: int | None) -> None:
        """What is being done, how much of it, of how much. A line of a log says what was finished."""
        if self._shown and self._bar is None and done > self._done and time.monotonic() >= self._said + OFTEN:
            self._line(f"{done} of {total} done after {self._clock()}: {self._what}")
            self._said = time.monotonic()
        self.show(what, done, total)

    def show(self, what: str, done: int, total: int | None) -> None:
        """The same, without a line in a log."""
        self._what, self._done, self._total = what, done, total or 0
        if self._bar is None:
            return
        if self._task is None:
            self._task = self._bar.add_task(what, total=total, completed=done, numbers="")
        self._bar.update(self._task, description=what, total=total, completed=done, numbers=self._fitting())
        self._bar.start()  # not before: without a task rich would print an empty line

    def stage(self, what: str, total: int | None, done: int = 0) -> Callable[[int], None]:
        """A bar of its own for a part of the job, below those before it; returns what to call with the amount done."""
        self._task, self._began = None, time.monotonic()
        self.show(what, done, total)
        gathered = 0

        def advance(amount: int) -> None:
            nonlocal gathered
            gathered += amount
            if gathered >= CHUNK and self._bar is not None and self._task is not None:
                self._bar.advance(self._task, gathered)
                gathered = 0

        return advance

    def end(self) -> None:
        """The stage begun last is done."""
        if self._bar is not None and self._task is not None:
            task = next(task for task in self._bar.tasks if task.id == self._task)
            whole = task.total or task.completed
            self._bar.update(self._task, total=whole, completed=whole)
        elif self._shown and time.monotonic() >= self._began + OFTEN:
            self._line(f"{self._what}: done after {self._clock()}")

    def numbers(self, **numbers: str) -> None:
        """Numbers to show beside the bar until they are given anew."""
        self._numbers |= numbers

    def milestone(self, text: str) -> None:
        """A line that stays; where there is no bar it carries the numbers too."""
        if self._shown:
            beside = "" if self._bar else "".join(f", {name} {value}" for name, value in self._numbers.items())
            self._line(f"step {self._done}/{self._total}: {text}{beside}")

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False)

    def _clock(self) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        return f"{minutes}:{seconds:02}"

    def _fitting(self) -> str:
        """As many numbers as leave space for the bar, the count and the time left; the last ones (speed) go first."""
        taken = len(self._what) + LEAST_BAR + len(f"{self._total}/{self._total}") + len("0:00:00") + 5
        shown = [f"{name} {text}" for name, text in self._numbers.items()]
        while shown and len("  ".join(shown)) + taken > self._console.width:
            shown.pop()
        return "  ".join(shown)
