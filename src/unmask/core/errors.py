"""A user's mistake, said in one line: what was wrong, what is allowed, what to do.

Refuses to know who prints it: the command line turns a UserError into one line and exit code 2,
a library caller sees an ordinary exception.
"""

from __future__ import annotations

import difflib
import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


class UserError(Exception):
    """Something the user can mend; the message is one line."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


def nearest(name: str, allowed: Iterable[str], cutoff: float = 0.5) -> str | None:
    """The allowed name most like `name`, if one is close enough to suggest."""
    matches = difflib.get_close_matches(name, list(allowed), n=1, cutoff=cutoff)
    return matches[0] if matches else None


def unknown(what: str, name: str, allowed: Iterable[str]) -> UserError:
    """The error for a name that is not one of `allowed`: suggests the nearest and lists them all."""
    names = sorted(allowed)
    guess = nearest(name, names)
    hint = f"did you mean {guess!r}? " if guess else ""
    return UserError(f"unknown {what} {name!r}: {hint}allowed: {', '.join(names)}")


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


@contextmanager
def os_errors(doing: str, path: Path | str) -> Iterator[None]:
    """Turn what the operating system refuses inside the block into one line naming `path`."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise from_os_error(error, doing) from error
