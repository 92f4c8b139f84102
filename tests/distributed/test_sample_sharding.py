"""`torchrun -m unmask sample` writes what one process writes: the same samples in the same order, said once."""

import json

import pytest
from tests.small import shaken

from unmask.checkpoint.io import Checkpoint, save
from unmask.cli.main import main
from unmask.data.tokenizer import Tokenizer
from unmask.models.dit.network import DiT


def test_two_processes_write_what_one_writes(two_processes, tmp_path, capsys):
    tokenizer = Tokenizer.train([], 257)
    model = DiT(tokenizer.size + 1, 20, hidden=16, cond=8, blocks=1, heads=2)
    save(Checkpoint(shaken(model).double(), tokenizer=tokenizer), tmp_path / "model")
    # five samples of three lengths, so that the processes have different shares and batches
    words = ["sample", "--model", str(tmp_path / "model"), "--device", "cpu", "--steps", "4", "--plan", "confidence",
             "--prompt", "one", "two", "three", "four", "five", "--length", "20", "12", "20", "16", "20",
             "--seed", "7", "--json", "--watch"]  # fmt: skip
    assert main(words) == 0
    alone = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    page = tmp_path / "film.html"
    done = two_processes("-m", "unmask", *words, "--html", str(page))
    assert done.returncode == 0, done.stderr
    shared = [json.loads(line) for line in done.stdout.splitlines()]  # the second process prints nothing
    for run in (alone[-1], shared[-1]):
        for changing in ("time", "device", "forwards"):
            run.pop(changing)
    for ours, theirs in zip(shared[:-1], alone[:-1], strict=True):  # batches of other sizes may sum in another order
        assert ours.pop("token_log_q") == pytest.approx(theirs.pop("token_log_q"), abs=1e-9)
        assert ours.pop("log_q") == pytest.approx(theirs.pop("log_q"), abs=1e-9)
    assert shared == alone
    assert len({record["text"] for record in shared[:-1]}) == 5
    assert done.stderr.count("tokens/s") == 1
    assert '"steps": 4' in page.read_text(encoding="utf-8")
