"""Files and folders that are whole or absent, locked while they are written, and marked with what they are.

A file is written under a temporary name, flushed to the disk and renamed. A folder of ours holds `unmask.json`, which
says its kind (a corpus, a run, ...): `claim_folder` is the one place that decides whether a verb may write there.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from unmask.core.errors import TEMPORARY, UserError, from_os_error, os_errors, reading

MARKER, LOCK = "unmask.json", ".unmask.lock"
KINDS = {
    "corpus": "a prepared corpus",
    "run": "a run",
    "checkpoint": "a checkpoint",
    "results": "the results of an evaluation",
    "cells": "the cells of an evaluation",
    "demo": "a demo",
}


def sync_path(path: Path) -> None:
    """Flush a file or folder entry to the disk, so that a rename after it cannot overtake it."""
    if os.name == "nt" and path.is_dir():
        return  # Windows opens no folders
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def temporary(path: Path, kind: str = "new") -> Path:
    """A name beside `path` to write under; `sweep` knows it, and error messages do not show it."""
    return path.with_name(f".{path.name}.{kind}-{uuid.uuid4().hex[:8]}")


def _link_target(path: Path | str) -> Path:
    """What a link leads to: that is written, and the link stays."""
    path = Path(path)
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def write_bytes(path: Path | str, data: bytes) -> None:
    """Write a file atomically: a reader sees the old content or the new, never a part."""
    path = _link_target(path)
    if not path.name:
        raise UserError(f"cannot write {path}: it is a folder, not a file; name a file")
    with os_errors("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        writing = temporary(path)
        try:
            with open(writing, "wb") as handle:
                handle.write(data)
                handle.flush()
                os.fsync(handle.fileno())
            os.replace(writing, path)
            sync_path(path.parent)
        except BaseException:
            writing.unlink(missing_ok=True)
            raise


def write_text(path: Path | str, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path | str, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path | str, what: str) -> dict[str, Any]:
    """A JSON object from a file; `what` names it in the error if it is damaged."""
    with reading(path, what):
        value = json.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise ValueError("expected a JSON object")
    return value


def swap_in(finished: Path, path: Path) -> None:
    """Put a finished folder in its place. The old one, if any, is gone only after the new one stands."""
    if not path.exists():
        os.rename(finished, path)
        sync_path(path.parent)
        return
    old = temporary(path, "old")
    try:
        os.rename(path, old)
        os.rename(finished, path)
    except BaseException:  # Ctrl-C between the two
        if not path.exists():
            os.rename(old, path)
        raise
    sync_path(path.parent)
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def fresh_folder(path: Path | str) -> Iterator[Path]:
    """A folder to fill: it takes the name `path` only when the block ends well, else nothing is left behind."""
    path = _link_target(path)
    with os_errors("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        filling = temporary(path)
        filling.mkdir()
        try:
            yield filling
            for item in sorted(filling.rglob("*")):
                sync_path(item)
            sync_path(filling)
            swap_in(filling, path)
        except BaseException:
            shutil.rmtree(filling, ignore_errors=True)
            raise


def sweep(folder: Path) -> None:
    """Bring back a folder whose swap was cut off between its two renames; remove what a killed process left.

    For folders that are known to be ours: a name alone does not say who made it.
    """
    for path in sorted(folder.glob(".*")):
        found = TEMPORARY.fullmatch(path.name)
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

    Without such words this one waits. Yields whether others really are kept out: some file systems cannot lock, and
    where no file can be made nothing can be spoilt either. Then work goes on without.
    """
    from filelock import FileLock, Timeout  # here: to load and sample takes no lock

    lock = FileLock(folder / LOCK, timeout=0 if busy else -1, fallback_to_soft=False)
    try:
        lock.acquire()
        alone = True
    except Timeout as error:
        raise UserError(busy or "") from error
    except OSError:
        alone = False
    try:
        yield alone
    finally:
        if alone:
            with suppress(OSError):  # Windows removes no open file: there the release does it
                os.unlink(folder / LOCK)  # before the release: who waits sees that its file is gone, and asks again
            lock.release()


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """For folders of ours that several processes put things in: this one alone, after what a killed one left is gone.

    Look again inside whether the thing is there: who had to wait may find it made.
    """
    with os_errors("write", folder):
        folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, busy=None) as alone:
        if alone:
            sweep(folder)
        yield


def kind_of(folder: Path) -> str | None:
    """What a folder of ours is, a key of KINDS; None if it is absent, empty, or somebody else's.

    A checkpoint's marker is its config.json, which published formats have too.
    """
    if (folder / MARKER).is_file():
        return str(read_json(folder / MARKER, "the marker").get("kind"))
    if (folder / "config.json").is_file():
        with suppress(UserError):
            config = read_json(folder / "config.json", "checkpoint config")
            if config.get("format") == "unmask" or config.get("model_type") == "mdlm":
                return "checkpoint"
    return None


def check_claim(folder: Path, kind: str, *, option: str = "--out", writes: Collection[str] | None = None) -> bool:
    """Refuse a folder that `kind` may not be written into; returns whether it is of that kind already.

    Allowed are a folder of the same kind, and one that is absent or empty. With `writes`, the names that will be
    written, other people's files may lie beside them: then only those names must be free. Touches nothing.
    """
    with os_errors("write", folder):
        names = [path.name for path in folder.iterdir()] if folder.exists() else []
    found = kind_of(folder)
    if found == kind:
        return True
    if found is not None:
        raise UserError(f"{folder} is {KINDS.get(found, found)}: name another {option}")
    # the marker's temporary file is what a process left that was killed at its very first write
    left = [match[0] for name in names if (match := TEMPORARY.fullmatch(name)) and match["name"] == MARKER]
    theirs = [name for name in names if name not in (LOCK, *left)]
    if writes is not None:
        theirs = [name for name in theirs if name in writes]
    if theirs:
        raise UserError(
            f"{folder} holds {sorted(theirs)[0]}, which is not ours: name another {option}, or move it away first"
        )
    return False


def claim_folder(folder: Path, kind: str, *, option: str = "--out", writes: Collection[str] | None = None) -> bool:
    """Make a folder ours, of this kind, or refuse it as `check_claim` does; returns whether it was so already.

    The first thing to call in a folder that is about to be written, under its lock if several processes might. The
    marker is the first file in it, so whatever a killed process leaves is known as ours. Kinds: see KINDS. A
    checkpoint is written whole, with its config.json: for it `check_claim(folder, "checkpoint")` is enough.
    """
    if check_claim(folder, kind, option=option, writes=writes):
        return True
    with os_errors("write", folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / MARKER, {"kind": kind})
    return False


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
        if (path.exists() and not path.is_file()) or _is_device(path.absolute()):
            raise UserError(f"cannot write {path}: it is a device or a pipe, not a file; name a file")
        _try_writing_in(path.absolute().parent)
    except OSError as error:
        error.filename = str(path)
        raise from_os_error(error, "write") from error


def _is_device(path: Path) -> bool:
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
