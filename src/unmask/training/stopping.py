"""Ctrl-C and SIGTERM in a run that can save itself: the first asks it to save and leave, the second ends it at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from unmask.core.errors import Terminated

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
