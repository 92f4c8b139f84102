"""Text that passes by once: standard input and Hugging Face datasets, cut off and taken up again."""

from __future__ import annotations

import io
import json
import lzma
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from unmask.core.errors import UserError
from unmask.data import streams
from unmask.data.prepare import Settings, prepare

Prose = Callable[[int, int], str]
SMALL = Settings(vocab_size=300, shard_tokens=1000, validation=0.1, test=0.1)


class Killed(BaseException):
    """Stands for a process that ends here and now."""


def pipe(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(content))))  # type: ignore[type-var]


def shard_bytes(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if file.name != "index.json"}


@pytest.fixture
def texts(prose: Prose) -> list[str]:
    return [prose(seed, 30 + 20 * seed) for seed in range(20)]


@pytest.fixture
def from_file(tmp_path: Path, texts: list[str]) -> dict[str, bytes]:
    """What the same text in a file gives."""
    (tmp_path / "a.txt").write_text("\n<|endoftext|>\n".join(texts), encoding="utf-8")
    prepare([str(tmp_path / "a.txt")], tmp_path / "from-file", **vars(SMALL), progress=False)
    return shard_bytes(tmp_path / "from-file")


@pytest.mark.parametrize("kind", ["txt", "txt.xz", "jsonl"])
def test_standard_input_gives_what_a_file_gives(
    kind: str, tmp_path: Path, texts: list[str], from_file: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = "\n<|endoftext|>\n".join(texts).encode()
    settings = SMALL
    if kind == "txt.xz":
        content = lzma.compress(content)
    if kind == "jsonl":
        content = "\n".join(json.dumps({"text": text}) for text in texts).encode()
        settings = Settings(**{**SMALL.__dict__, "format": "jsonl"})
    out = tmp_path / "out"
    pipe(monkeypatch, content)
    prepare(["-"], out, **vars(settings), progress=False)
    assert shard_bytes(out) == from_file

    for again in (content, b""):
        pipe(monkeypatch, again)
        assert prepare(["-"], out, **vars(settings), progress=False).already
    pipe(monkeypatch, "\n".join(json.dumps({"text": text}) for text in texts[1:]).encode())
    with pytest.raises(UserError, match="the input - has changed"):
        prepare(["-"], out, **vars(settings), progress=False)
    assert shard_bytes(out) == from_file


def test_a_mistake_on_standard_input_can_be_mended(
    tmp_path: Path, texts: list[str], from_file: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "PART", 500)
    content = "\n<|endoftext|>\n".join(texts).encode()
    for wrong, message in ((b"", "no text in -"), (content + b"\xff", "standard input is not UTF-8 text")):
        pipe(monkeypatch, wrong)
        with pytest.raises(UserError, match=message):
            prepare(["-"], tmp_path / "out", **vars(SMALL), progress=False)
        assert not (tmp_path / "out").exists()
    pipe(monkeypatch, content)
    prepare(["-"], tmp_path / "out", **vars(SMALL), progress=False)
    assert shard_bytes(tmp_path / "out") == from_file


def test_standard_input_is_piped_in_once_more_after_a_kill(
    tmp_path: Path, texts: list[str], from_file: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = "\n<|endoftext|>\n".join(texts).encode()
    out = tmp_path / "out"
    monkeypatch.setattr(streams, "PART", 500)
    real, left = streams.write_json, 3

    def dying(path: Path, value: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Killed
        real(path, value)

    with monkeypatch.context() as patch:
        patch.setattr(streams, "write_json", dying)
        pipe(monkeypatch, content)
        with pytest.raises(Killed):
            prepare(["-"], out, **vars(SMALL), progress=False)
    pipe(monkeypatch, content)
    prepare(["-"], out, **vars(SMALL), progress=False)
    assert shard_bytes(out) == from_file


@pytest.fixture
def dataset(tmp_path: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """The texts as a dataset of four data files."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")  # a user may have no home
    monkeypatch.setattr("datasets.config.HF_MODULES_CACHE", tmp_path / "modules")
    (tmp_path / "dataset").mkdir()
    for part in range(4):
        lines = [json.dumps({"id": i, "text": text}) for i, text in enumerate(texts[5 * part : 5 * part + 5])]
        (tmp_path / "dataset" / f"train-{part}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return f"hf:{tmp_path / 'dataset'}"


def test_a_dataset_is_streamed_and_goes_on_after_a_kill(
    dataset: str, tmp_path: Path, from_file: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    monkeypatch.setattr(streams, "PART", 500)
    seen: list[int] = []
    real = streams.record_document

    def watched(record, where, reading):
        if len(seen) == 12:
            raise Killed
        seen.append(record["id"])
        yield from real(record, where, reading)

    with monkeypatch.context() as patch:
        patch.setattr(streams, "record_document", watched)
        with pytest.raises(Killed):
            prepare([dataset], out, **vars(SMALL), progress=False)
    kept = sorted(path.name for path in (out / "spool" / "0").glob("0*.zst"))
    assert len(kept) >= 3
    with pytest.raises(UserError, match="there were 1 inputs, there are 2"):  # the download is not thrown away
        prepare([dataset, dataset], out, **vars(SMALL), progress=False)

    seen.clear()
    with monkeypatch.context() as patch:
        patch.setattr(streams, "record_document", lambda *a: (seen.append(0), real(*a))[1])
        prepare([dataset], out, **vars(SMALL), progress=False)
    assert len(seen) < 20 - 6, "what was read before the kill is not read again"
    assert shard_bytes(out) == from_file
    assert prepare([dataset], out, **vars(SMALL), progress=False).already


def test_datasets_that_cannot_be_read(dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [
        (f"{dataset}::nosuch", SMALL, "cannot open the dataset"),
        (f"hf:{tmp_path / 'nowhere'}", SMALL, "cannot open the dataset"),
        (dataset, Settings(text_field="body"), r"no text in the field 'body' \(fields: id, text\)"),
    ]
    for name, settings, message in cases:
        with pytest.raises(UserError, match=message):
            prepare([name], tmp_path / "out", **vars(settings), progress=False)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r'pip install "unmask\[hub\]"'):
        prepare([dataset], tmp_path / "out", **vars(SMALL), progress=False)
    assert not (tmp_path / "out").exists(), "a mistake leaves nothing behind"
