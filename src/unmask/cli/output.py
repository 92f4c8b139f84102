"""Progress of evaluate and fit-grid on standard error."""

from __future__ import annotations


class Bar:
    """Progress on standard error: a callback of the library, told what is being done, how much of it, of how much."""

    def __init__(self, shown: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("{task.description}", markup=False),  # it names models
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=not shown,
        )
        self._task = self._progress.add_task("loading", total=None)

    def __call__(self, what: str, done: int, total: int) -> None:
        self._progress.update(self._task, description=what, completed=done, total=total)

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()
