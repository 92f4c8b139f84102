"""What a verb needs for its output during and after the work: how far is it, can stdout take it.

Refuses to know what is written.
"""

from __future__ import annotations

import io
import os
import sys


def open_what_is_closed() -> None:
    """`unmask sample >&-` starts without a stdout: what goes there is then for nobody, and no reason to fail."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (open as long as the process)


def let_stdout_take_any_text() -> None:
    """A model may write any character, and a text is not to be lost for one that stdout's encoding does not have.

    A file or a pipe gets UTF-8, whatever the locale says: as --out writes it, as JSON is, the same on every machine. A
    terminal could not show another encoding than its own: there a ? stands for what it lacks.
    """
    if not isinstance(sys.stdout, io.TextIOWrapper):  # a stream of the caller's making
        return
    if sys.stdout.isatty():
        sys.stdout.reconfigure(errors="replace")
    else:
        sys.stdout.reconfigure(encoding="utf-8", errors="replace")


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
