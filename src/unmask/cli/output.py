"""What a verb needs for its output before, during and after the work: may the file be written, how far is it, can
stdout take it.

Refuses to know what is written.
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from tempfile import TemporaryFile

from unmask.base.errors import UserError, from_os_error


def check_writable(path: Path | None) -> None:
    """Refuse a file that cannot be written before any work is done; leaves nothing behind, no folder either."""
    if path is None:
        return
    try:
        if path.is_dir():
            raise UserError(f"cannot write {path}: it is a folder, not a file; name a file")
        if path.exists() and not path.is_file():  # files are renamed into place: /dev/null would be replaced
            raise UserError(f"cannot write {path}: it is a device or a pipe, not a file; name a file")
        _try_writing_in(path.absolute().parent)
    except OSError as error:
        error.filename = str(path)
        raise from_os_error(error, "write") from error


def check_folder(path: Path) -> None:
    """Refuse a folder that cannot be made, or written in, before any work is done; leaves nothing behind."""
    try:
        if path.is_file():
            raise UserError(f"cannot write {path}: it is a file, not a folder; name a folder")
        _try_writing_in(path.absolute())
    except OSError as error:
        error.filename = str(path)
        raise from_os_error(error, "write") from error


def _try_writing_in(folder: Path) -> None:
    nearest = next(place for place in (folder, *folder.parents) if place.exists())
    with TemporaryFile(dir=nearest):  # the only sure sign: permissions do not tell of a read-only or full disk
        pass


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
