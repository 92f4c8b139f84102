"""`torchrun` shares the texts out, and the scores are those of one process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import torch

from unmask.checkpoint.io import Checkpoint, save
from unmask.core.streams import stream
from unmask.data.tokenizer import Tokenizer
from unmask.models.dit.network import DiT

SCRIPT = str(Path(__file__).with_name("sharded_run.py"))


def test_two_processes_score_as_one(tmp_path):
    tokenizer = Tokenizer.train([], 257)
    for name in ("model", "judge"):
        model = DiT(tokenizer.size + 1, 24, hidden=16, cond=8, blocks=1, heads=2, causal=name == "judge")
        generator = stream(0, name)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
        save(Checkpoint(model, tokenizer=tokenizer), tmp_path / name)
    found = []
    for launch in ([], ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]):
        done = subprocess.run(
            [sys.executable, *launch, SCRIPT, str(tmp_path)],
            capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout))
    alone, shared = found
    assert len(alone["judged"]) == len(alone["nelbo"]) == 7
    for name, value in alone.items():
        assert torch.allclose(torch.tensor(shared[name]), torch.tensor(value), atol=1e-4), name
