"""What a run reports of itself: `metrics.jsonl`, one JSON object a line, and the same numbers for TensorBoard.

After a restart everything past the restored step is cut off, so no step is told twice. Sums that are still open (the
mean loss since the last line) are part of the training state, so a resumed run writes the same losses as an
undisturbed one.

Refuses to know how the numbers came about.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unmask.core.errors import os_errors
from unmask.core.files import write_text


class Window:
    """Means over the optimiser steps since the last line of the log."""

    def __init__(self, sums: list[float] | None = None, steps: int = 0) -> None:
        self.sums = sums or []
        self.steps = steps

    def add(self, values: list[float]) -> None:
        self.sums = [a + b for a, b in zip(self.sums or [0.0] * len(values), values, strict=True)]
        self.steps += 1

    def to_json(self) -> dict[str, Any]:
        return {"sums": self.sums, "steps": self.steps}


def lines_until(text: str, step: int) -> str:
    """The whole lines of a log up to and including `step`; a line that a kill cut short is dropped."""
    kept = []
    for line in text.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and record.get("step", step + 1) <= step:
            kept.append(line + "\n")
    return "".join(kept)


class MetricsLog:
    """The two logs of a run folder, continued after `step`; -1 for a run that starts (again) from nothing."""

    def __init__(self, folder: Path, step: int, *, tensorboard: bool) -> None:
        self.path = folder / "metrics.jsonl"
        if self.path.exists():
            with os_errors("read", self.path):
                text = self.path.read_text(encoding="utf-8", errors="replace")
            write_text(self.path, lines_until(text, step))
        with os_errors("write", self.path):
            self._handle = open(self.path, "a", encoding="utf-8")  # noqa: SIM115 (open as long as the run)
        self._board: Any = None
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter  # a heavy import

            with os_errors("write", folder / "tensorboard"):
                self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def write(self, step: int, values: Mapping[str, float | None]) -> None:
        """None, and a number that JSON does not know, is null."""
        known = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
        with os_errors("write", self.path):
            self._handle.write(json.dumps({"step": step, **dict.fromkeys(values), **known}) + "\n")
            self._handle.flush()
        if self._board is not None:
            for name, value in known.items():
                self._board.add_scalar(name, value, step)

    def settle(self) -> None:
        """Make sure that what was written is on the disk: a state saved next may rely on it."""
        with os_errors("write", self.path):
            os.fsync(self._handle.fileno())

    def close(self) -> None:
        self._handle.close()
        if self._board is not None:
            self._board.close()
