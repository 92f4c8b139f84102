"""Two processes train and distil a LoRA adapter as one does, copied (DDP) and sharded (FSDP2).

Stated tolerance: 1e-5 in float32 weights, as for whole models.
"""

import json

import pytest
import torch
from safetensors.torch import load_file
from tests.distributed.test_distill_processes import COMMANDS, COMMON
from tests.small import shaken
from tests.training.runs import lines

from unmask.checkpoint.io import Checkpoint, save
from unmask.cli.main import run
from unmask.data.tokenizer import Tokenizer
from unmask.models.decoder import DecoderConfig
from unmask.models.dit.network import DiT
from unmask.models.llada import LLaDA

ADAPTER = f"--lora --lora_rank 4 --lora_dropout 0 --lr 2e-3 --warmup 2 --ema 0.9 --save_every 2 --eval_every 3 {COMMON}"
ROUNDS = "--rounds 2 --round_steps 3 --delta 0.2 --tau 0.7 --samples 2"


def test_two_processes_train_and_distil_an_adapter_as_one(corpus, two_processes, tmp_path):
    """Trained on a DiT, distilled on a LLaDA."""
    shape = DecoderConfig(vocab_size=7, length=12, hidden=16, blocks=2, heads=2, kv_heads=2, mlp=32, mask=6)
    bases = {"dit": DiT(7, 12, hidden=16, cond=8, blocks=2, heads=2, dropout=0.0), "llada": LLaDA(shape)}
    for name, model in bases.items():
        save(Checkpoint(shaken(model), tokenizer=Tokenizer.load(corpus)), tmp_path / name)
    verbs = {
        "train": ["train", "--from", str(tmp_path / "dit"), "--steps", "6"],
        "distill": ["distill", "--teacher", str(tmp_path / "llada"), *ROUNDS.split()],
    }
    common = ["--data", str(corpus), *ADAPTER.split()]
    for name, verb in verbs.items():
        run([*verb, *common, "--out", str(tmp_path / name)])
    kinds = ("ddp", "fsdp")
    shared = [
        [*verb, *common, "--parallel", kind, "--out", str(tmp_path / f"{name}-{kind}")]
        for name, verb in verbs.items()
        for kind in kinds
    ]
    (tmp_path / "commands.py").write_text(COMMANDS)
    done = two_processes(str(tmp_path / "commands.py"), json.dumps(shared))
    assert done.returncode == 0, done.stderr
    for name in verbs:
        alone = tmp_path / name
        for kind in kinds:
            ours = tmp_path / f"{name}-{kind}"
            for file in ("adapter_model.safetensors", "raw.safetensors"):
                theirs = load_file(alone / "checkpoint" / file)
                assert sum(float(value.abs().sum()) for key, value in theirs.items() if "lora_B" in key) > 0.1
                found = load_file(ours / "checkpoint" / file)
                assert found.keys() == theirs.keys()
                for key, value in theirs.items():
                    assert torch.allclose(found[key], value, rtol=0, atol=1e-5), (name, kind, file, key)
            for line, other in zip(lines(ours), lines(alone), strict=True):
                assert line.get("loss") == pytest.approx(other.get("loss"), abs=1e-4)
