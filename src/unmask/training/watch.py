"""Watches the loss of every optimiser step and says when training has gone wrong.

The rule: stop at once when the loss or the gradient is not a finite number; stop when the loss has stayed above twice
its median plus 0.5 nats for 50 steps running, the median being that of the last 256 steps before the rise. Single
spikes, however high, stop nothing.

Refuses to know what to do about it.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import Any

MEMORY, FACTOR, MARGIN, PATIENCE = 256, 2.0, 0.5, 50


class LossWatch:
    """Take in losses one by one; `trouble` says in words what is wrong, if anything is."""

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=MEMORY)
        self._raised = 0  # steps running above the bound

    @property
    def calm(self) -> bool:
        """Whether the loss is not raised now: the moment to save a state that one may want to come back to."""
        return self._raised == 0

    def bound(self) -> float:
        """Above this a loss counts as raised."""
        if len(self._losses) < PATIENCE:
            return math.inf
        return FACTOR * statistics.median(self._losses) + MARGIN

    def trouble(self, loss: float, norm: float) -> str | None:
        """Take in one step's loss and gradient norm; what is wrong, if anything."""
        if not (math.isfinite(loss) and math.isfinite(norm)):
            return f"the loss or its gradient is not a finite number (loss {loss:g}, gradient norm {norm:g})"
        bound = self.bound()
        if loss <= bound:
            self._losses.append(loss)
            self._raised = 0
            return None
        self._raised += 1
        if self._raised < PATIENCE:
            return None
        return f"the loss has been above {bound:.3g} nats, twice its usual value, for {PATIENCE} steps (now {loss:.3g})"

    def to_json(self) -> dict[str, Any]:
        return {"losses": list(self._losses), "raised": self._raised}

    def restore(self, saved: dict[str, Any]) -> None:
        self._losses.clear()
        self._losses.extend(saved["losses"])
        self._raised = saved["raised"]
