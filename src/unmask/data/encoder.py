"""Encode text fast: words repeat, so each is tokenized once and remembered; several processes share the work.

A byte-level pre-tokenizer never joins a word with the white space after it, so a text may be cut before every run of
white space and the tokens of the parts are the tokens of the whole. That is checked for each tokenizer on a text of
hard cases; one that fails (another kind of pre-tokenizer) is given whole texts instead: the same tokens, slower.

The helper processes run this very file and speak in pickles over pipes. They import nothing of unmask, so that they
start in a moment, and end by themselves when the parent is gone, however it went. (multiprocessing would run the
caller's own script again in each of them.)
"""

from __future__ import annotations

import os
import pickle
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
from typing import IO, Any

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
        if self._processes > 1:
            environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}  # a helper a core is enough
            command = [sys.executable, __file__]
            for _ in range(self._processes):
                pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
                self._helpers.append(subprocess.Popen(command, env=environment, **pipes))
        for helper in self._helpers:
            with suppress(BrokenPipeError):  # already gone: the first job will say so
                _send(helper.stdin, self._json)
            self._free.put(helper)
        return self

    def __exit__(self, *_: object) -> None:
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
        try:
            _send(helper.stdin, list(texts))
            answer: list[np.ndarray] = pickle.load(helper.stdout)  # type: ignore[arg-type]
            return answer
        except (BrokenPipeError, EOFError, pickle.UnpicklingError) as error:  # gone, perhaps half-way through an answer
            from unmask.core.errors import UserError  # not at the top: helpers import nothing of unmask

            raise UserError("an encoder process was killed: free some memory and run the same command again") from error
        finally:
            self._free.put(helper)  # if it is gone, the next one to ask it finds out as well


def _send(pipe: IO[bytes] | None, value: Any) -> None:
    assert pipe is not None
    pickle.dump(value, pipe, protocol=5)
    pipe.flush()


def _serve() -> None:
    """A helper's life: the tokenizer first, then texts until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which closes the pipe
    with suppress(EOFError):
        encoder = Encoder(pickle.load(sys.stdin.buffer))
        while True:
            texts = pickle.load(sys.stdin.buffer)
            _send(sys.stdout.buffer, [encoder.encode(text) for text in texts])


if __name__ == "__main__":
    _serve()
