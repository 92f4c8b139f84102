"""Progress bars on standard error: one a stage, with bytes per second and the time left.

Refuses to know what is being done.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

_STEP = 1 << 18  # bytes to gather before the bar is told: telling it of every tweet would cost more than reading it


class Bars:
    """The bars of one job, as a context manager."""

    def __init__(self, show: bool) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<16}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not show,
        )

    def start(self, label: str, total: int | None, done: int = 0) -> Callable[[int], None]:
        """Begin a stage of `total` bytes (None: nobody knows); returns the function to call with bytes done."""
        self._progress.start()  # not before: without a stage rich would print an empty line
        task = self._progress.add_task(label, total=total, completed=done)
        gathered = 0

        def advance(size: int) -> None:
            nonlocal gathered
            gathered += size
            if gathered >= _STEP:
                self._progress.advance(task, gathered)
                gathered = 0

        return advance

    def end(self) -> None:
        """The stage that was begun last is done."""
        if self._progress.task_ids:
            task = self._progress.tasks[-1]
            self._progress.update(task.id, total=task.total or task.completed, completed=task.total or task.completed)

    def __enter__(self) -> Bars:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._progress.tasks:
            return
        console = self._progress.console
        if kind is not None and not console.is_terminal:
            console.quiet = True  # a log gets the error's one line, not a bar that never moved
        self._progress.stop()
