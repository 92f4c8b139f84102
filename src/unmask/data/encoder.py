"""Encode text fast: words repeat, so each is tokenized once and remembered; several processes share the work.

A byte-level pre-tokenizer never joins a word with the white space after it, so a text may be cut before every run of
white space and the tokens of the parts are the tokens of the whole. That is checked for each tokenizer on a text of
hard cases; one that fails (another kind of pre-tokenizer) is given whole texts instead: the same tokens, slower.

The helper processes run this very file and speak in frames over pipes. They import nothing of unmask, so that they
start in a moment, and end by themselves when the parent is gone, however it went.

Refuses to know where texts come from, how documents end and where tokens go.
"""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import chain
from types import TracebackType
from typing import IO

import numpy as np
import tokenizers

# White space as Unicode defines it: Python's \s also holds the four separators \x1c-\x1f, which tokenizers do not.
_WORD = re.compile(r"[^\S\x1c-\x1f]*[\S\x1c-\x1f]+|\s+")
_REMEMBERED = 1 << 18  # words; about 60 MB, then the memory starts afresh
_HARD_CASES = (
    "It's we'll THEY'RE o'clock 'tis ''s 12,345.67 3rd a_b  two   three\ttab \t mix\n"
    'end.\nNext," he said.\n\n\n  "Indented--dash…” (x)\r\nCRLF !?\r\n\r\n naïve'
    " 北京。\n東京\u00a0x\u3000y \u2028z\x1c,\x1d q\n"
)


class Encoder:
    """Texts to token ids with one tokenizer, in this process."""

    def __init__(self, tokenizer_json: str) -> None:
        self._inner = tokenizers.Tokenizer.from_str(tokenizer_json)
        self._inner.no_truncation()
        self._inner.no_padding()
        self._inner.encode_special_tokens = True
        self._known: dict[str, tuple[int, ...]] = {}
        self.by_word = True
        self.by_word = bool(np.array_equal(self._by_word(_HARD_CASES), self._whole(_HARD_CASES)))

    def encode(self, text: str) -> np.ndarray:
        """The token ids of a text, as uint32; exactly those of the tokenizer."""
        return self._by_word(text) if self.by_word else self._whole(text)

    def _whole(self, text: str) -> np.ndarray:
        return np.array(self._inner.encode(text, add_special_tokens=False).ids, dtype=np.uint32)

    def _by_word(self, text: str) -> np.ndarray:
        words = _WORD.findall(text)
        new = [word for word in set(words) if word not in self._known]
        if len(self._known) + len(new) > _REMEMBERED:
            self._known.clear()
            new = list(set(words))
        found = self._inner.encode_batch_fast(new, add_special_tokens=False)
        self._known.update((word, tuple(one.ids)) for word, one in zip(new, found, strict=True))
        return np.fromiter(chain.from_iterable(map(self._known.__getitem__, words)), dtype=np.uint32)


class EncoderPool:
    """The same encoder in `processes` helper processes (1: in this one). Use it as a context manager."""

    def __init__(self, tokenizer_json: str, processes: int) -> None:
        self._json, self._processes = tokenizer_json, processes
        self._helpers: list[subprocess.Popen[bytes]] = []
        self._free: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()

    def __enter__(self) -> EncoderPool:
        if self._processes == 1:
            return self
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}  # a helper a core is enough
        for _ in range(self._processes):
            helper = subprocess.Popen(
                [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
            )
            self._helpers.append(helper)
            self._free.put(helper)
        for helper in self._helpers:
            assert helper.stdin is not None
            with suppress(BrokenPipeError):  # already gone: the first job will say so
                _send(helper.stdin, [self._json.encode("utf-8")])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for helper in self._helpers:
            helper.kill()
            helper.communicate()

    def map(self, jobs: Iterable[Sequence[str]]) -> Iterator[list[np.ndarray]]:
        """The ids of each job's texts, in order; a few jobs are read ahead to keep every process busy."""
        if self._processes == 1:
            alone = Encoder(self._json)
            for job in jobs:
                yield [alone.encode(text) for text in job]
            return
        waiting: deque[Future[list[np.ndarray]]] = deque()
        threads = ThreadPoolExecutor(self._processes)  # one each, waiting on a helper's pipe
        try:
            for job in jobs:
                waiting.append(threads.submit(self._ask, job))
                if len(waiting) > 2 * self._processes:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            threads.shutdown(wait=True, cancel_futures=True)

    def _ask(self, texts: Sequence[str]) -> list[np.ndarray]:
        helper = self._free.get()
        assert helper.stdin is not None
        assert helper.stdout is not None
        answer = None
        with suppress(BrokenPipeError):  # no answer either
            _send(helper.stdin, [text.encode("utf-8") for text in texts])
            answer = _receive(helper.stdout)
        self._free.put(helper)  # if it is gone, the next one to ask it finds out as well
        if answer is None:
            from unmask.core.errors import UserError  # not at the top: helpers import nothing of unmask

            raise UserError("an encoder process was killed: free some memory and run the same command again")
        return [np.frombuffer(ids, dtype="<u4") for ids in answer]


def _send(pipe: IO[bytes], parts: Sequence[bytes]) -> None:
    """A frame: how many parts, their lengths, the parts."""
    sizes = np.array([len(parts), *map(len, parts)], dtype="<u4")
    pipe.write(b"".join([sizes.tobytes(), *parts]))
    pipe.flush()


def _receive(pipe: IO[bytes]) -> list[bytes] | None:
    """The parts of a frame; None if the pipe ended before all of it came: whoever writes is gone, half-way perhaps."""
    try:
        count = int.from_bytes(_exactly(pipe, 4), "little")
        sizes = np.frombuffer(_exactly(pipe, 4 * count), dtype="<u4").tolist()
        return [_exactly(pipe, size) for size in sizes]
    except EOFError:
        return None


def _exactly(pipe: IO[bytes], size: int) -> bytes:
    found = pipe.read(size)
    if len(found) < size:
        raise EOFError
    return found


def _serve() -> None:
    """A helper's life: the tokenizer first, then texts until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which closes the pipe
    frame = _receive(sys.stdin.buffer)
    if frame is None:
        return
    encoder = Encoder(frame[0].decode("utf-8"))
    while (frame := _receive(sys.stdin.buffer)) is not None:
        _send(sys.stdout.buffer, [encoder.encode(raw.decode("utf-8")).astype("<u4").tobytes() for raw in frame])


if __name__ == "__main__":
    _serve()
