"""Where memory runs out, one line says which option of the verb to make smaller: no traceback, and nothing is lost."""

import re

import numpy as np
import pytest
import torch

from unmask.cli.main import BENCHES, VERBS, main

CUDA = "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.10 GiB"


@pytest.mark.parametrize("verb", [*VERBS.values(), *BENCHES.values()])
def test_an_option_that_is_named_is_one_of_the_verb(verb):
    assert set(re.findall(r"--(\w+)", verb.smaller)) <= {option.flag for option in verb.line("").options.values()}


def test_a_gpu_that_is_full_while_sampling(unmask, monkeypatch):
    def full(*args, **options):
        raise torch.OutOfMemoryError(CUDA)

    monkeypatch.setattr("unmask.sampling.sample.Run.all", full)
    _, said = unmask(expect=2)
    assert said == (
        "unmask: out of memory (20.00 GiB more were asked for): give a smaller --batch: the samples stay the same\n"
    )


def test_a_computer_that_is_full(unmask, monkeypatch):
    """Nobody has four million gigabytes: the error is the real one."""
    monkeypatch.setattr("unmask.sampling.sample.usual_batch", lambda *_: torch.empty(2**50).numel())
    _, said = unmask(expect=2)
    assert said.startswith("unmask: out of memory (4503599627370496 bytes more were asked for): give a smaller --batch")
    assert said.count("\n") == 1


def test_a_run_that_ran_out_goes_on_in_smaller_pieces(write_corpus, tmp_path, monkeypatch, capsys):
    from unmask.training.loop import Run

    tokens = np.random.default_rng(0).integers(0, 5, 2000)
    corpus = write_corpus(tmp_path / "corpus", tokens[:1500], tokens[1500:], 6)
    words = f"train --data {corpus} --preset tiny --length 12 --steps 4 --batch 4 --eval_every 0 --save_every 2".split()
    words += f"--device cpu --no-tensorboard --no-progress --out {tmp_path / 'run'}".split()
    gradients = Run._gradients

    def full_at_the_third(self, step):
        if step == 2 and self.micro_batch > 1:
            raise torch.OutOfMemoryError(CUDA)
        return gradients(self, step)

    monkeypatch.setattr(Run, "_gradients", full_at_the_third)
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "give a smaller --micro_batch" in said
    assert "Traceback" not in said
    assert main([*words, "--micro_batch", "1"]) == 0
    assert "goes on from step 2 of 4" in capsys.readouterr().err
