"""The scripts of studies/duo keep what each lane has, name what failed and score students whose time was up.

`python` is a stand-in here: it notes what it was asked, and leaves what the real one would leave, or fails.
"""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

HERE = Path(__file__).parents[2] / "studies" / "duo"
STAND_IN = """
import json, pathlib, runpy, sys
words = sys.argv[1:]
out = pathlib.Path(words[words.index("--out") + 1]) if "--out" in words else pathlib.Path("/nowhere")
if words[0].endswith("table.py"):
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")
elif words[0] == "-":
    sys.argv = words
    exec(sys.stdin.read())
elif "distill" in words:
    (out / "rounds" / "1").mkdir(parents=True)
    sys.exit("no second round")
elif "train" in words:
    sys.exit("no memory") if out.name == "uniform" else out.mkdir()
elif "evaluate" in words:
    out.mkdir(exist_ok=True)
    model, _, path = words[words.index("--models") + 1].partition("=")
    count = words[words.index("--steps") + 1:words.index("--steps") + 3]
    steps = [int(word) for word in count if word.isdigit()]
    score = {"check_valid": {"value": 0.5}, "per_token": {"value": 4.5}}
    cells = [{"model": model, "plan": "comb", "steps": N, "nfe": N, "temperature": 1, "scores": score} for N in steps]
    (out / "results.json").write_text(json.dumps({"cells": cells, "likelihood": cells}))
"""


def ran(tmp_path: Path, script: str, **settings: str) -> tuple[str, Path]:
    """What a script prints with the stand-in, and its folder."""
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{tmp_path}/stand_in.py" "$@"\n')
    python.chmod(0o755)
    known = {**os.environ, "PYTHON": str(python), "TOY": "1", "OUT": str(tmp_path / "out"), **settings}
    done = subprocess.run(["bash", HERE / script], env=known, capture_output=True, text=True, timeout=60)
    return done.stdout, tmp_path / "out"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the scripts are for a machine with a GPU")
def test_a_lane_that_fails_takes_no_other_along(tmp_path):
    said, out = ran(tmp_path, "tasks.sh")
    assert "| masked | `comb` | 4 | 4.00 | 0.5000 |" in said
    assert "| curriculum | `comb` | 2 | 2.00 | 0.5000 |" in said
    assert "| uniform |" not in said
    assert "uniform.log" in said
    assert "ended with 1 (failed): python -m unmask train" in said
    with tarfile.open(out / "kept" / "results.tgz") as kept:
        assert "./drawn-masked/results.json" in kept.getnames()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the scripts are for a machine with a GPU")
def test_the_student_of_the_last_whole_round_is_scored(tmp_path):
    said, out = ran(tmp_path, "run.sh", CORPUS="c", HELD="h", MDLM="m", DUO="d")
    assert "| dcd | `comb` |  | 4.5 | 4.5 |" in said
    assert "| mcd | `comb` | 4 | 4.0 | 1 |" in said
    assert "ended with 1 (failed): python -m unmask distill" in said
    assert "round 1 of 2" in (out / "logs" / "dcd.log").read_text()
    bounds = json.loads((out / "bounds-dcd" / "results.json").read_text())["likelihood"]
    assert [bound["steps"] for bound in bounds] == [4, 8]
