"""Files that are whole or absent: written aside, flushed to disk, then renamed into place; and whether they may be.

Refuses to know what the bytes mean.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from unmask.core.errors import UserError, from_os_error, os_errors


def sync_path(path: Path) -> None:
    """Flush a file or folder entry to the disk, so that a rename after it cannot overtake it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# what lies aside: `_aside` ends in hex digits, a training state has a word
_ASIDE = re.compile(r"\.(?P<name>.+)\.(?P<kind>old|new)-([0-9a-f]{8}|unsealed|released)")


def _aside(path: Path, kind: str) -> Path:
    return path.with_name(f".{path.name}.{kind}-{uuid.uuid4().hex[:8]}")


def aside_of(name: str) -> str | None:
    """What a file of this name would become, if it was written aside: `.a.json.new-0123abcd` is of `a.json`."""
    found = _ASIDE.fullmatch(name)
    return found["name"] if found else None


def _behind(path: Path | str) -> Path:
    """What a link leads to: that is what is written, and the link stays."""
    path = Path(path)
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def write_bytes(path: Path | str, data: bytes) -> None:
    """Write a file atomically: a reader sees the old content or the new, never a part."""
    path = _behind(path)
    if not path.name:
        raise UserError(f"cannot write {path}: it is a folder, not a file; name a file")
    with os_errors("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = _aside(path, "new")
        try:
            with open(aside, "wb") as handle:
                handle.write(data)
                handle.flush()
                os.fsync(handle.fileno())
            os.replace(aside, path)
            sync_path(path.parent)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise


def write_text(path: Path | str, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path | str, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path | str, what: str) -> dict[str, Any]:
    """A JSON object from a file; `what` names it in the error if it is damaged."""
    path = Path(path)
    with os_errors("read", path):
        raw = path.read_bytes()
    try:
        value = json.loads(raw)
    except ValueError as error:
        raise UserError(f"{what} {path} is damaged (not valid JSON): restore a copy or make it again") from error
    if not isinstance(value, dict):
        raise UserError(f"{what} {path} is damaged (expected a JSON object): restore a copy or make it again")
    return value


def swap_in(aside: Path, path: Path) -> None:
    """Put a finished folder in its place. The old one, if any, is gone only after the new one stands."""
    if not path.exists():
        os.rename(aside, path)
        sync_path(path.parent)
        return
    old = _aside(path, "old")
    try:
        os.rename(path, old)
        os.rename(aside, path)
    except BaseException:  # Ctrl-C between the two
        if not path.exists():
            os.rename(old, path)
        raise
    sync_path(path.parent)
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def fresh_folder(path: Path | str) -> Iterator[Path]:
    """A folder to fill: it takes the name `path` only when the block ends well, else nothing is left behind."""
    path = _behind(path)
    with os_errors("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = _aside(path, "new")
        aside.mkdir()
        try:
            yield aside
            for item in sorted(aside.rglob("*")):
                sync_path(item)
            sync_path(aside)
            swap_in(aside, path)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise


def sweep_asides(folder: Path) -> None:
    """Bring back a folder whose swap was cut off between its two renames; remove what a killed process left aside.

    For folders that are known to be ours: a name alone does not say who made it.
    """
    for path in sorted(folder.glob(".*")):
        found = _ASIDE.fullmatch(path.name)
        if found is None:
            continue
        home = folder / found["name"]
        if found["kind"] == "old" and not home.exists():
            os.rename(path, home)
        elif path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif found["kind"] == "new":
            path.unlink(missing_ok=True)


@contextmanager
def locked(folder: Path, busy: str | None) -> Iterator[bool]:
    """Keep every other process that asks out of a folder; if one is in already, that is a UserError: `busy`.

    Without such words this one waits. Whether others really are kept out: some clusters' file systems cannot lock.
    """
    with os_errors("write", folder):  # which is what the lock is for
        handle = os.open(folder, os.O_RDONLY)
    try:
        yield _alone(handle, folder, busy)
    finally:
        os.close(handle)


def _alone(handle: int, folder: Path, busy: str | None) -> bool:
    with os_errors("lock", folder):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (fcntl.LOCK_NB if busy else 0))
        except BlockingIOError as error:
            raise UserError(busy or "") from error
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            return False
    return True


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """For folders of ours that several processes put things in: this one alone, after what a killed one left is gone.

    Look again inside whether the thing is there: who had to wait may find it made.
    """
    with os_errors("write", folder):
        folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, busy=None) as alone:
        if alone:
            sweep_asides(folder)
        yield


def sha256_file(path: Path | str) -> str:
    digest = hashlib.sha256()
    with os_errors("read", path), open(path, "rb") as handle:
        while chunk := handle.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()


def check_writable(path: Path | None) -> None:
    """Refuse a file that cannot be written before any work is done; leaves nothing behind, no folder either."""
    if path is None:
        return
    try:
        if path.is_dir():
            raise UserError(f"cannot write {path}: it is a folder, not a file; name a file")
        # files are renamed into place: /dev/null would be replaced, and /dev/stdout, whatever that is just now
        if (path.exists() and not path.is_file()) or _is_a_devices(path.absolute()):
            raise UserError(f"cannot write {path}: it is a device or a pipe, not a file; name a file")
        _try_writing_in(path.absolute().parent)
    except OSError as error:
        error.filename = str(path)
        raise from_os_error(error, "write") from error


def _is_a_devices(path: Path) -> bool:
    """Whether a name belongs to the system's devices or processes; /dev/shm is a disk like others."""
    return path.parts[1:2] in (("dev",), ("proc",)) and path.parts[2:3] != ("shm",)


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
