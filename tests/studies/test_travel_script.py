"""studies/travel.sh: files that are empty for a call are whole after it, and never committed empty."""

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "studies" / "travel.sh"


@pytest.fixture
def run(tmp_path):
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "travel.sh").write_text(SCRIPT.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "w").write_bytes(bytes(3 << 20))
    (tmp_path / "note").write_text("a")

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)

    for words in ("init -q", "config user.name x", "config user.email x@x", "add -A", "commit -qm first"):
        assert call("git", *words.split()).returncode == 0
    return call


def test_what_was_made_empty_is_never_committed_so_and_comes_back(run, tmp_path):
    travel = ("bash", "studies/travel.sh")
    assert run(*travel, "size").stdout == "3.0 MiB travel\n"
    assert run(*travel, "light", "weights").returncode == 0
    assert run(*travel, "size").stdout == "0.0 MiB travel\n"
    (tmp_path / "note").write_text("b")
    assert run("git", "commit", "-qam", "second").returncode == 0
    assert run("git", "show", "--name-only", "--format=").stdout.split() == ["note"]
    assert run(*travel, "whole").returncode == 0
    assert (tmp_path / "weights" / "w").stat().st_size == 3 << 20
    assert run("git", "status", "--short").stdout == ""


def test_changed_files_are_not_made_empty_and_no_path_is_not_every_path(run, tmp_path):
    (tmp_path / "weights" / "w").write_bytes(b"new")
    found = run("bash", "studies/travel.sh", "light", "weights")
    assert found.returncode == 2
    assert "commit what was changed" in found.stderr
    assert run("bash", "studies/travel.sh", "light").returncode == 2
    assert (tmp_path / "note").read_text() == "a"
