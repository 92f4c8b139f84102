"""Text from wherever it is kept, as a stream of pieces: files, compressed files, JSON lines, folders, the sample.

A document comes in pieces of bounded size, cut where a tokenizer would cut as well, so that no file and no document is
ever held whole (a line of JSON is). Text is kept as it is, byte for byte, but for a byte-order mark, the separator
lines and the one newline that ends a document's last line. Documents of nothing but white space are left out.
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
import lzma
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from unmask.core.errors import UserError, nearest, os_errors
from unmask.core.errors import reading as damage
from unmask.core.files import sha256_file

PIECE = 1 << 18  # characters; a longer document comes in several pieces
CHUNK = 1 << 20  # bytes read at once
SAMPLE = "sample-corpus.txt.xz"
COMPRESSED = (".xz", ".gz", ".zst")
SUFFIXES = (".txt", ".jsonl")


@dataclass(frozen=True)
class Piece:
    """A part of a document, in order; `last` marks the document's end."""

    text: str
    last: bool


@dataclass(frozen=True)
class Reading:
    """How files are read."""

    separator: str = "<|endoftext|>"
    text_field: str = "text"
    errors: str = "strict"

    def documents(self, chunks: Iterable[bytes], kind: str, name: str) -> Iterator[Piece]:
        """The documents in a stream of bytes, of the kind txt or jsonl."""
        if kind == "jsonl":
            return json_documents(chunks, name, self)
        return text_documents(decoded(chunks, name, self.errors), self.separator)


@dataclass(frozen=True)
class Source:
    """A file that can be read again."""

    name: str  # as the user would call it
    path: Path
    kind: str  # "txt", "jsonl", or "pieces" for a stream that was written to disk
    fingerprint: str | None = None  # of a stream; that of a file is known once all of it was read

    def same(self, fingerprint: str) -> bool:
        """Whether the file is still the one of this fingerprint; reads all of it."""
        return self.hashed() == fingerprint

    def hashed(self) -> str:
        """What a file is known by: all of its bytes."""
        return f"sha256:{sha256_file(self.path)}"

    def pieces(self, reading: Reading, on_read: Callable[[int], None] | None = None) -> Iterator[Piece]:
        """Every document of the file, in order; `on_read` hears how many bytes of the file were consumed."""
        with os_errors("read", self.path), open(self.path, "rb") as handle:
            chunks = _counted(uncompressed(handle, self.name), handle, on_read)
            if self.kind == "pieces":
                with damage(self.path):
                    yield from (Piece(*json.loads(line)) for line in _lines(chunks) if line)
            else:
                yield from reading.documents(chunks, self.kind, self.name)


# --- finding files ----------------------------------------------------------------------------------------------------


def find(name: str, kind: str = "auto") -> list[Source]:
    """The files that a user's word names: a file, a folder's files in sorted order, or the bundled sample."""
    if name == "sample":
        return [_source(name, Path(str(resources.files("unmask") / "assets" / SAMPLE)), kind)]
    if os.path.isdir(name):
        return [_source(str(path), path, kind) for path in _files_in(Path(name))]
    if not os.path.exists(name) and name.isalpha() and nearest(name.lower(), ["sample"]):
        raise UserError(f"cannot read {name}: it does not exist; did you mean 'sample'? Else check the path")
    return [_source(name, Path(name), kind)]


def _files_in(folder: Path) -> list[Path]:
    def refuse(error: OSError) -> None:
        raise error

    found = []
    with os_errors("read", folder):
        for here, folders, names in os.walk(folder, onerror=refuse):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            found += [Path(here, name) for name in names if not name.startswith(".") and _kind_of(name)]
    if not found:
        raise UserError(
            f"no text in the folder {folder}: files are taken that end in {', '.join(SUFFIXES + COMPRESSED)}"
        )
    return sorted(found, key=lambda path: path.parts)


def _kind_of(name: str) -> str | None:
    """txt or jsonl by the name's ending, before a compression's; None for a file of another kind."""
    stem, ending = os.path.splitext(name.lower())
    packed = ending in COMPRESSED
    if packed:
        ending = os.path.splitext(stem)[1]
    if ending in SUFFIXES:
        return ending[1:]
    return "txt" if packed else None


def _source(name: str, path: Path, kind: str) -> Source:
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is not a regular file: pipe its text in and read it as -")
    with os_errors("read", path), open(path, "rb"):
        pass  # a file that cannot be read is refused before any work
    return Source(name, path, (_kind_of(path.name) or "txt") if kind == "auto" else kind)


# --- bytes ------------------------------------------------------------------------------------------------------------


def uncompressed(handle: io.BufferedReader, name: str) -> Iterator[bytes]:
    """The content of a file in chunks; its first bytes, not its name, say how it is compressed."""
    magic = handle.peek(6)[:6]
    with damage(name, cure="get it again from where it came"):
        if magic.startswith(b"\x28\xb5\x2f\xfd"):
            yield from _unzstd(handle)
            return
        opened: Any = handle
        if magic.startswith(b"\xfd7zXZ\x00"):
            opened = lzma.LZMAFile(handle)  # noqa: SIM115  the handle is closed by its owner
        elif magic.startswith(b"\x1f\x8b"):
            opened = gzip.GzipFile(fileobj=handle)
        while chunk := opened.read(CHUNK):
            yield chunk


def _unzstd(handle: BinaryIO) -> Iterator[bytes]:
    """All frames of a zstd file. The library's own reader takes a file that was cut short for a whole one."""
    import zstandard

    frame, rest = zstandard.ZstdDecompressor().decompressobj(), b""
    started = False
    while raw := rest or handle.read(CHUNK >> 3):
        started = True
        if found := frame.decompress(raw):
            yield found
        rest = b""
        if frame.eof:
            rest, started = frame.unused_data, False
            frame = zstandard.ZstdDecompressor().decompressobj()
    if started:
        raise EOFError("the last frame has no end")


def _counted(chunks: Iterator[bytes], handle: BinaryIO, on_read: Callable[[int], None] | None) -> Iterator[bytes]:
    seen = 0
    for chunk in chunks:
        yield chunk
        if on_read is not None:
            on_read(handle.tell() - seen)
            seen = handle.tell()


# --- documents --------------------------------------------------------------------------------------------------------


def decoded(chunks: Iterable[bytes], name: str, errors: str) -> Iterator[str]:
    """Chunks of UTF-8 as text, without the byte-order mark."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")(errors)
    fed = 0
    for chunk in chain(chunks, [b""]):
        held = len(decoder.getstate()[0])  # the first bytes of a character that the chunk before cut in two
        try:
            yield decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            place = fed - held + error.start
            raise _not_utf8(name, f"byte 0x{error.object[error.start]:02x} at offset {place}") from error
        fed += len(chunk)


def _not_utf8(name: str, where: str) -> UserError:
    return UserError(
        f"{name} is not UTF-8 text ({where}): convert it, or read it with `unmask prepare --errors replace`"
    )


def text_documents(chunks: Iterable[str], separator: str) -> Iterator[Piece]:
    """Documents parted by lines that hold the separator and nothing else.

    Every document is seen as starting with the newline that ends the line before it, the first one too. A separator
    line is then always newline, separator, and a newline that already belongs to the next document.
    """
    line = r"\r?\n" + re.escape(separator) + r"\r?"
    inside, at_end = re.compile(line + r"(?=\n)"), re.compile(line + r"(?=\n|\Z)")
    margin = len(separator) + 4  # what may turn out to be a separator once more text is read
    rest, head = "\n", 1  # head: 1 while `rest` still starts with a document's first newline
    for chunk in chunks:
        rest += chunk
        start = 0
        for found in inside.finditer(rest):
            yield from _document(rest[start + head : found.start()], begun=not head)
            start, head = found.end(), 1
        rest = rest[start:]
        while len(rest) - head > PIECE + margin:
            end = safe_cut(rest, head, head + PIECE)
            yield Piece(rest[head:end], last=False)
            rest, head = rest[end:], 0
    start = 0
    for found in at_end.finditer(rest):
        yield from _document(rest[start + head : found.start()], begun=not head)
        start, head = found.end(), 1
    yield from _document(rest[start + head :].removesuffix("\n").removesuffix("\r"), begun=not head)


def json_documents(chunks: Iterable[bytes], name: str, reading: Reading) -> Iterator[Piece]:
    """One document a line: the field `text_field` of a JSON object."""
    for number, raw in enumerate(_lines(chunks), start=1):
        try:
            record = json.loads(raw.decode("utf-8", reading.errors)) if raw.strip() else None
        except UnicodeDecodeError as error:
            raise _not_utf8(name, f"line {number}") from error
        except (ValueError, RecursionError) as error:
            raise UserError(f"{name}, line {number}: not valid JSON ({error}); expected one object a line") from error
        if record is not None:
            yield from record_document(record, f"{name}, line {number}", reading)


def record_document(record: Any, where: str, reading: Reading) -> Iterator[Piece]:
    """The document that a record of named fields holds."""
    fields = record if isinstance(record, dict) else {}
    text = fields.get(reading.text_field)
    if not isinstance(text, str):
        found = f"it holds {json.dumps(text)[:20]}" if reading.text_field in fields else f"fields: {', '.join(fields)}"
        raise UserError(
            f"{where}: no text in the field {reading.text_field!r} ({found}); mend it, or choose one with --text_field"
        )
    try:
        text = text.encode("utf-8", reading.errors).decode("utf-8")
    except UnicodeEncodeError as error:  # JSON can spell half a character, such as \ud800
        raise _not_utf8(where, "half of a surrogate pair") from error
    yield from _document(text, begun=False)


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    parts: list[bytes] = []
    for chunk in chunks:
        first, *others = chunk.split(b"\n")
        parts.append(first)
        for line in others:
            yield b"".join(parts)
            parts = [line]
    yield b"".join(parts)


def _document(text: str, begun: bool) -> Iterator[Piece]:
    """The rest of a document as pieces; nothing if the whole of it is white space."""
    if not begun and not text.strip():
        return
    start = 0
    while len(text) - start > PIECE:
        end = safe_cut(text, start, start + PIECE)
        yield Piece(text[start:end], last=False)
        start = end
    yield Piece(text[start:], last=True)


# --- where a text may be cut ------------------------------------------------------------------------------------------

_SAFE = re.compile(r"(?<=[^\W_])(?=[ \n])")  # before a space or newline that follows a letter or digit
_FAIR = re.compile(r"(?<=\S)(?=[ \t\r\n])")  # before any white space that follows something else
_LOOK_BACK = 1 << 12


def safe_cut(text: str, low: int, high: int) -> int:
    """The last place in (low, high] where a cut leaves the tokens as they are.

    After a letter and before a space every pre-tokenizer in use has a boundary. Text without any such place for a long
    stretch (no spaces at all) is cut at `high`.
    """
    near = max(low + 1, high - _LOOK_BACK)
    for pattern, begin in ((_SAFE, near), (_FAIR, near), (_FAIR, low + 1)):
        places = [found.start() for found in pattern.finditer(text, begin, high + 1)]
        if places:
            return places[-1]
    return high
