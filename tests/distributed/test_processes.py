"""Two processes equal one, copied (DDP) and sharded (FSDP2), and a state goes over from any number to any other.

One run is handed on: one process to step 2, two sharded ones to 4, two copies to 6, one process to 8. At every stage
its state must be that of a run that one process did alone with accumulation. Stated tolerance: 1e-5 in float32
weights of size about 1 (the sums differ only in order; here they are in fact bit-equal).
"""

import json

import pytest
import torch
from safetensors.torch import load_file
from tests.training.runs import lines

from unmask.cli.main import run

TOLERANCE = 1e-5
TIMINGS = {"tokens_per_s", "mfu", "seconds"}
OPTIONS = [
    "--preset", "tiny", "--length", "12", "--dropout", "0", "--batch", "8", "--micro_batch", "2", "--lr", "1e-2",
    "--warmup", "2", "--ema", "0.9", "--eval_every", "2", "--eval_batches", "1", "--save_every", "2", "--log_every",
    "1", "--keep", "9", "--device", "cpu", "--no-tensorboard", "--no-progress",
]  # fmt: skip


def tensors(folder) -> dict[str, torch.Tensor]:
    """A state's whole tensors, put together from the index by hand."""
    index = json.loads((folder / "index.json").read_text())
    parts = {file: load_file(folder / file) for file in index["files"]}
    found = {}
    for name, entry in index["tensors"].items():
        pieces = [parts[part["file"]][name] for part in sorted(entry["parts"], key=lambda part: part["rows"])]
        found[name] = torch.cat(pieces) if entry["shape"] else pieces[0]
        assert list(found[name].shape) == entry["shape"]
    return found


def test_a_run_handed_from_one_to_two_sharded_to_two_copied_to_one(corpus, two_processes, tmp_path):
    alone, handed = tmp_path / "alone", tmp_path / "handed"
    common = ["train", "--data", str(corpus), *OPTIONS]
    run([*common, "--steps", "8", "--out", str(alone)])
    run([*common, "--steps", "2", "--out", str(handed)])
    for steps, kind in (("4", "fsdp"), ("6", "ddp")):
        done = two_processes("-m", "unmask", *common, "--steps", steps, "--parallel", kind, "--out", str(handed))
        assert done.returncode == 0, done.stderr
        assert "processes 1 -> 2" in done.stderr or kind == "ddp"
        assert len(list((handed / "state" / f"step-0000000{steps}").glob("*.safetensors"))) == 2
    run([*common, "--steps", "8", "--out", str(handed)])

    for step in (2, 4, 6, 8):
        ours, theirs = (tensors(out / "state" / f"step-0000000{step}") for out in (handed, alone))
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            assert torch.allclose(ours[name], value, rtol=0, atol=TOLERANCE), (step, name)
    assert float(theirs["weight.embedding.weight"].abs().max()) > 0.1  # it is not zeros that agree
    assert len(lines(alone)) == 8 + 5  # 8 lines of training, 5 evaluations
    for ours_line, line in zip(lines(handed), lines(alone), strict=True):
        for key in line.keys() - TIMINGS:
            assert ours_line[key] == pytest.approx(line[key], abs=1e-4), (line["step"], key)


def test_a_users_mistake_is_said_by_every_process_and_nobody_hangs(corpus, two_processes, tmp_path):
    options = [*OPTIONS, "--batch", "7", "--out", str(tmp_path / "run")]
    done = two_processes("-m", "unmask", "train", "--data", str(corpus), *options)
    assert done.returncode != 0
    assert "batch 7 is not a multiple of the 2 processes" in done.stderr
    assert not (tmp_path / "run").exists()


TERMINATED = """
import os, signal
from unmask.cli.main import command
from unmask.training.student import Student
update = Student.update

def updated(student, step, sums, lr):
    if step == 2 and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGTERM)
    return update(student, step, sums, lr)

Student.update = updated
command()
"""


def test_a_signal_to_one_process_saves_one_whole_state_of_all(corpus, two_processes, tmp_path):
    (tmp_path / "script.py").write_text(TERMINATED)
    options = [*OPTIONS, *f"--steps 8 --save_every 0 --log_every 3 --out {tmp_path / 'run'}".split()]
    done = two_processes(str(tmp_path / "script.py"), "train", "--data", str(corpus), *options)
    assert done.returncode != 0
    assert "of 8 is saved in" in done.stderr
    [state] = (tmp_path / "run" / "state").iterdir()
    assert tensors(state)["adam.n.embedding.weight"] == int(state.name[5:]) < 8
    run(["train", "--data", str(corpus), *options])
    run(["train", "--data", str(corpus), *options[:-1], str(tmp_path / "alone")])
    ended, alone = (tensors(tmp_path / name / "state" / "step-00000008") for name in ("run", "alone"))
    assert all(torch.allclose(ended[name], value, rtol=0, atol=1e-4) for name, value in alone.items())
