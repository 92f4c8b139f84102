"""A run's folder: its config, which a rerun must repeat, and its states, of which the newest is continued.

run.json       the config, and every session (step, threads, processes, device), one at a time, that worked on it
state/step-*/  training states (state.py), the newest `keep` of them
rounds/N/      the student at the end of round N, where a run has rounds
metrics.jsonl, tensorboard/, checkpoint/
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torch import Tensor

from unmask.checkpoint.io import Checkpoint, load
from unmask.core.errors import UserError, os_errors, reading
from unmask.core.files import claim_folder, locked, read_json, sweep, sync_path, write_json
from unmask.core.ranks import Ranks
from unmask.training.state import load_state, save_state


def flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested config as one level of dotted names."""
    items: dict[str, Any] = {}
    for key, item in value.items():
        items |= flat(item, f"{prefix}{key}.") if isinstance(item, Mapping) else {f"{prefix}{key}": item}
    return items


def differences(old: Mapping[str, Any], new: Mapping[str, Any], free: set[str]) -> list[str]:
    """What changed between two configs outside the `free` keys, as `name old -> new`."""
    gone = "(not set)"
    before, after = flat(old), flat(new)
    pairs = {name: (before.get(name, gone), after.get(name, gone)) for name in sorted(before.keys() | after.keys())}
    return [f"{name} {was} -> {now}" for name, (was, now) in pairs.items() if was != now and name not in free]


class Claimed(NamedTuple):
    """What lies in a run's folder."""

    step: int  # of its newest state, 0 for none
    steps: int  # how many it was to have
    session: dict[str, Any]  # the last one
    finished: bool  # whether its checkpoint is that of the last step


class RunFolder:
    """The folder of one run. Methods that write are for all processes together, unless they say otherwise."""

    def __init__(self, path: Path, ranks: Ranks) -> None:
        self.path, self.ranks = path, ranks
        self.checkpoint = path / "checkpoint"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make the folder if need be, and keep a second run out of it."""

        def hold() -> None:
            with os_errors("write", self.path):
                self.path.mkdir(parents=True, exist_ok=True)
            busy = f"another process is at work on {self.path}: wait for it, or name another --out"
            stack.enter_context(locked(self.path, busy))

        with ExitStack() as stack:
            self.ranks.on_first(hold)
            yield

    def claim(self, config: dict[str, Any], session: dict[str, Any], free: set[str], steps: int) -> Claimed:
        """Recognise the folder, of a run of so many steps: refuse a changed config, clear what a kill left behind."""
        return Claimed(*self.ranks.on_first(lambda: self._claim(config, session, free, steps)))

    def _claim(self, config: dict[str, Any], session: dict[str, Any], free: set[str], steps: int) -> Claimed:
        claim_folder(self.path, "run")
        about, states = self.path / "run.json", self.path / "state"
        sessions: list[dict[str, Any]] = []
        before, changed = steps, []
        if about.exists():
            with reading(about, "the run's config", f"restore a copy, or remove {self.path} to start again"):
                run = json.loads(about.read_text("utf-8"))
                sessions, before = list(run["sessions"]), int(run["config"]["trainer"]["steps"])
                changed = differences(run["config"], config, free)
        kept = (self.path / "state", self.path / "rounds", self.checkpoint)  # where weights of this run would lie
        if changed and any(folder.is_dir() and any(folder.iterdir()) for folder in kept):
            raise UserError(f"{self.path} holds a run with another config ({'; '.join(changed)}): repeat its options, "
                            "or name another --out")  # fmt: skip
        if changed:
            sessions = []  # it stopped before its first state: another run may take the place
        with os_errors("write", self.path):
            states.mkdir(exist_ok=True)
            for folder in (self.path, states, self.path / "rounds"):
                sweep(folder)
        step, exported = self.newest, self._exported_step()
        if exported > 0 and step == 0 and exported != steps:
            raise UserError(f"{self.path} holds the checkpoint of step {exported} and no training state to go on from: "
                            "name another --out, or remove it to start again")  # fmt: skip
        write_json(about, {"config": config, "sessions": [*sessions, {"step": step, **session}]})
        return Claimed(step, before, sessions[-1] if sessions else {}, exported == steps)

    def _exported_step(self) -> int:
        """The step of the run's checkpoint, -1 if there is none."""
        about = self.checkpoint / "provenance.json"
        with reading(about, "provenance", f"restore a copy, or remove {self.checkpoint} and run the same command"):
            return int(read_json(about, "provenance")["step"]) if about.is_file() else -1

    def states(self) -> dict[int, Path]:
        """The states on disk by step. One that turns out to be damaged is an error, not a gap."""
        paths = (self.path / "state").glob("step-*")
        return {int(path.name[5:]): path for path in sorted(paths) if re.fullmatch(r"step-\d+", path.name)}

    @property
    def newest(self) -> int:
        """The step of the newest state; 0 where there is none."""
        return max(self.states(), default=0)

    def round(self, number: int) -> Path:
        return self.path / "rounds" / str(number)

    def load_round(self, number: int, weights: Literal["raw", "ema"]) -> Checkpoint:
        """The student of a round that is over."""
        path = self.round(number)
        if not path.is_dir():
            raise UserError(f"{path} is gone, and the round that was begun needs it as its teacher: put it back, or "
                            f"remove {self.path} and start again")  # fmt: skip
        return load(path, weights=weights)

    def save(self, step: int, tensors: Mapping[str, Tensor], facts: dict[str, Any], keep: int) -> None:
        """Save a state; older ones beyond `keep` go once it stands."""
        save_state(self.path / "state" / f"step-{step:08d}", tensors, facts, self.ranks)
        if self.ranks.first:
            for old in sorted(self.states())[:-keep]:
                _remove(self.states()[old])

    def restore(self, step: int, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        return load_state(self.states()[step], tensors, self.ranks, self.cure(step))

    def cure(self, step: int) -> str:
        """What to do about a damaged state."""
        older = max((other for other in self.states() if other < step), default=0)
        if not older:
            return f"name another --out, or remove {self.path} to start again"
        return f"remove that folder, and the same command continues from step {older}"


def _remove(path: Path) -> None:
    """Remove a state; one that is half gone must not look like a state, so it loses its name first."""
    with os_errors("write", path):
        dropped = path.with_name(f".{path.name}.new-released")  # swept if this is cut short
        os.rename(path, dropped)
        sync_path(path.parent)
        shutil.rmtree(dropped)
