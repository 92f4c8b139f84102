"""Files are whole or absent, and a mistake is one line."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from unmask.core import files
from unmask.core.errors import UserError, reading


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "a.json"
    files.write_json(target, {"old": 1})

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"cannot write .*a\.json: the disk is full"):
        files.write_json(target, {"new": 2})
    monkeypatch.undo()
    assert files.read_json(target, "file") == {"old": 1}
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_link_is_written_through_and_stays(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("old")
    (tmp_path / "link").symlink_to("a.json")
    files.write_text(tmp_path / "link", "new")
    (tmp_path / "folder").mkdir()
    (tmp_path / "to-folder").symlink_to("folder")
    with files.fresh_folder(tmp_path / "to-folder") as filling:
        (filling / "one").write_text("1")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "to-folder").is_symlink()
    assert (tmp_path / "a.json").read_text() == "new"
    assert (tmp_path / "folder" / "one").read_text() == "1"
    assert sorted(os.listdir(tmp_path)) == ["a.json", "folder", "link", "to-folder"]


@pytest.mark.parametrize("place", ["/dev/null", "/dev/stdout", "/proc/self/fd/1"])
def test_what_is_no_file_is_never_replaced_by_one(place: str) -> None:
    with pytest.raises(UserError, match="a device or a pipe, not a file"):
        files.check_writable(Path(place))


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no disk in memory here")
def test_a_disk_in_memory_takes_files() -> None:
    files.check_writable(Path("/dev/shm/nobody-makes-this.json"))


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    home = tmp_path / "folder"
    with files.fresh_folder(home) as filling:
        (filling / "one").write_text("1")
        assert not home.exists()
    assert (home / "one").read_text() == "1"
    with pytest.raises(ZeroDivisionError), files.fresh_folder(home) as filling:  # noqa: PT012
        (filling / "one").write_text("2")
        _ = 1 / 0
    assert (home / "one").read_text() == "1"
    assert os.listdir(tmp_path) == ["folder"]


def test_a_swap_cut_off_between_its_renames_is_brought_back(tmp_path: Path) -> None:
    home = tmp_path / "folder"
    with files.fresh_folder(home) as filling:
        (filling / "one").write_text("1")
    os.rename(home, tmp_path / ".folder.old-12345678")  # where a kill would leave it
    (tmp_path / ".folder.new-12345678").mkdir()
    files.sweep(tmp_path)
    assert (home / "one").read_text() == "1"
    assert os.listdir(tmp_path) == ["folder"]


def test_a_swap_interrupted_between_its_renames_leaves_the_old(tmp_path: Path, monkeypatch) -> None:
    home, rename = tmp_path / "folder", os.rename
    with files.fresh_folder(home) as filling:
        (filling / "one").write_text("1")

    def interrupted(source, target) -> None:
        rename(source, target)
        if ".old-" in str(target):
            raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt), files.fresh_folder(home) as filling:
        (filling / "one").write_text("2")
    assert (home / "one").read_text() == "1"
    assert os.listdir(tmp_path) == ["folder"]


def test_a_sweep_leaves_what_is_not_named_as_ours(tmp_path: Path) -> None:
    for name in (".notes.new-december", ".bashrc.old-backup01", ".a.new-12345", "b.old-12345678"):
        (tmp_path / name).write_text("mine")
    before = sorted(os.listdir(tmp_path))
    files.sweep(tmp_path)
    assert sorted(os.listdir(tmp_path)) == before


def test_where_a_file_system_cannot_lock_work_goes_on_and_sweeps_nothing(tmp_path: Path, monkeypatch) -> None:
    def cannot(handle: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    (tmp_path / ".a.new-0123abcd").mkdir()  # perhaps somebody else's who is at work
    monkeypatch.setattr("fcntl.flock", cannot)
    with files.one_at_a_time(tmp_path), files.locked(tmp_path, "busy") as alone:
        assert not alone
    assert (tmp_path / ".a.new-0123abcd").exists()


def test_a_lock_keeps_another_process_out_and_leaves_no_file(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from unmask.core.files import locked\n"
        "with locked(Path(sys.argv[1]), 'busy') as alone: print(alone)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with files.locked(tmp_path, "busy") as alone:
        assert alone
        assert "UserError: busy" in subprocess.run(command, capture_output=True, text=True).stderr
    assert subprocess.run(command, capture_output=True, text=True).stdout == "True\n"
    assert os.listdir(tmp_path) == []


def test_who_waits_for_a_lock_gets_it_in_turn(tmp_path: Path) -> None:
    """Four processes add to a number two hundred times each; no addition is lost."""
    code = (
        "import sys; from pathlib import Path; from unmask.core.files import one_at_a_time\n"
        "count = Path(sys.argv[1], 'count')\n"
        "for _ in range(200):\n"
        "    with one_at_a_time(count.parent): count.write_text(str(int(count.read_text()) + 1))\n"
    )
    (tmp_path / "count").write_text("0")
    running = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) for _ in range(4)]
    assert [process.wait(timeout=120) for process in running] == [0] * 4
    assert (tmp_path / "count").read_text() == "800"


def test_a_folder_belongs_to_one_kind(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert not files.claim_folder(home, "corpus")
    assert files.claim_folder(home, "corpus")
    assert files.kind_of(home) == "corpus"
    with pytest.raises(UserError, match="home is a prepared corpus: name another --cells"):
        files.claim_folder(home, "cells", option="--cells")
    (tmp_path / "model").mkdir()
    files.write_json(tmp_path / "model" / "config.json", {"format": "unmask"})
    with pytest.raises(UserError, match="model is a checkpoint"):
        files.check_claim(tmp_path / "model", "run")


def test_a_folder_of_somebody_else_is_refused_and_untouched(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"holds notes\.txt, which is not ours"):
        files.claim_folder(tmp_path, "run")
    with pytest.raises(UserError, match=r"holds notes\.txt"):
        files.claim_folder(tmp_path, "results", writes={"notes.txt"})
    assert os.listdir(tmp_path) == ["notes.txt"]
    assert not files.claim_folder(tmp_path, "results", writes={"results.json"}), "beside other files, by name"


@pytest.mark.parametrize("raw", [b"{", b"\xff\xfe", b"[1]", b"[" * 100_000, b'{"a": ' + b"9" * 10_000 + b"}"])
def test_damaged_json_is_one_line_with_its_name(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "x.json").write_bytes(raw)
    with pytest.raises(UserError, match=r"^the index .*x\.json is damaged \(.*\): restore a copy or make it again$"):
        files.read_json(tmp_path / "x.json", "the index")


def test_whatever_a_reader_raises_is_one_line_that_names_the_file(tmp_path: Path) -> None:
    cases = (
        (KeyError("vocab"), "'vocab' is missing"),
        (RecursionError(), "nested too deeply"),
        (AssertionError(), "AssertionError"),
        (ValueError("a\n\nb"), "a b"),
    )
    for error, said in cases:
        with pytest.raises(UserError) as caught, reading("f.bin", "the file"):
            raise error
        assert str(caught.value) == f"the file f.bin is damaged ({said}): restore a copy or make it again"
    for passing, said in ((UserError("too long"), "f.bin: too long"), (UserError("f.bin is odd"), "f.bin is odd")):
        with pytest.raises(UserError, match=f"^{said}$"), reading("f.bin"):
            raise passing
    with pytest.raises(UserError, match=r"f\.bin does not fit in the memory"), reading("f.bin"):
        raise MemoryError
    with pytest.raises(KeyboardInterrupt), reading("f.bin"):
        raise KeyboardInterrupt
