"""A user's mistake, said in one line: what was wrong, what is allowed, what to do.

The command line turns a UserError into one line and exit code 2; a library caller sees an ordinary exception.
"""

from __future__ import annotations

import difflib
import errno
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

Value = TypeVar("Value")


class UserError(Exception):
    """Something the user can mend; the message is one line."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends work as Ctrl-C does."""


def nearest(name: str, allowed: Iterable[str], cutoff: float = 0.5) -> str | None:
    """The allowed name most like `name`, if one is close enough to suggest."""
    matches = difflib.get_close_matches(name, list(allowed), n=1, cutoff=cutoff)
    return matches[0] if matches else None


def suggestion(name: str, allowed: Iterable[str]) -> str:
    """A question for a message, where an allowed name is near."""
    guess = nearest(name, allowed)
    return f"did you mean {guess!r}? " if guess else ""


def unknown(what: str, name: str, allowed: Iterable[str]) -> UserError:
    """The error for a name that is not one of `allowed`: suggests the nearest and lists them all."""
    names = sorted(allowed)
    return UserError(f"unknown {what} {name!r}: {suggestion(name, names)}allowed: {', '.join(names)}")


def check_name(what: str, name: object, allowed: Collection[str]) -> None:
    """Refuse a name that is not one of `allowed`."""
    if name not in allowed:
        raise unknown(what, str(name), allowed)


def named(what: str, name: str, known: Mapping[str, Value]) -> Value:
    """The entry of a table by its name; an unknown name is a user's mistake."""
    check_name(what, name, known)
    return known[name]


_OS_REASONS = {
    errno.ENOSPC: "the disk is full; free some space and run the same command again",
    errno.EDQUOT: "the disk quota is used up; free some space and run the same command again",
    errno.EACCES: "permission denied; choose a place you may use, or change its permissions",
    errno.EPERM: "permission denied; choose a place you may use, or change its permissions",
    errno.EROFS: "the file system is read-only; choose another place",
    errno.ENOENT: "it does not exist; check the path",
    errno.ENOTDIR: "a part of the path is a file, not a folder; check the path",
    errno.EISDIR: "it is a folder, not a file; name a file",
}


def from_os_error(error: OSError, doing: str = "use") -> UserError:
    """One line for what the operating system refused."""
    where = error.filename if error.filename is not None else "the file"
    reason = _OS_REASONS.get(error.errno or 0, error.strerror or str(error))
    if error.errno == errno.EEXIST and os.path.isfile(where):  # where a folder was to be made
        reason = "it is a file, not a folder; name a folder"
    return UserError(f"cannot {doing} {where}: {reason}")


# what a file or folder is called while it is written: `.report.html.new-0123abcd`; a training state has a word
TEMPORARY = re.compile(r"\.(?P<name>.+)\.(?P<kind>old|new)-([0-9a-f]{8}|unsealed|released)")


@contextmanager
def os_errors(doing: str, path: Path | str) -> Iterator[None]:
    """Turn what the operating system refuses inside the block into one line naming `path`, never a temporary name."""
    try:
        yield
    except OSError as error:
        if error.filename is None or any(TEMPORARY.fullmatch(part) for part in Path(str(error.filename)).parts):
            error.filename = str(path)
        raise from_os_error(error, doing) from error


@contextmanager
def reading(path: Path | str, what: str = "", cure: str = "restore a copy or make it again") -> Iterator[None]:
    """The one boundary around every reader: whatever a damaged file raises inside becomes one line that names the file.

        with reading(path, "the index"):
            index = json.loads(path.read_text("utf-8"))
            sizes = [shard["tokens"] for shard in index["shards"]]  # a missing key is damage too

    A reader therefore needs no guard of its own: it may index, convert and unpack as if the file were whole, and raise
    ValueError where a value makes no sense. A UserError passes, with the file's name put before it if it lacks it.
    """
    named = f"{what} {path}" if what else str(path)
    try:
        with os_errors("read", path):
            yield
    except UserError as error:
        if str(path) in str(error):
            raise
        raise UserError(f"{named}: {error}") from error
    except Exception as error:
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's own, not imported
            raise UserError(f"{named} does not fit in the memory: free some, or use a larger machine") from error
        raise UserError(f"{named} is damaged ({_reason(error)}): {cure}") from error


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"{error} is missing"
    if isinstance(error, RecursionError):
        return "nested too deeply"
    words = " ".join(str(error).split())
    if isinstance(error, json.JSONDecodeError):
        words = f"not valid JSON: {words}"
    return words[:200] if words else type(error).__name__
