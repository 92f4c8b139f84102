"""The numbers of a run on their way: from the device, through means over steps, to `metrics.jsonl` and TensorBoard.

Reading a number from a GPU at once would make the host wait until the step is done, and the GPU then wait for the host
to queue the next one. So numbers are sent after each optimiser step and looked at a fixed number of steps later,
whatever has arrived already: all processes look at the same step at the same time, and stop together.

After a restart everything past the restored step is cut off the log, so no step is in it twice. Sums that are still
open (the mean loss since the last line) are part of the training state, so a resumed run writes the same losses as an
undisturbed one.
"""

from __future__ import annotations

import json
import math
import os
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.core.errors import os_errors
from unmask.core.files import write_text

BEHIND = 4  # optimiser steps that the device may be behind the host


class Arrivals:
    """Numbers of optimiser steps, first in, first out."""

    def __init__(self) -> None:
        self._sent: deque[tuple[int, Tensor, torch.cuda.Event | None]] = deque()

    def send(self, step: int, numbers_N: Tensor) -> None:
        """Queue the numbers of a step behind all the work that the device has been given so far."""
        arrived = None
        if numbers_N.is_cuda:
            queue = torch.cuda.current_stream(numbers_N.device)
            numbers_N = numbers_N.to("cpu", non_blocking=True)  # into pinned memory
            arrived = torch.cuda.Event(blocking=True)
            arrived.record(queue)
        self._sent.append((step, numbers_N, arrived))

    def take(self, behind: int) -> Iterator[tuple[int, list[float]]]:
        """Step and numbers of all but the `behind` newest, oldest first; waits for those that are not here yet."""
        while len(self._sent) > behind:
            step, numbers_N, arrived = self._sent.popleft()
            if arrived is not None:
                arrived.synchronize()
            yield step, numbers_N.tolist()


class Window:
    """Sums over the optimiser steps since the last line of the log."""

    def __init__(self, sums: list[float] | None = None, steps: int = 0) -> None:
        self.sums = sums or []
        self.steps = steps

    def add(self, values: list[float]) -> None:
        self.sums = [a + b for a, b in zip(self.sums or [0.0] * len(values), values, strict=True)]
        self.steps += 1


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
