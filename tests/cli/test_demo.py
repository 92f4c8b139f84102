"""`unmask demo` with models of a toy's size: every command it shows runs, little is left, and it says what is next."""

import re
from pathlib import Path

import pytest

from unmask.cli.main import main


@pytest.mark.parametrize(
    ("teacher", "judge", "line"),
    [
        ("model", "model", "is a masked model: a judge reads from left to right"),
        ("causal", "causal", "is a causal model and has no mask state: give a teacher"),
        ("model", ".", "holds no model"),
    ],
)
def test_a_model_of_the_wrong_kind_is_refused_before_anything_runs(folder, tmp_path, refused, teacher, judge, line):
    words = ["--teacher", str(folder / teacher), "--judge", str(folder / judge), "--out", str(tmp_path / "demo")]
    assert line in refused("demo", *words)


def test_the_demo_runs_and_says_what_to_try_next(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    teacher, judge = str(folder / "model"), str(folder / "causal")
    assert main(["demo", "--teacher", teacher, "--judge", judge]) == 0
    said = capsys.readouterr().out
    verbs = re.findall(r"^\$ unmask (\w+)", said, re.MULTILINE)
    assert verbs == ["sample", "evaluate", "prepare", "distill", "convert", "evaluate"]
    assert "in random order (iid)" in said
    assert said.splitlines()[-2].startswith("Try next: unmask sample")
    assert said.splitlines()[-1].endswith(f"unmask play {teacher} {Path('demo') / 'student'}")
    assert sorted(path.name for path in Path("demo").iterdir()) == ["corpus", "plans", "report", "student"]
    for name in ("plans", "report"):
        assert "<html" in (Path("demo") / name / "report.html").read_text(encoding="utf-8")

    assert main(["demo", "--teacher", teacher, "--judge", judge]) == 0  # again: nothing is made twice
    said = capsys.readouterr().out
    assert "was prepared already" in said
    assert "$ unmask distill" not in said
