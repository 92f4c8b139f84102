"""The folder that `prepare` fills: what an earlier run left there, and whether this one may go on with it.

`unfinished.json` holds what is known so far: settings, inputs, how the text is divided, the shards that are done.
`index.json` comes last and makes the folder whole; the other is then removed. Another text or other settings are
refused, with what differs, and a refused command touches nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from unmask.core.errors import UserError, os_errors, reading
from unmask.core.files import MARKER, check_claim, claim_folder, locked, read_json, sweep, write_json
from unmask.data.corpus import Source
from unmask.data.shards import INDEX, SPLITS, UNFINISHED
from unmask.data.streams import Stream, is_resumable

SPOOL, TOKENIZER = "spool", "tokenizer.json"


class Folder:
    """The output folder, held by one process at a time. `state` is what unfinished.json holds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state: dict[str, Any] = {}

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make the folder if need be, and keep a second `unmask prepare` out of it. A mistake leaves nothing behind."""
        with os_errors("write", self.path):
            fresh = not self.path.exists()
            self.path.mkdir(parents=True, exist_ok=True)
        try:
            with locked(self.path, f"another process is preparing {self.path}: wait for it or choose another --out"):
                try:
                    yield
                except UserError:
                    if self.state and not self._has_progress():
                        self.start_over()
                    raise
        except UserError:
            if fresh:
                with suppress(OSError):  # not empty: there is something worth keeping
                    self.path.rmdir()
            raise

    def finished(self, settings: dict[str, Any], entries: Sequence[Source | Stream]) -> bool:
        """Whether the folder holds the result of this very command; raises UserError for that of another."""
        if not check_claim(self.path, "corpus") or not (self.path / INDEX).exists():
            return False
        if different := self._differences(self.path / INDEX, settings, entries):
            raise self._refusal(different)
        sweep(self.path)
        self._remove_working_files()  # a run may have been killed between its index and this
        return True

    def begin(self, settings: dict[str, Any], entries: Sequence[Source | Stream]) -> None:
        """Take up an unfinished folder's state, or start a fresh one. What is refused is left as it was."""
        unfinished = self.path / UNFINISHED
        if check_claim(self.path, "corpus") and unfinished.exists():
            different = self._differences(unfinished, settings, entries)
            self.state = read_json(unfinished, "the record")
            if not different:
                sweep(self.path)
                return
            if self._has_progress():
                raise self._refusal(different)
            self.start_over()
        claim_folder(self.path, "corpus")
        sweep(self.path)
        self.save(settings=settings, inputs=[{"name": one.name, "fingerprint": one.fingerprint} for one in entries])

    def save(self, **facts: Any) -> None:
        """Add to the state, on disk."""
        write_json(self.path / UNFINISHED, {**self.state, **facts})
        self.state.update(facts)

    def finish(self, index: dict[str, Any]) -> None:
        """The folder is whole: its index goes in, the scaffolding comes out."""
        write_json(self.path / INDEX, index)
        self._remove_working_files()

    def start_over(self) -> None:
        """Remove what is ours. A shard that the state does not list was finished a moment before the end."""
        shards = [path for split in SPLITS for path in self.path.glob(f"{split}-*.bin")]
        for path in (*shards, self.path / TOKENIZER):
            path.unlink(missing_ok=True)
        self._remove_working_files()
        (self.path / MARKER).unlink(missing_ok=True)
        self.state = {}

    def _has_progress(self) -> bool:
        return bool(self.state.get("shards")) or any(map(is_resumable, (self.path / SPOOL).glob("*")))

    def _remove_working_files(self) -> None:
        (self.path / UNFINISHED).unlink(missing_ok=True)
        shutil.rmtree(self.path / SPOOL, ignore_errors=True)

    def _refusal(self, different: str) -> UserError:
        return UserError(
            f"{self.path} was prepared from something else: {different}; "
            "give the same inputs and settings as before, or choose another --out"
        )

    def _differences(self, path: Path, settings: dict[str, Any], entries: Sequence[Source | Stream]) -> str:
        """What is not as `path` has it, in words; empty if all is the same."""
        state = read_json(path, "the record")
        with reading(path, "the record"):
            before, fingerprints = dict(state["settings"]), [one["fingerprint"] for one in state["inputs"]]
        found = [
            f"{name} was {_short(before.get(name))}, is {_short(value)}"
            for name, value in settings.items()
            if before.get(name) != value
        ]
        if len(fingerprints) != len(entries):
            found.append(f"there were {len(fingerprints)} inputs, there are {len(entries)}")
        elif not found:
            pairs = zip(entries, fingerprints, strict=True)
            found += [f"the input {one.name} has changed" for one, was in pairs if was and not one.same(str(was))]
        return "; ".join(found)


def _short(value: Any) -> str:
    return value[:12] if isinstance(value, str) and len(value) == 64 else repr(value)  # a hash by its first digits
