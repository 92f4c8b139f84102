"""`unmask demo` with models of a toy's size: every command it shows runs, little is left, and it says what is next."""

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


def test_the_demo_runs_and_says_what_to_try_next(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    teacher, judge = make(tmp_path / "teacher", causal=False), make(tmp_path / "judge", causal=True)
    assert main(["demo", "--teacher", teacher, "--judge", judge]) == 0
    said = capsys.readouterr().out
    verbs = re.findall(r"^\$ unmask (\w+)", said, re.MULTILINE)
    assert verbs == ["sample", "evaluate", "prepare", "distill", "convert", "evaluate"]
    assert "in random order (iid)" in said
    assert said.splitlines()[-1].startswith("Try next: unmask sample")
    assert sorted(path.name for path in Path("demo").iterdir()) == ["corpus", "plans", "report", "student"]
    for name in ("plans", "report"):
        assert "<html" in (Path("demo") / name / "report.html").read_text(encoding="utf-8")

    assert main(["demo", "--teacher", teacher, "--judge", judge]) == 0  # again: nothing is made twice
    said = capsys.readouterr().out
    assert "was prepared already" in said
    assert "$ unmask distill" not in said
