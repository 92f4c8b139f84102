"""Numbers on their way from the device: sent after each optimiser step, looked at a few steps later.

Reading a number from a GPU at once would make the host wait until the step is done, and the GPU then wait for the
host to queue the next one. How far behind the host looks is fixed, whatever has arrived already: so all processes look
at the same step at the same time, and stop together.

Refuses to know what the numbers mean.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import torch
from torch import Tensor

BEHIND = 4  # optimiser steps that the device may be behind the host


class Arrivals:
    """First in, first out."""

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
