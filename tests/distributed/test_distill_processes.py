"""Two processes distil as one, copied (DDP) and sharded (FSDP2): teacher, rounds, guard and table included.

Stated tolerance: 1e-5 in float32 weights of size about 1, as for training (the sums differ only in order).
"""

import json

import pytest
import torch
from safetensors.torch import load_file
from tests.training.runs import lines

from unmask.cli.main import run

COMMON = "--batch 8 --micro_batch 2 --eval_batches 1 --log_every 1 --keep 9 --device cpu --no-tensorboard --no-progress"
TEACHER = f"--preset tiny --length 12 --dropout 0 --steps 4 --lr 1e-2 --eval_every 4 {COMMON}"
ROUNDS = "--rounds 2 --round_steps 3 --delta 0.2 --tau 0.7 --samples 5"
STUDENT = f"{ROUNDS} --lr 2e-3 --warmup 2 --ema 0.9 --save_every 2 {COMMON}"
COMMANDS = """
import json, sys
from unmask.cli.main import leave, run
from unmask.core.ranks import joined
with joined("cpu"):  # torch is loaded once for all commands
    for words in json.loads(sys.argv[1]):
        run(words)
leave(0)
"""


def test_two_processes_distil_as_one(corpus, two_processes, tmp_path):
    teacher, alone = tmp_path / "teacher", tmp_path / "alone"
    run(["train", "--data", str(corpus), *TEACHER.split(), "--out", str(teacher)])
    common = ["distill", "--teacher", str(teacher), "--data", str(corpus), *STUDENT.split()]
    run([*common, "--out", str(alone)])
    (tmp_path / "commands.py").write_text(COMMANDS)
    commands = [[*common, "--parallel", kind, "--out", str(tmp_path / kind)] for kind in ("ddp", "fsdp")]
    done = two_processes(str(tmp_path / "commands.py"), json.dumps(commands))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("samples in 16 steps") == 2  # one of them speaks, once a run
    for kind in ("ddp", "fsdp"):
        assert_equal(tmp_path / kind, alone)
    begun, ended = (load_file(folder / "checkpoint/raw.safetensors") for folder in (teacher, alone))
    assert float((ended["embedding.weight"] - begun["embedding.weight"]).abs().max()) > 1e-3  # it did learn something


def assert_equal(shared, alone):
    """Students of every round, every number of the log, the table."""
    for folder in ("rounds/1", "rounds/2", "checkpoint"):
        for name in ("model.safetensors", "raw.safetensors"):
            ours, theirs = load_file(shared / folder / name), load_file(alone / folder / name)
            for key, value in theirs.items():
                assert torch.allclose(ours[key], value, rtol=0, atol=1e-5), (folder, name, key)
    assert len(lines(alone)) == 6 + 3  # 6 lines of training, 3 looks
    for ours_line, line in zip(lines(shared), lines(alone), strict=True):
        assert ours_line.keys() == line.keys()
        for key in line.keys() - {"tokens_per_s", "mfu", "seconds"}:
            assert ours_line[key] == pytest.approx(line[key], abs=1e-4), (line["step"], key)
    rows = [json.loads((out / "rounds.json").read_text())["rows"] for out in (shared, alone)]
    for ours_row, row in zip(*rows, strict=True):
        assert ours_row["entropy"]["value"] == pytest.approx(row["entropy"]["value"], abs=1e-3)
        assert ours_row["nfe"] == row["nfe"]
