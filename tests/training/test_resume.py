"""Killed with SIGKILL at nine chosen moments and resumed each time, a run ends where an undisturbed one ends."""

import json
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

SCRIPT = Path(__file__).with_name("killed_run.py")
TIMINGS = ("tokens_per_s", "mfu", "seconds")


def told(run: Path) -> list[dict]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key not in TIMINGS} for record in records]


def test_kills_leave_no_trace(corpus, tmp_path, killed_script):
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    found = subprocess.run([sys.executable, str(SCRIPT), str(corpus), str(killed)], capture_output=True, text=True)
    sessions = found.stdout.splitlines()
    assert len(sessions) == 10, found.stderr
    assert [line.split(" ", 1)[1] for line in sessions[:-1]] == ["signal 9"] * 9, sessions
    assert sessions[-1] == "to the end exit 0", found.stderr

    killed_script(SCRIPT).fit(str(corpus), str(whole))
    for name in ("model.safetensors", "raw.safetensors"):  # averaged weights, raw weights
        ours, theirs = load_file(killed / "checkpoint" / name), load_file(whole / "checkpoint" / name)
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    assert told(killed) == told(whole)
    assert [path.name for path in (killed / "state").iterdir()] == ["step-00000020"]
    assert not [path for path in killed.iterdir() if path.name.startswith(".")]
