"""`unmask demo` with models of a toy's size: every command it shows runs, and the report is where it says."""

import re
from pathlib import Path

import pytest
import torch

from unmask.checkpoint.io import Checkpoint, save
from unmask.cli.main import main
from unmask.core.streams import stream
from unmask.data.tokenizer import Tokenizer
from unmask.models.dit.network import DiT


def make(folder, causal):
    tokenizer = Tokenizer.train(["the whale and the wolf went down to the sea. "] * 9, 280)
    model = DiT(tokenizer.size + 1, length=16, hidden=8, cond=4, blocks=1, heads=1, causal=causal)
    generator = stream(0, "weights")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    save(Checkpoint(model, tokenizer=tokenizer), folder)
    return str(folder)


@pytest.mark.parametrize(
    ("teacher", "judge", "line"),
    [
        ("masked", "masked", "masked is a masked model: a judge reads from left to right"),
        ("causal", "causal", "causal is a causal model and has no mask state: give a teacher"),
        ("masked", "nowhere", "the folder nowhere holds no model"),
    ],
)
def test_a_model_of_the_wrong_kind_is_refused_before_anything_runs(tmp_path, monkeypatch, capsys, teacher, judge, line):
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "masked", causal=False)
    make(tmp_path / "causal", causal=True)
    (tmp_path / "nowhere").mkdir()
    assert main(["demo", "--teacher", teacher, "--judge", judge]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert line in said.err


@pytest.mark.parametrize(
    ("there", "line"),
    [
        ("demo", "cannot write demo: it is a file, not a folder"),
        ("demo/corpus", "cannot write demo/corpus: "),
        ("demo/corpus/mine.txt", "demo/corpus holds mine.txt, which is not ours"),
        ("demo/student/mine.txt", "demo/student holds mine.txt, which is not ours"),
        ("demo/report/report.md", "demo/report holds report.md, which is not ours"),
    ],
)
def test_a_place_of_somebody_else_is_refused_before_anything_runs(tmp_path, monkeypatch, capsys, there, line):
    monkeypatch.chdir(tmp_path)
    Path(there).parent.mkdir(parents=True, exist_ok=True)
    Path(there).write_text("mine")
    assert main(["demo"]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert line in said.err


def test_the_demo_runs_from_text_to_report(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    teacher, judge = make(tmp_path / "teacher", causal=False), make(tmp_path / "judge", causal=True)
    assert main(["demo", "--teacher", teacher, "--judge", judge]) == 0
    said = capsys.readouterr().out
    verbs = re.findall(r"^\$ unmask (\w+)", said, re.MULTILINE)
    assert verbs == ["sample", "sample", "prepare", "distill", "sample", "sample", "evaluate"]
    steps = re.findall(r"^\$ unmask sample .*--steps (\d+)", said, re.MULTILINE)
    assert steps == ["8", "16", "8", "8"]  # the second is one token a step
    report = Path(said.splitlines()[-1].removeprefix("The report: "))
    assert report == tmp_path / "demo" / "report" / "report.html"
    page = report.read_text(encoding="utf-8")
    assert "teacher" in page
    assert "student" in page
    assert "T = 0.9" in page  # the temperature control

    assert main(["demo", "--teacher", teacher, "--judge", judge]) == 0  # again: nothing is made twice
    said = capsys.readouterr()
    assert "was prepared already" in said.out
    assert "demo/student is finished" in said.err
