"""What a plug-in adds goes the whole way: train, save, load, distil, sample, evaluate, in Python and by command."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import unmask

SIZE, MASK = 8, 3  # tokens, one of which is the mask and stands in no text
QUICK = {"batch": 8, "device": "cpu", "tensorboard": False, "progress": False, "warmup": 5, "eval_batches": 1}
KINDS = {
    "gru": {"family": "gru", "set_": {"mask": MASK}},
    "bert": {"family": "bert", "set_": {"mask": MASK, "hidden": 32}, "lr": 3e-3, "steps": 120},
    "any_token": {"family": "gru", "process": "any_token"},
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, write_corpus):
    """Texts in which a token is followed by the next one, mostly; the mask's id never occurs."""
    rng = np.random.default_rng(0)
    letters = np.array([token for token in range(SIZE - 1) if token != MASK])
    steps = np.where(rng.random(6000) < 0.9, 1, rng.integers(1, 6, 6000))
    text = letters[np.cumsum(steps) % len(letters)]
    return write_corpus(tmp_path_factory.mktemp("corpus") / "text", text[:5000], text[5000:], SIZE)


@pytest.fixture(scope="module", params=KINDS)
def teacher(request, corpus, tmp_path_factory, plugin):
    """(kind, the folder of a trained teacher, the checkpoint that training returned)."""
    out = tmp_path_factory.mktemp(request.param) / "run"
    made = unmask.train(corpus, out=out, eval_every=60, **{"steps": 60, "lr": 1e-2, **KINDS[request.param]}, **QUICK)
    return request.param, out, made


def test_it_learns_is_saved_and_is_loaded_as_it_was(teacher):
    kind, out, made = teacher
    loaded = unmask.load(out)
    assert type(loaded.model).__name__ == {"gru": "GRUNet", "bert": "BertNet", "any_token": "GRUNet"}[kind]
    assert (loaded.process.name, loaded.model.mask_id) == (
        ("any_token", None) if kind == "any_token" else ("masked", MASK)
    )
    for name, value in made.model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], value)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    elbos = [line["elbo"] for line in lines if "elbo" in line]
    assert elbos[-1] < elbos[0] - 0.3


def test_it_writes_and_given_words_are_held(teacher):
    kind, out, _ = teacher
    samples = unmask.sample(str(out), n=3, steps=4, device="cpu")
    assert not bool((samples.tokens == MASK).any()) or kind == "any_token"
    prompted = unmask.sample(str(out), n=2, steps=4, infill=torch.tensor([0, 1, *[-1] * 14]), device="cpu")
    assert prompted.tokens[:, :2].tolist() == [[0, 1]] * 2
    alone = unmask.sample(str(out), n=3, steps=4, batch=1, device="cpu")
    assert torch.equal(samples.tokens, alone.tokens)  # the same noise whatever the batch
    assert bool(samples.log_q.isnan().all()) == (kind == "any_token")


@pytest.mark.parametrize("method", ["mcd", "sdtt", "elbo"])
def test_it_is_distilled(teacher, corpus, tmp_path, method):
    kind, out, made = teacher
    options = {"method": method, "rounds": 2, "round_steps": 4, "samples": 4, "sample_steps": 4, **QUICK}
    options |= {"delta": 0.25} if method != "elbo" else {}  # of 16 tokens: a smaller gap would show nobody anything
    if kind == "any_token" and method == "sdtt":
        with pytest.raises(unmask.UserError, match="rolls out a masked process"):
            unmask.distill(out, corpus, out=tmp_path / "student", **options)
        return
    student = unmask.distill(out, corpus, out=tmp_path / "student", **options)
    assert student.process == made.process
    again = unmask.load(tmp_path / "student")
    assert type(again.model) is type(made.model)
    assert not torch.equal(again.model.head.weight, made.model.head.weight.cpu())


def test_a_step_law_is_kept_by_what_is_saved_and_distilled(teacher, corpus, tmp_path, plugin):
    kind, _, made = teacher
    if kind == "any_token":
        pytest.skip("a step law of a masked process")
    source = unmask.Checkpoint(made.model.cpu(), made.process, made.tokenizer, {}, plugin.Sticky(2.0))
    unmask.save(source, tmp_path / "sticky")
    assert unmask.load(tmp_path / "sticky").step_law == plugin.Sticky(2.0)
    options = {"method": "sdtt", "rounds": 1, "round_steps": 2, "samples": 2, "sample_steps": 2, **QUICK}
    student = unmask.distill(tmp_path / "sticky", corpus, out=tmp_path / "student", **options)
    assert student.step_law == plugin.Sticky(2.0)
    asked = unmask.sample(made, n=1, steps=2, step_law="sticky", device="cpu")
    assert asked.record["step_law"] == {"name": "sticky", "stay": 1.0}


@pytest.mark.parametrize("law", ["own", "sticky"])
def test_it_is_evaluated(teacher, corpus, tmp_path, law, plugin):
    """Every score that it can have; what it cannot have is left out with a reason."""
    kind, out, _ = teacher
    if kind == "any_token" and law == "sticky":
        pytest.skip("a step law of a masked process")
    source = unmask.load(out)
    if law == "sticky":
        source = dataclasses.replace(source, step_law=plugin.Sticky(1.0))
    results = unmask.evaluate(
        {"teacher": source}, steps=[4], plans=["golden", "silver"], temperatures=[1.0], n=4, data=corpus, device="cpu",
        out=tmp_path / "out",
    )  # fmt: skip
    plans = ["ancestral"] if kind == "any_token" else ["golden", "silver"]
    drawn = results.where(model="teacher")
    assert [cell.plan for cell in drawn] == plans
    assert all({"entropy", "vowels", "self_bleu", "coverage_1"} <= cell.scores.keys() for cell in drawn)
    assert {bound.plan for bound in results.bounds} == {None, *({*plans} - {"ancestral"})}  # which says no bound
    assert all(0 < bound.scores["per_token"]["value"] < 4 for bound in results.bounds)


def run(*words: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "unmask", *words], capture_output=True, text=True, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip


def test_a_plug_in_on_the_command_line(corpus, tmp_path, plugin_path):
    """Everything of it by name, from one file, in processes that have never imported it."""
    tiny = ["--steps", "4", "--batch", "8", "--device", "cpu", "--no-tensorboard", "--no-progress", "--eval_every", "0"]
    made = run("train", "--data", str(corpus), "--plugin", plugin_path, "--family", "bert", "--set", f"mask={MASK}",
               "hidden=16", "--plan", "silver", *tiny, "--out", str(tmp_path / "run"))  # fmt: skip
    assert made.returncode == 0, made.stderr
    written = run("sample", "--plugin", plugin_path, "--model", str(tmp_path / "run"), "--plan", "silver", "--step_law",
                  "sticky", "--steps", "4", "--device", "cpu", "--json")  # fmt: skip
    assert written.returncode == 0, written.stderr
    record = json.loads(written.stdout.splitlines()[-1])
    assert (record["plan"]["name"], record["step_law"]["name"]) == ("silver", "sticky")
    without = run("sample", "--model", str(tmp_path / "run"), "--device", "cpu")
    assert (without.returncode, "needs the model family 'bert': name the plug-in" in without.stderr) == (2, True)


def test_an_entry_point_of_an_installed_package(corpus, tmp_path, plugin, plugin_path):
    """A package that is installed needs no --plugin."""
    (tmp_path / "rotations.py").write_text(Path(plugin_path).read_text())
    about = tmp_path / "rotations-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: rotations\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[unmask]\nrotations = rotations\n")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    written = run("sample", "--plan", "silver", "--steps", "2", "--length", "8", "--device", "cpu", PYTHONPATH=path)
    assert written.returncode == 0, written.stderr
    assert "silver" in written.stderr
