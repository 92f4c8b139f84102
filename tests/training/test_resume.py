"""Killed with SIGKILL at chosen moments and resumed each time, a run ends where an undisturbed one ends."""

import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from tests.training import killed
from tests.training.runs import lines

from unmask.checkpoint.io import load

TIMINGS = ("tokens_per_s", "mfu", "seconds")


def said(run: Path) -> list[dict]:
    return [{key: value for key, value in line.items() if key not in TIMINGS} for line in lines(run)]


def test_kills_leave_no_trace(corpus, tmp_path):
    broken, whole = tmp_path / "killed", tmp_path / "whole"
    words = [sys.executable, killed.__file__, str(corpus), str(broken)]
    found = subprocess.run(words, capture_output=True, text=True)
    deaths = [f"{moment} signal 9 {newest}" for moment, (_, newest) in killed.MOMENTS.items()]
    assert found.stdout.splitlines() == [*deaths, f"to the end exit 0 {killed.STEPS}"], found.stderr

    killed.fit(str(corpus), str(whole))
    for folder in ("checkpoint", "rounds/1", "rounds/2", "rounds/3"):
        for name in ("model.safetensors", "raw.safetensors"):  # averaged weights, raw weights
            ours, theirs = load_file(broken / folder / name), load_file(whole / folder / name)
            assert all(torch.equal(ours[key], theirs[key]) for key in theirs), (folder, name)
        assert load(broken / folder).provenance["distillation"] == load(whole / folder).provenance["distillation"]
    assert said(broken) == said(whole)
    assert [path.name for path in (broken / "state").iterdir()] == ["step-00000015"]
    assert not [path for folder in (broken, broken / "rounds") for path in folder.iterdir() if path.name[0] == "."]
