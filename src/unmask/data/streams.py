"""Text that passes by only once, standard input and Hugging Face datasets, written to disk so it can be read again.

A stream is written to parts of compressed JSON lines, one piece of a document a line. A dataset that is cut off goes
on from its last whole part; standard input starts again, from whoever pipes it in.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from unmask.core.errors import UserError, os_errors
from unmask.core.files import read_json, sweep, temporary, write_json
from unmask.data.corpus import Piece, Reading, Source, record_document, uncompressed

PART = 1 << 26  # characters in a part, after which the place in the stream is saved
STATE = "state.json"


class Stdin:
    """Standard input, plain or compressed."""

    name = "-"

    def __init__(self, reading: Reading, kind: str) -> None:
        self.fingerprint: str | None = None  # what to know it by; None while it was not read to its end
        self._reading, self._kind = reading, kind

    def same(self, fingerprint: str) -> bool:
        """Read what is piped in now and compare. Nothing at all is taken for "as before"."""
        count = sum(1 for _ in self.pieces(None))
        return count == 0 or self.fingerprint == fingerprint

    def pieces(self, place: Any) -> Iterator[Piece]:
        """The documents from a saved place on (None: from the start)."""
        digest = hashlib.sha256()
        handle = sys.stdin.buffer
        assert isinstance(handle, io.BufferedReader)

        def hashed() -> Iterator[bytes]:
            for chunk in uncompressed(handle, "standard input"):
                digest.update(chunk)
                yield chunk

        yield from self._reading.documents(hashed(), self._kind, "standard input")
        self.fingerprint = digest.hexdigest()

    def place(self) -> Any:
        """Where `pieces` stands, as JSON; None if it can only start again."""
        return None


class Hub:
    """hf:NAME[:CONFIG[:SPLIT]], a Hugging Face dataset in streaming mode (a local folder of data files works too)."""

    def __init__(self, name: str, reading: Reading) -> None:
        self.name = self.fingerprint = name
        self._reading = reading
        try:
            import datasets
        except ImportError as error:
            raise UserError(f'{name} needs the package datasets: pip install "unmask[hub]"') from error
        path, config, split = [*name.removeprefix("hf:").split(":"), "", ""][:3]
        try:
            self._rows = datasets.load_dataset(path, config or None, split=split or "train", streaming=True)
        except (OSError, ValueError) as error:
            raise UserError(f"cannot open the dataset {name}: {error}") from error

    def same(self, fingerprint: str) -> bool:
        return self.fingerprint == fingerprint

    def pieces(self, place: Any) -> Iterator[Piece]:
        if place is not None:
            self._rows.load_state_dict(place)
        for record in self._rows:
            yield from record_document(record, self.name, self._reading)

    def place(self) -> Any:
        return self._rows.state_dict()


Stream = Stdin | Hub


def write_parts(stream: Stream, folder: Path, on_text: Callable[[int], None]) -> list[Source]:
    """Write a stream to `folder` as far as it is not there yet; `on_text` hears the characters that passed."""
    with os_errors("write", folder):
        folder.mkdir(parents=True, exist_ok=True)
    sweep(folder)
    state = _state(folder)
    pieces = stream.pieces(state["place"])
    number = state["parts"] if state["place"] is not None else 0
    while state["fingerprint"] is None:
        whole = _write_part(_part(folder, number), pieces, on_text)
        number += 1
        state = {"parts": number, "place": stream.place(), "fingerprint": stream.fingerprint if whole else None}
        write_json(folder / STATE, state)
    return [Source(stream.name, _part(folder, i), "pieces", state["fingerprint"]) for i in range(state["parts"])]


def is_resumable(folder: Path) -> bool:
    """Whether `folder` holds a stream that need not start again."""
    state = _state(folder)
    return state["place"] is not None or state["fingerprint"] is not None


def _state(folder: Path) -> dict[str, Any]:
    empty = {"parts": 0, "place": None, "fingerprint": None}
    path = folder / STATE
    return {**empty, **read_json(path, "the record of a stream")} if path.exists() else empty


def _part(folder: Path, number: int) -> Path:
    return folder / f"{number:05d}.jsonl.zst"


def _write_part(path: Path, pieces: Iterator[Piece], on_text: Callable[[int], None]) -> bool:
    """Write one part, up to the end of a document; True if the stream has ended."""
    writing = temporary(path)
    size, whole = 0, True
    with os_errors("write", path):
        with open(writing, "wb") as handle:
            import zstandard

            with zstandard.ZstdCompressor(level=1).stream_writer(handle, closefd=False) as packed:
                for piece in pieces:
                    packed.write(json.dumps([piece.text, piece.last]).encode() + b"\n")
                    size += len(piece.text)
                    on_text(len(piece.text))
                    if size >= PART and piece.last:
                        whole = False
                        break
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(writing, path)
    return whole
