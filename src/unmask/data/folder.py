"""The folder that `prepare` fills: what an earlier run left there, and whether this one may go on with it.

`plan.json` comes first: settings, inputs, then the plan. `progress.json` lists the finished shards. `index.json` comes
last and makes the folder whole; the other two are then removed. Another text or other settings are refused, with what
differs, and a refused command touches nothing. What took work is thrown away in one case: a file changed while it was
read.

Refuses to know how shards are made.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from unmask.core.errors import UserError, os_errors
from unmask.core.files import aside_of, locked, read_json, sweep_asides, write_json
from unmask.data.shards import INDEX, SPLITS, VERSION
from unmask.data.streams import can_go_on

PLAN, PROGRESS, SPOOL, TOKENIZER = "plan.json", "progress.json", "spool", "tokenizer.json"


class Entry(Protocol):
    """An input: a file or a stream."""

    @property
    def name(self) -> str: ...

    @property
    def fingerprint(self) -> str | None:
        """What to know it by; None for a file or stream that was not read yet."""

    def same(self, fingerprint: str) -> bool:
        """Whether it is still what it was."""


class Folder:
    """The output folder, held by one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state: dict[str, Any] = {}

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make the folder if need be, and keep a second `unmask prepare` out of it."""
        with os_errors("write", self.path):
            fresh = not self.path.exists()
            self.path.mkdir(parents=True, exist_ok=True)
        busy = f"another process is preparing {self.path}: wait for it or choose another --out"
        with locked(self.path, busy):
            try:
                yield
            except UserError:
                if self.state and not self._work_to_lose():
                    self.start_over()  # a mistake leaves nothing behind
                if fresh:
                    with suppress(OSError):  # not empty: there is something worth keeping
                        self.path.rmdir()
                raise

    def finished(self, settings: dict[str, Any], entries: Sequence[Entry]) -> bool:
        """Whether the folder holds the result of this very command; raises UserError for that of another."""
        if not (self.path / INDEX).exists():
            return False
        index = read_json(self.path / INDEX, "the index")
        if index.get("version") != VERSION or not _is_ours(index):
            raise self._foreign()
        if different := _differences(index, settings, entries):
            raise self._refusal(different)
        sweep_asides(self.path)
        self._remove_scaffolding()  # a run may have been killed between its index and this
        return True

    def begin(self, settings: dict[str, Any], entries: Sequence[Entry]) -> None:
        """Take up an unfinished folder's state, or start a fresh one. What is refused is left as it was."""
        with os_errors("read", self.path):
            names = os.listdir(self.path)
        if PLAN in names:
            state = read_json(self.path / PLAN, "the plan")
            if not _is_ours(state):
                raise self._foreign()
            different = _differences(state, settings, entries)
            if not different:
                sweep_asides(self.path)
                self.state = state
                return
            if self._work_to_lose():
                raise self._refusal(different)
            self.start_over()
        elif any(aside_of(name) != PLAN for name in names):  # a plan aside: killed at the very first write
            raise self._foreign()
        sweep_asides(self.path)
        self.save(settings=settings, inputs=described(entries))

    def save(self, **facts: Any) -> None:
        """Add to the state, on disk."""
        write_json(self.path / PLAN, {**self.state, **facts})
        self.state.update(facts)

    def finish(self, index: dict[str, Any]) -> None:
        """The folder is whole: its index goes in, the scaffolding comes out."""
        write_json(self.path / INDEX, index)
        self._remove_scaffolding()

    def shards(self) -> list[dict[str, Any]]:
        """The shards that are finished so far."""
        path = self.path / PROGRESS
        found: list[dict[str, Any]] = read_json(path, "the progress")["shards"] if path.exists() else []
        return found

    def save_shards(self, shards: list[dict[str, Any]]) -> None:
        write_json(self.path / PROGRESS, {"shards": shards})

    def _work_to_lose(self) -> bool:
        return (self.path / PROGRESS).exists() or any(map(can_go_on, (self.path / SPOOL).glob("*")))

    def _remove_scaffolding(self) -> None:
        for name in (PLAN, PROGRESS):
            (self.path / name).unlink(missing_ok=True)
        shutil.rmtree(self.path / SPOOL, ignore_errors=True)

    def start_over(self) -> None:
        """Remove what is ours. A shard that the progress does not list was finished a moment before the end."""
        unlisted = [path for split in SPLITS for path in self.path.glob(f"{split}-*.bin")]
        for path in (*unlisted, self.path / TOKENIZER):
            path.unlink(missing_ok=True)
        self._remove_scaffolding()

    def _foreign(self) -> UserError:
        return UserError(f"{self.path} is not empty and holds no corpus of this unmask: choose another --out")

    def _refusal(self, different: str) -> UserError:
        return UserError(
            f"{self.path} was prepared from something else: {different}; "
            "give the same inputs and settings as before, or choose another --out"
        )


def _is_ours(state: dict[str, Any]) -> bool:
    """Whether a plan or an index is one of `prepare`: others use these names too."""
    settings, inputs = state.get("settings"), state.get("inputs")
    if not isinstance(settings, dict) or not isinstance(inputs, list):
        return False
    return all(isinstance(one, dict) and {"name", "fingerprint"} <= one.keys() for one in inputs)


def described(entries: Sequence[Entry]) -> list[dict[str, str | None]]:
    """The inputs as they are written down."""
    return [{"name": one.name, "fingerprint": one.fingerprint} for one in entries]


def _differences(state: dict[str, Any], settings: dict[str, Any], entries: Sequence[Entry]) -> str:
    """What is not as it was, in words; empty if all is the same."""
    before = state["settings"]
    found = [
        f"{name} was {_short(before.get(name))}, is {_short(value)}"
        for name, value in settings.items()
        if before.get(name) != value
    ]
    inputs = state["inputs"]
    if len(inputs) != len(entries):
        found.append(f"there were {len(inputs)} inputs, there are {len(entries)}")
    elif not found:
        found += [
            f"the input {one.name} has changed"
            for one, was in zip(entries, inputs, strict=True)
            if was["fingerprint"] is not None and not one.same(was["fingerprint"])
        ]
    return "; ".join(found)


def _short(value: Any) -> str:
    return value[:12] if isinstance(value, str) and len(value) == 64 else repr(value)  # a hash by its first digits
