"""From text to shards and back: the tokens are the text, and a run may be killed anywhere without a trace of it."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unmask.core.errors import UserError
from unmask.data import corpus, folder, pack
from unmask.data.prepare import Settings, prepare
from unmask.data.shards import ShardSet

Prose = Callable[[int, int], str]
SMALL = Settings(vocab_size=300, shard_tokens=1000, validation=0.1, test=0.1)


class Killed(BaseException):
    """Stands for a process that ends here and now."""


@pytest.fixture
def texts(prose: Prose) -> list[str]:
    return [prose(seed, 30 + 20 * seed) for seed in range(20)]


@pytest.fixture
def source(tmp_path: Path, texts: list[str]) -> Path:
    """Twenty documents in three files."""
    for name, part in (("a.txt", texts[:8]), ("b.txt", texts[8:9]), ("c.txt", texts[9:])):
        path = tmp_path / "source" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n<|endoftext|>\n".join(part) + "\n", encoding="utf-8")
    return tmp_path / "source"


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def read_back(shards: ShardSet, split: str) -> list[str]:
    """The documents of a split, decoded."""
    ids = np.asarray(shards.tokens(split)[:])
    tokenizer = shards.tokenizer()
    ends = np.flatnonzero(ids == tokenizer.eos_id)
    assert len(ids) == 0 or ends[-1] == len(ids) - 1
    parts = np.split(ids, ends + 1)[:-1]
    return [tokenizer.decode(part[:-1]) for part in parts]


@pytest.mark.parametrize("tokenizer", [None, "gpt2"])
def test_shards_hold_the_text(source: Path, tmp_path: Path, texts: list[str], tokenizer: str | None) -> None:
    size = None if tokenizer else 300
    settings = Settings(tokenizer=tokenizer, vocab_size=size, validation=0.1, test=0.1, shard_tokens=500)
    made = prepare([str(source)], tmp_path / "out", **vars(settings), progress=False)
    assert not made.already
    made.shards.verify()
    expected = {"train": texts[:16], "test": texts[16:18], "validation": texts[18:]}
    for split, documents in expected.items():
        assert read_back(made.shards, split) == documents
        assert made.shards.count(split, "documents") == len(documents)
        assert made.shards.count(split, "text_bytes") == sum(len(text.encode()) for text in documents)
        about = made.shards.index["splits"][split]
        assert about["tokens"] == sum(shard["tokens"] for shard in about["shards"])
        assert all(shard["tokens"] == 500 for shard in about["shards"][:-1])
        assert 0 < about["shards"][-1]["tokens"] <= 500
    others = {name for name in contents(tmp_path / "out") if not name.endswith(".bin")}
    assert others == {"unmask.json", "index.json", "tokenizer.json"}, "no scaffolding is left"


def test_one_long_document_is_divided_and_nothing_is_lost(
    tmp_path: Path, prose: Prose, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "PIECE", 500)
    text = prose(0, 4000)
    (tmp_path / "book.txt").write_text(text, encoding="utf-8")
    made = prepare([str(tmp_path / "book.txt")], tmp_path / "out", **vars(SMALL), progress=False).shards
    parts = [read_back(made, split) for split in ("train", "test", "validation")]
    assert [len(part) for part in parts] == [1, 1, 1]
    assert "".join(part[0] for part in parts) == text
    assert made.index["split_by"] == "characters"


def dying(real: Callable[..., Any], calls: int, after: bool) -> Callable[..., Any]:
    """`real`, but the process ends just before or just after call number `calls`."""

    def call(*args: Any, **keywords: Any) -> Any:
        nonlocal calls
        calls -= 1
        if calls == 0 and not after:
            raise Killed
        result = real(*args, **keywords)
        if calls == 0:
            raise Killed
        return result

    return call


@pytest.mark.parametrize(
    ("owner", "name", "after"),
    [(os, "replace", False), (os, "replace", True), (pack.ShardWriter, "write", False)],
)
def test_killed_at_any_write_and_run_again_ends_with_the_same_bytes(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, after: bool
) -> None:
    monkeypatch.setattr(corpus, "PIECE", 300)
    prepare([str(source)], tmp_path / "whole", **vars(SMALL), progress=False)
    expected = contents(tmp_path / "whole")
    killed, previous, calls = True, 1, 1
    while killed:
        out = tmp_path / f"killed-{calls}"
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, dying(getattr(owner, name), calls, after))
            try:
                prepare([str(source)], out, **vars(SMALL), progress=False)
                killed = False
            except Killed:
                found = contents(out) if out.exists() else {}
                assert all(found[file] == expected[file] for file in found if file in expected), "a half-written file"
        prepare([str(source)], out, **vars(SMALL), progress=False)
        assert contents(out) == expected, calls
        previous, calls = calls, calls + previous
    assert calls > 8, "the process was killed at several moments"


def test_killed_for_real_and_run_again(source: Path, tmp_path: Path) -> None:
    prepare([str(source)], tmp_path / "whole", **vars(SMALL), progress=False)
    script = (
        "import os, signal, sys\nfrom unmask.data import folder\nfrom unmask.data.prepare import Settings, prepare\n"
        "real, left = folder.Folder.save, 5\n"
        "def dying(self, **facts):\n"
        "    global left\n    left -= 1\n"
        "    if left == 0: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    real(self, **facts)\n"
        "folder.Folder.save = dying\n"
        f"prepare([{str(source)!r}], {str(tmp_path / 'out')!r}, **{SMALL.__dict__!r}, progress=False)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True)
    assert ended.returncode == -signal.SIGKILL
    assert len([name for name in contents(tmp_path / "out") if name.startswith("train-")]) == 3
    before = {name: os.stat(tmp_path / "out" / name).st_mtime_ns for name in ("train-00000.bin", "train-00001.bin")}
    prepare([str(source)], tmp_path / "out", **vars(SMALL), progress=False)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert {name: os.stat(tmp_path / "out" / name).st_mtime_ns for name in before} == before, "finished shards are kept"


def test_the_same_call_again_does_nothing_and_another_is_refused(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare([str(source)], out, **vars(SMALL), progress=False)
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in out.iterdir()}
    assert prepare([str(source)], out, **vars(SMALL), progress=False).already
    others = {
        "vocab_size was 300, is 400": Settings(vocab_size=400, shard_tokens=1000, validation=0.1, test=0.1),
        "validation was 0.1, is 0.2": Settings(vocab_size=300, shard_tokens=1000, validation=0.2, test=0.1),
        "tokenizer was None, is bf7ec4f9155d": Settings(tokenizer="gpt2", shard_tokens=1000, validation=0.1, test=0.1),
    }
    for message, settings in others.items():
        with pytest.raises(UserError, match=message):
            prepare([str(source)], out, **vars(settings), progress=False)
    with pytest.raises(UserError, match="there were 3 inputs, there are 1"):
        prepare([str(source / "a.txt")], out, **vars(SMALL), progress=False)
    (source / "b.txt").write_text("another text", encoding="utf-8")
    with pytest.raises(UserError, match=r"the input .*b\.txt has changed"):
        prepare([str(source)], out, **vars(SMALL), progress=False)
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in out.iterdir()} == before


def test_an_unfinished_folder_keeps_its_shards_from_other_settings(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr("unmask.data.prepare._index", lambda *facts: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            prepare([str(source)], out, **vars(SMALL), progress=False)
    before = contents(out)
    with pytest.raises(UserError, match="shard_tokens was 1000, is 2000"):
        prepare([str(source)], out, vocab_size=300, shard_tokens=2000, validation=0.1, test=0.1, progress=False)
    with pytest.raises(UserError, match="not finished"):
        ShardSet.open(out)
    assert contents(out) == before


@pytest.mark.parametrize("written", [1, 9, 25])
def test_a_full_disk_says_so_and_loses_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    prepare([str(source)], tmp_path / "whole", **vars(SMALL), progress=False)
    out = tmp_path / "out"
    real, left = os.fsync, written

    def full(handle: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(UserError, match="the disk is full; free some space and run the same command again"):
            prepare([str(source)], out, **vars(SMALL), progress=False)
    assert not out.exists() or not [path for path in out.iterdir() if path.name.startswith(".")], "half a file is left"
    prepare([str(source)], out, **vars(SMALL), progress=False)
    assert contents(out) == contents(tmp_path / "whole")


def test_two_processes_do_not_share_a_folder(source: Path, tmp_path: Path) -> None:
    with folder.Folder(tmp_path / "out").held(), pytest.raises(UserError, match="another process"):
        prepare([str(source)], tmp_path / "out", **vars(SMALL), progress=False)


@pytest.mark.parametrize("name", ["tokenizer.json", "train-00000.bin", "index.json", ".a.json.new-0123abcd"])
def test_a_folder_of_someone_else_is_left_alone(source: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / "photos"
    out.mkdir()
    (out / name).write_text('{"version": 1, "settings": {}, "inputs": []}')
    (out / ".unmask.json.new-0123abcd").write_text("{")  # a name like ours is no proof
    before = contents(out)
    with pytest.raises(UserError, match="which is not ours: name another --out"):
        prepare([str(source)], out, **vars(SMALL), progress=False)
    assert contents(out) == before


def test_what_a_killed_process_left_goes_when_the_folder_is_taken_up(source: Path, tmp_path: Path) -> None:
    prepare([str(source)], tmp_path / "whole", **vars(SMALL), progress=False)
    out = tmp_path / "out"
    out.mkdir()
    (out / ".unmask.json.new-0123abcd").write_text("{")  # killed at its very first write
    prepare([str(source)], out, **vars(SMALL), progress=False)
    assert contents(out) == contents(tmp_path / "whole")
    (out / ".index.json.new-0123abcd").write_text("{")
    with pytest.raises(UserError, match="validation was"):
        prepare([str(source)], out, progress=False)
    assert (out / ".index.json.new-0123abcd").exists(), "a refused command touches nothing"
    assert prepare([str(source)], out, **vars(SMALL), progress=False).already
    assert contents(out) == contents(tmp_path / "whole")


def one_whole_and_one_killed(source: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The folder of a prepare that ended, and that of one which died with two lists of shards written."""
    out, unfinished = place / "out", place / "unfinished"
    prepare([str(source)], out, **vars(SMALL), progress=False)
    with monkeypatch.context() as patch:
        patch.setattr(folder.Folder, "save", dying(folder.Folder.save, 4, after=True))
        with pytest.raises(Killed):
            prepare([str(source)], unfinished, **vars(SMALL), progress=False)
    return out, unfinished


def edit_in_the_middle(path: Path) -> None:
    """Another text of equal length, and the time of the file as it was."""
    was, raw = path.stat(), bytearray(path.read_bytes())
    place = raw.index(b"whale", len(raw) // 2)
    raw[place : place + 5] = b"squid"
    path.write_bytes(raw)
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))


def test_an_edit_in_the_middle_is_noticed(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, unfinished = one_whole_and_one_killed(source, tmp_path, monkeypatch)
    before = contents(out), contents(unfinished)
    original = (source / "c.txt").read_bytes()
    edit_in_the_middle(source / "c.txt")
    for path in (out, unfinished):
        with pytest.raises(UserError, match=r"the input .*c\.txt has changed"):
            prepare([str(source)], path, **vars(SMALL), progress=False)
    assert (contents(out), contents(unfinished)) == before
    (source / "c.txt").write_bytes(original)  # and not the time of it: the text is what counts
    assert prepare([str(source)], out, **vars(SMALL), progress=False).already
    prepare([str(source)], unfinished, **vars(SMALL), progress=False)
    assert contents(unfinished) == contents(out)


def test_a_file_that_changes_while_it_is_read_ends_in_no_corpus(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack, "JOB", 500)
    out = tmp_path / "out"

    def edited(*arguments: Any) -> list[dict[str, Any]]:
        edit_in_the_middle(source / "c.txt")
        try:
            return pack.pack(*arguments)
        finally:
            assert list(out.glob("train-*.bin")), "there are shards, and nobody knows of which text"

    with monkeypatch.context() as patch:
        patch.setattr("unmask.data.prepare.pack", edited)
        with pytest.raises(UserError, match=r"c\.txt changed while it was being prepared"):
            prepare([str(source)], out, **vars(SMALL), progress=False)
    assert not out.exists()
    assert "squid" in "".join(read_back(prepare([str(source)], out, **vars(SMALL), progress=False).shards, "train"))


def test_shards_that_were_damaged_are_not_called_prepared(source: Path, tmp_path: Path) -> None:
    prepare([str(source)], tmp_path / "out", **vars(SMALL), progress=False)
    shard = tmp_path / "out" / "test-00000.bin"
    shard.write_bytes(bytes(shard.stat().st_size))
    with pytest.raises(UserError, match=r"test-00000.bin is damaged"):
        prepare([str(source)], tmp_path / "out", **vars(SMALL), progress=False)
