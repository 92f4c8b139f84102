"""How much arithmetic a step is, how long steps take, and how fast this device can do arithmetic: together the MFU.

A multiply-add counts as two operations; only matrix products count.
"""

from __future__ import annotations

import time
from functools import lru_cache

import torch


class Stopwatch:
    """Seconds between `start` and `stop`, over all the times it ran. Starting it while it runs changes nothing."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._since: float | None = None

    def start(self) -> None:
        if self._since is None:
            self._since = time.perf_counter()

    def stop(self) -> None:
        if self._since is not None:
            self.seconds += time.perf_counter() - self._since
        self._since = None


@lru_cache(maxsize=4)
def matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Operations per second of a large square matrix product on this device, the best of a few: a tenth of a second."""
    # random values: a GPU multiplies zeros or ones faster than it ever will in training
    size = 8192 if device.type == "cuda" else 1024
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))

    def once() -> float:
        wait(device)
        start = time.perf_counter()
        a @ b
        wait(device)
        return time.perf_counter() - start

    once()  # the first call also loads kernels
    return 2.0 * size**3 / min(once() for _ in range(5))


def wait(device: torch.device) -> None:
    """Until everything queued on the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
