"""Watches training: the loss of every optimiser step, and how sharply the network attends.

The loss: stop at once when it or the gradient is not a finite number; stop when it has stayed above twice its median
plus 0.5 nats for 50 steps running, the median being that of the last 256 steps before the rise. Single spikes, however
high, stop nothing.

Attention: a block whose heads look at one position each learns little more; that is worth one line, once a block.
"""

from __future__ import annotations

import math
import os
import signal
import statistics
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from unmask.core.errors import Terminated

MEMORY, FACTOR, MARGIN, PATIENCE = 256, 2.0, 0.5, 50
LEAST_ENTROPY = 1.0  # nats, of a block's attention at half masked


class LossWatch:
    """Take in losses one by one; `trouble` says in words what is wrong, if anything is."""

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=MEMORY)
        self._raised = 0  # steps running above the bound

    @property
    def calm(self) -> bool:
        """Whether the loss is not raised now: the moment to save a state that one may want to come back to."""
        return self._raised == 0

    def trouble(self, loss: float, norm: float) -> str | None:
        """Take in one step's loss and gradient norm; what is wrong, if anything."""
        if not (math.isfinite(loss) and math.isfinite(norm)):
            return f"the loss or its gradient is not a finite number (loss {loss:g}, gradient norm {norm:g})"
        known = len(self._losses) >= PATIENCE
        bound = FACTOR * statistics.median(self._losses) + MARGIN if known else math.inf
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
        self._losses = deque(saved["losses"], maxlen=MEMORY)
        self._raised = saved["raised"]


class AttentionWatch:
    """Names blocks whose median attention entropy falls below 1 nat, or below half of what `length` positions allow
    (log length) where that is less.
    """

    def __init__(self, length: int, named: Sequence[int] = ()) -> None:
        self.least = min(LEAST_ENTROPY, math.log(length) / 2)
        self.named = set(named)

    def news(self, entropies: Sequence[float]) -> str | None:
        """One line about the blocks that are below the bound and were not named before."""
        fresh = [block for block, nats in enumerate(entropies) if not nats >= self.least and block not in self.named]
        if not fresh:
            return None
        self.named.update(fresh)
        found = ", ".join(f"{block} ({entropies[block]:.2f})" for block in fresh)
        return (
            f"attention sees few tokens in block {found}: median entropy in nats at half masked, below "
            f"{self.least:.2f}; if it goes on falling it collapses: take a smaller beta2, a lower lr, a longer warmup "
            "or a larger batch"
        )


SAVING = b"\nunmask: saving after this step; once more leaves at once\n"


class Stop:
    """Whether this process was asked to stop, and by which signal."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def left(self, saved: str) -> KeyboardInterrupt:
        return Terminated(saved) if self.signal == signal.SIGTERM else KeyboardInterrupt(saved)

    @contextmanager
    def listening(self, *, among_others: bool) -> Iterator[Stop]:
        """Take both signals for the length of a block. Among others a second signal means nothing: torchrun passes on
        the one that its terminal has sent already, and ends its processes itself if they take longer than half a
        minute."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return

        def handle(number: int, _frame: Any) -> None:
            if self.signal is None:
                self.signal = number
                os.write(2, SAVING)  # print might be in the middle of a line
            elif not among_others:
                raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

        signals = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) is not signal.SIG_IGN]
        before = {number: signal.signal(number, handle) for number in signals}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
