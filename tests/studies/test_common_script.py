"""studies/common.sh, which every study's script sources: what is kept can be had again, and what failed is named."""

import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np

SCRIPT = Path(__file__).parents[2] / "studies" / "common.sh"


def bash(folder: Path, commands: str) -> str:
    before = f"set -uo pipefail; PYTHON={sys.executable} OUT={folder}/out; . {SCRIPT}; deadline 60\n"
    done = subprocess.run(["bash", "-c", before + commands], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_folder_comes_back_whole_from_its_slices(tmp_path):
    (tmp_path / "model").mkdir()
    content = np.random.default_rng(0).bytes(76_800)  # slices are packed, and noise does not shrink
    (tmp_path / "model" / "weights").write_bytes(content)
    # written twice: of a larger folder before it nothing is left
    bash(
        tmp_path,
        f"SLICE=8k slices {tmp_path}/model m; SLICE=32k slices {tmp_path}/model m; joined $KEEP m {tmp_path}/again",
    )
    kept = sorted(path.name for path in (tmp_path / "out" / "kept").iterdir())
    assert kept == ["m.00", "m.01", "m.02"]
    assert all(path.stat().st_size <= 32 << 10 for path in (tmp_path / "out" / "kept").iterdir())
    assert (tmp_path / "again" / "weights").read_bytes() == content


def test_small_files_are_kept_without_weights_and_states(tmp_path):
    names = ("a/results.json", "a/per-text.json.xz", "logs/a.log", "a/state/step-1/facts.json", "a/model.safetensors",
             "cells/x.samples.json", "corpus/index.json", "kept/old.json")  # fmt: skip
    for name in names:
        path = tmp_path / "out" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    bash(tmp_path, "results; results")
    with tarfile.open(tmp_path / "out" / "kept" / "results.tgz") as kept:
        assert sorted(kept.getnames()) == ["./a/per-text.json.xz", "./a/results.json", "./logs/a.log"]


def test_a_stage_that_fails_or_takes_too_long_is_named_and_the_script_goes_on(tmp_path):
    stages = """
    python -c 'print(1)' >$OUT/logs/good.log 2>&1
    python -c 'raise SystemExit(3)' >$OUT/logs/bad.log 2>&1
    LIMIT=1 python -c 'import time; time.sleep(60)' >$OUT/logs/long.log 2>&1
    deadline 0; LIMIT=50 python -c 'import time; time.sleep(60)' >$OUT/logs/late.log 2>&1
    named_failures
    """
    lines = sorted(line.partition("/out/logs/")[2] for line in bash(tmp_path, stages).splitlines())
    assert [line.partition(":")[0] for line in lines] == ["bad.log", "late.log", "long.log"]
    assert "ended with 3 (failed): python -c raise SystemExit(3)" in lines[0]
    assert all("ended with 124 (its 1 s were up)" in line for line in lines[1:])
