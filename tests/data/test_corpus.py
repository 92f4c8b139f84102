"""Reading text: documents against a plain line-by-line reading, every container, every kind of damage."""

import gzip
import json
import lzma
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from unmask.core.errors import UserError
from unmask.data import corpus
from unmask.data.corpus import Reading, find, text_documents

SEPARATOR = "<|endoftext|>"

Prose = Callable[[int, int], str]


def documents(pieces) -> list[str]:
    found, current = [], ""
    for piece in pieces:
        current += piece.text
        if piece.last:
            found.append(current)
            current = ""
    assert not current, "a document that never ended"
    return found


def read(path: Path, **reading) -> list[str]:
    return [text for source in find(str(path)) for text in documents(source.pieces(Reading(**reading)))]


def line_by_line(text: str) -> list[str]:
    """The documents of a text, the slow and plain way."""
    found: list[list[str]] = [[]]
    for line in text.removesuffix("\n").split("\n"):
        if line.removesuffix("\r") == SEPARATOR:
            found[-1] = ["\n".join(found[-1]).removesuffix("\r")]
            found.append([])
        else:
            found[-1].append(line)
    return [text for text in map("\n".join, found) if text.strip()]


def test_documents_against_a_line_by_line_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "PIECE", 40)
    draw = random.Random(0)
    near_misses = [f"x {SEPARATOR}", f"{SEPARATOR} ", SEPARATOR[:-1]]
    lines = [SEPARATOR, "", " ", "\t", "a b", "one two three four " * 5, "solid" * 20, *near_misses]
    for _ in range(400):
        text = "\n".join(draw.choices(lines, k=draw.randrange(12))) + draw.choice(["", "\n"])
        pieces = list(text_documents([text], SEPARATOR))
        assert documents(pieces) == line_by_line(text), repr(text)
        assert all(len(piece.text) <= 40 for piece in pieces)
        cuts = sorted(draw.randrange(len(text) + 1) for _ in range(draw.randrange(6)))
        chunks = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert list(text_documents(chunks, SEPARATOR)) == pieces, "pieces must not depend on how the file was read"


def test_separator_lines_of_windows_files() -> None:
    text = f"one\r\ntwo\r\n{SEPARATOR}\r\n{SEPARATOR}\r\nthree\r\n"
    assert documents(text_documents([text], SEPARATOR)) == ["one\r\ntwo", "three"]


def test_a_long_document_in_pieces_has_the_tokens_of_the_whole(prose, monkeypatch, small):
    monkeypatch.setattr(corpus, "PIECE", 64)
    text = prose(5, 3000)
    pieces = list(text_documents([text], SEPARATOR))
    assert len(pieces) > 100
    assert [i for piece in pieces for i in small.encode(piece.text)] == small.encode(text)


def test_every_container_gives_the_same_documents(prose: Prose, tmp_path: Path) -> None:
    texts = [prose(seed, 200) for seed in range(5)]
    plain = f"\n{SEPARATOR}\n".join(texts).encode()
    lines = b"\n".join(json.dumps({"text": text, "id": i}).encode() for i, text in enumerate(texts))
    half = len(plain) // 2  # two members or frames after each other are one file
    packed = {
        "a.txt": plain,
        "bom.txt": b"\xef\xbb\xbf" + plain,
        "a.txt.xz": lzma.compress(plain[:half]) + lzma.compress(plain[half:]),
        "a.gz": gzip.compress(plain[:half]) + gzip.compress(plain[half:]),
        "a.txt.zst": zstandard.compress(plain[:half]) + zstandard.compress(plain[half:]),
        "misnamed.txt": lzma.compress(plain),
        "a.jsonl": lines,
        "blank.jsonl.xz": lzma.compress(lines.replace(b"\n", b"\n\n") + b"\n"),
        "a.jsonl.gz": gzip.compress(lines),
        "a.jsonl.zst": zstandard.compress(lines),
    }
    for name, content in packed.items():
        (tmp_path / name).write_bytes(content)
        assert read(tmp_path / name) == texts, name


def test_a_folder_is_read_in_sorted_order(tmp_path: Path) -> None:
    for name in ("b/2.txt", "b/10.txt", "a.txt", "c.jsonl", ".hidden.txt", ".git/x.txt", "picture.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps({"text": name}) if name.endswith("jsonl") else name, encoding="utf-8")
    assert read(tmp_path) == ["a.txt", "b/10.txt", "b/2.txt", "c.jsonl"]


def test_the_sample_is_seventeen_books_of_clean_text() -> None:
    books = read(Path("sample"))
    assert len(books) == 17
    assert books[-1].count("Syme") > 500  # The Man Who Was Thursday, held out
    assert not any("\r" in book or "gutenberg" in book.lower() for book in books)


def test_damage_is_named(prose: Prose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "CHUNK", 64)
    plain = prose(0, 5000).encode()

    def broken(packed: bytes) -> bytes:
        half = len(packed) // 2
        return packed[:half] + bytes(8) + packed[half + 8 :]

    cases = {
        "latin.txt": (b"word " * 200 + b"caf\xe9 " + plain, "latin.txt is not UTF-8 text .byte 0xe9 at offset 1003"),
        "split.txt": (b"x" * 63 + "é".encode() + b"\xff", "byte 0xff at offset 65"),
        "end.txt": (b"abc \xe2\x82", "byte 0xe2 at offset 4"),
        "inside.xz": (broken(lzma.compress(plain)), "is damaged"),
        "inside.gz": (broken(gzip.compress(plain)), "is damaged"),  # zlib.error, which is no gzip.BadGzipFile
        "inside.zst": (broken(zstandard.ZstdCompressor(write_checksum=True).compress(plain)), "is damaged"),
        "cut.txt.xz": (lzma.compress(plain)[:-20], "is damaged"),
        "cut.txt.gz": (gzip.compress(plain)[:-20], "is damaged"),
        "cut.txt.zst": (zstandard.compress(plain)[:-20], "is damaged"),
        "flip.zst": (zstandard.compress(plain)[:8] + b"\xff\xff\xff" + b"x" * 90, "is damaged"),
        "broken.jsonl": (b'{"text": "a"}\n{"text": ', "line 2: not valid JSON"),
        "other.jsonl": (b'{"body": "a", "id": 1}', "no text in the field 'text' .fields: body, id."),
        "list.jsonl": (b"[1, 2]", "no text in the field"),
        "half.jsonl": (b'{"text": "\\ud800"}', "not UTF-8"),
        "bytes.jsonl": (b'{"text": "\xe9"}', "not UTF-8 text .line 1"),
    }
    for name, (content, message) in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=message):
            read(tmp_path / name)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="not a regular file"):
        find(str(tmp_path / "pipe"))
    assert "caf\ufffd " in read(tmp_path / "latin.txt", errors="replace")[0]
    assert read(tmp_path / "other.jsonl", text_field="body") == ["a"]
