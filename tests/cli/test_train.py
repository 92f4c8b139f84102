"""`unmask train` as a user types it: the whole way once, and each mistake as one line and exit code 2."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

import unmask
from unmask.checkpoint.identity import weights_hash
from unmask.checkpoint.io import load
from unmask.cli.main import main

OPTIONS = "--preset tiny --length 12 --steps 3 --batch 4 --eval_batches 1 --device cpu --no-tensorboard --no-progress"


@pytest.fixture(scope="module")
def corpora(write_corpus, tmp_path_factory):
    """Two corpora of one tokenizer, and one of another."""
    folder = tmp_path_factory.mktemp("corpora")
    tokens = np.random.default_rng(0).integers(0, 5, 2000)
    return [
        str(write_corpus(folder / name, tokens[:1500], tokens[1500:], size))
        for name, size in (("a", 6), ("b", 6), ("other", 7))
    ]


def run(capsys, *arguments: str) -> tuple[int, str]:
    code = main(["train", *arguments])
    captured = capsys.readouterr()
    return code, captured.err if code else captured.out


def test_train_then_train_on_from_its_weights(capsys, refused, corpora, tmp_path):
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    code, out = run(capsys, "--data", *corpora[:2], "--weights", "3", "1", *OPTIONS.split(), "--out", first)
    assert (code, out.startswith(f"{first}: 3 steps")) == (0, True)
    options = "--lr 1e-30 --steps 1 --batch 4 --device cpu --eval_every 0 --no-tensorboard --no-progress"
    options += " --plan golden --plan_steps 4"
    code, _ = run(capsys, "--data", corpora[0], "--from", first, *options.split(), "--out", second)
    assert code == 0
    begun, ended = load(first).model, load(second).model  # one step at a rate of nothing: the weights it started from
    assert all(torch.allclose(a, b) for a, b in zip(begun.parameters(), ended.parameters(), strict=True))
    config = json.loads((tmp_path / "second" / "run.json").read_text())["config"]
    start = {"source": first, "weights": weights_hash(begun), "step": load(first).provenance["step"]}
    assert config["facts"] == {"from": start}
    assert (config["objective"]["plan"], config["objective"]["plan_steps"]) == ("golden", 4)
    words = ["--data", corpora[0], "--from", first, "--out", second, *options.split(), "8"]
    assert "only a chain takes several" in refused("train", *words)


TERMINATED = """
import os, signal, sys
from unmask.cli.main import command
from unmask.training.student import Student
update = Student.update

def updated(student, step, sums, lr):
    if step == 1:
        os.kill(os.getpid(), signal.SIGTERM)
    return update(student, step, sums, lr)

Student.update = updated
command()
"""


def test_a_signal_saves_a_state_and_says_how_to_go_on(corpora, tmp_path):
    out = tmp_path / "run"
    words = ["--data", corpora[0], *OPTIONS.split(), "--save_every", "0", "--out", str(out)]
    script = [sys.executable, "-c", TERMINATED, "train", *words]
    ended = subprocess.run(script, capture_output=True, text=True)
    said = f"unmask: terminated; step 2 of 3 is saved in {out}: the same command goes on\n"
    assert (ended.returncode, ended.stderr.splitlines(keepends=True)[-1]) == (143, said)
    assert "saving after this step" in ended.stderr
    assert [path.name for path in (out / "state").iterdir()] == ["step-00000002"]


def test_training_on_keeps_the_schedule(capsys, corpora, tmp_path):
    """Unless another is asked for."""
    first, second, third = (str(tmp_path / name) for name in ("first", "second", "third"))
    assert run(capsys, "--data", corpora[0], *OPTIONS.split(), "--schedule", "cosine", "--out", first)[0] == 0
    on = ["--steps", "1", "--batch", "4", "--device", "cpu", "--eval_every", "0", "--no-tensorboard", "--no-progress"]
    assert run(capsys, "--data", corpora[0], "--from", first, *on, "--out", second)[0] == 0
    assert run(capsys, "--data", corpora[0], "--from", first, *on, "--schedule", "log_linear", "--out", third)[0] == 0
    assert [load(path).process.schedule.name for path in (first, second, third)] == ["cosine", "cosine", "log_linear"]


def test_a_causal_judge(capsys, refused, corpora, tmp_path):
    code, _ = run(capsys, "--data", corpora[0], "--objective", "ar", *OPTIONS.split(), "--out", str(tmp_path / "judge"))
    assert code == 0
    assert load(tmp_path / "judge").model.config.causal
    assert "nll" in (tmp_path / "judge" / "metrics.jsonl").read_text()

    on = ["--data", corpora[0], "--out", str(tmp_path / "on"), "--from"]
    said = "is a causal model: add --objective ar, or start from a masked one\n"
    assert refused("train", *on, tmp_path / "judge") == f"unmask: {tmp_path / 'judge'} {said}"
    assert run(capsys, "--data", corpora[0], *OPTIONS.split(), "--out", str(tmp_path / "run"))[0] == 0
    line = refused("train", *on, tmp_path / "run", "--objective", "ar")
    assert "is a masked model: leave out --objective ar" in line


def test_in_python_too_and_in_any_size(capsys, refused, corpora, tmp_path):
    model = unmask.train(corpora[0], preset="tiny", length=12, hidden=32, blocks=2, heads=1, cond=8, steps=3, batch=4,
                         eval_batches=1, device="cpu", progress=False).model  # fmt: skip
    assert (model.config.hidden, model.config.blocks, model.config.heads, model.config.cond) == (32, 2, 1, 8)
    words = f"{OPTIONS} --hidden 32 --blocks 2 --heads 1 --set cond=8 causal=false --threads 1 --out {tmp_path / 'run'}"
    assert run(capsys, "--data", corpora[0], *words.split())[0] == 0
    assert weights_hash(load(tmp_path / "run").model) == weights_hash(model)
    said = "unmask: --out must be given: the folder that the run lives in\n"
    assert refused("train", "--data", corpora[0], *OPTIONS.split()) == said


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--data", "CORPUS", "--config", "RECIPE"], "unknown key 'warmpu': did you mean 'warmup'?"),
        (["--data", "CORPUS", "--config", "pokcet"], "did you mean 'pocket'?"),
        (["--data", "nowhere"], "nowhere"),
        (["--data", "CORPUS", "OTHER"], "tokenizer"),
        (["--data", "CORPUS", "--length", "5000"], "less than one block of 5000"),
        (["--data", "CORPUS", "--length", "600"], "the validation split"),
        (["--data", "CORPUS", "--objective", "ar", "--plan", "golden"], "plan is no setting of the objective ar"),
        (["--data", "CORPUS", "--objective", "ar", "--plan_steps", "4"], "plan_steps is no setting"),
        (["--data", "CORPUS", "--plan_steps", "0"], "plan_steps is a number of sampling steps: at least 1, not 0"),
        (["--data", "CORPUS", "--plan", "stride"], "give plan_steps"),
        (["--data", "CORPUS", "--parallel", "fsdp"], "torchrun"),
        (["--data", "CORPUS", "--batch", "0"], "batch must be at least 1"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(refused, corpora, tmp_path, arguments, line):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("warmpu: 3\n")
    names = {"CORPUS": corpora[0], "OTHER": corpora[2], "RECIPE": str(recipe)}
    given = [names.get(word, word) for word in arguments]
    assert line in refused("train", *OPTIONS.split(), "--out", tmp_path / "run", *given)
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_and_what_it_does_not_go_with(capsys, refused, corpora, tmp_path):
    run_folder, into = tmp_path / "run", ["--device", "cpu", "--out", tmp_path / "next"]
    assert run(capsys, "--data", corpora[0], *OPTIONS.split(), "--out", str(run_folder))[0] == 0
    error = refused("train", "--data", corpora[2], "--from", run_folder, *into)
    assert "wrong tokenizer" in error
    assert error.endswith(f"--tokenizer {run_folder}\n")
    for length, said in ((13, "13 tokens are longer than the model's 12"), (0, "a block of 0 tokens is too short")):
        assert said in refused("train", "--data", corpora[0], "--from", run_folder, "--length", length, *into)
    assert not (tmp_path / "next").exists()


@pytest.mark.parametrize("recipe", ["tiny", "pocket", "pocket-duo", "mdlm-owt"])
def test_bundled_recipes_are_valid(capsys, recipe):
    code, out = run(capsys, "--config", recipe, "--print_config")
    assert code == 0
    assert "lr: 0.00" in out
