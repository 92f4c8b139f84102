"""A small Duo goes the whole way on the command line: trained, gone on with, kept, looked at; or refused in a line."""

import pytest
import torch

from unmask.checkpoint.io import load, save
from unmask.cli.main import main
from unmask.processes import Uniform

TRAIN = (
    "train --objective duo --preset tiny --hidden 16 --blocks 1 --cond 4 --length 16 --batch 8 --lr 3e-3 --warmup 2 "
    "--eval_every 8 --eval_batches 1 --save_every 4 --soft_steps 6 --no-progress --no-tensorboard --device cpu"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, write_corpus):
    """A corpus in which a token is followed by the next one, mostly, and a run of 12 steps that stopped after 8."""
    place = tmp_path_factory.mktemp("duo")
    generator = torch.Generator().manual_seed(0)
    jumps = torch.where(torch.rand(4000, generator=generator) < 0.9, 1, torch.randint(9, (4000,), generator=generator))
    text = (jumps.cumsum(0) % 11).numpy()
    write_corpus(place / "text", text[:3000], text[3000:], 11)
    run = [*TRAIN.split(), "--data", str(place / "text"), "--out", str(place / "run")]
    assert main([*run, "--steps", "8"]) == 0
    assert main([*run, "--steps", "12"]) == 0
    assert main([*run, "--steps", "12", "--out", str(place / "whole")]) == 0
    return place


def test_a_run_that_went_on_has_the_bits_of_one_that_never_stopped(folder):
    one, other = load(folder / "run"), load(folder / "whole")
    assert one.process == Uniform()
    assert one.model.config.time
    assert one.model.vocab_size == 11
    for name, value in one.model.state_dict().items():
        assert torch.equal(value, other.model.state_dict()[name]), name
    moved = [value.abs().max() for name, value in one.model.state_dict().items() if "modulation" in name]
    assert all(float(value) > 0 for value in moved)  # time is used


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("convert {run} {out} --fold", "conditioned on time cannot be folded"),
        ("export {run} --onnx {out}", "conditioned on time cannot be exported"),
        ("fit-plan --model {run} --data {text} --steps 2 --out {out}.json", "has no plan to fit"),
        ("train --from {run} --process masked --data {text} --out {out}", "needs a model with a mask state"),
        ("train --soft_top 2 --data {text} --out {out}", "those of the objective duo"),
        ("train --objective duo --process masked --data {text} --out {out}", "duo is for the uniform process"),
        ("train --objective duo --soft_window 0.1 0.9 --data {text} --out {out}", "two shares, falling"),
    ],
)
def test_what_a_uniform_model_cannot_do_is_one_line(folder, tmp_path, capsys, words, said):
    places = {"run": folder / "run", "text": folder / "text", "out": tmp_path / "out"}
    code, found = main([word.format(**places) for word in words.split()]), capsys.readouterr()
    assert (code, found.out) == (2, "")
    assert said in found.err.splitlines()[-1]


def test_it_is_looked_at_and_distilled(folder, tmp_path, capsys):
    save(load(folder / "run"), tmp_path / "kept")
    assert main(["info", str(tmp_path / "kept")]) == 0
    assert "uniform" in capsys.readouterr().out
    few = "--rounds 1 --round_steps 2 --batch 4 --eval_every 0 --guard off --samples 2 --sample_steps 2 --warmup 1"
    for method in ("elbo", "mcd"):
        words = (
            f"distill --teacher {tmp_path}/kept --data {folder}/text --method {method} --out {tmp_path / method} {few}"
        )
        assert main([*words.split(), "--no-progress", "--no-tensorboard", "--device", "cpu"]) == 0
        assert "2 samples in 2 steps on the plan ancestral; " in " ".join(capsys.readouterr().out.split())
