"""Ctrl-C and SIGTERM save a state and leave; a finished run that is made longer."""

import copy
import os
import signal

import pytest
import torch
from tests.training.runs import weights

from unmask.checkpoint.io import load
from unmask.core.errors import Terminated
from unmask.models.dit.network import DiT
from unmask.objectives.elbo import MDLM


class Interrupted(MDLM):
    """MDLM; in its fourth step the process is sent a signal, so many times."""

    number, times = signal.SIGINT, 1

    def __call__(self, student, batch, *, step, generator):
        for _ in range(self.times if step == 3 else 0):
            os.kill(os.getpid(), self.number)
        return super().__call__(student, batch, step=step, generator=generator)


@pytest.fixture
def interrupted():
    kind = type("MDLM", (Interrupted,), {})  # the run knows its objective by name
    return kind


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)])
def test_a_signal_saves_the_step_and_the_run_ends_as_if_nothing_had_happened(
    model, trainer, corpus, tmp_path, interrupted, number, kind
):
    begun, handler = copy.deepcopy(model), signal.getsignal(number)
    interrupted.number = number
    rare = {"save_every": 0, "log_every": 3, "eval_every": 8}
    with pytest.raises(kind, match=r"step 4 of 8 is saved in .*run: the same command goes on") as caught:
        trainer(**rare).fit(model, interrupted(), corpus)
    assert type(caught.value) is kind
    assert signal.getsignal(number) is handler
    assert load(tmp_path / "run").provenance["step"] == 4
    resumed = trainer(**rare).fit(model, MDLM(), corpus)
    whole = trainer(**rare, out=tmp_path / "whole").fit(begun, MDLM(), corpus)
    assert torch.equal(weights(resumed.model), weights(whole.model))
    assert torch.equal(weights(model), weights(begun))


def test_a_second_signal_leaves_at_once_and_nothing_half_stays(model, trainer, corpus, tmp_path, interrupted):
    interrupted.times = 2
    with pytest.raises(KeyboardInterrupt) as caught:
        trainer(save_every=2).fit(model, interrupted(), corpus)
    assert not caught.value.args
    assert [path.name for path in (tmp_path / "run" / "state").iterdir()] == ["step-00000002"]


def test_after_the_last_step_everything_is_written_first(model, trainer, corpus, tmp_path, interrupted):
    with pytest.raises(KeyboardInterrupt, match="step 4 of 4 is saved"):
        trainer(steps=4).fit(model, interrupted(), corpus)
    assert load(tmp_path / "run").provenance["step"] == 4


def test_without_a_folder_a_signal_is_what_it_always_is(model, trainer, corpus, interrupted):
    with pytest.raises(KeyboardInterrupt) as caught:
        trainer(out=None).fit(model, interrupted(), corpus)
    assert not caught.value.args


# --- longer ----------------------------------------------------------------------------------------------------------


def test_a_finished_run_made_longer_is_the_longer_run_at_a_constant_rate(model, trainer, corpus, tmp_path, capsys):
    begun, other = copy.deepcopy(model), DiT.from_config(model.config)
    trainer(steps=5, log_every=3).fit(model, MDLM(), corpus)
    longer = trainer(steps=8, log_every=3).fit(other, MDLM(), corpus)
    whole = trainer(steps=8, log_every=3, out=tmp_path / "whole").fit(begun, MDLM(), corpus)
    assert torch.equal(weights(longer.model), weights(whole.model))
    assert torch.equal(weights(other), weights(begun))
    assert "goes on from step 5 of 8" in capsys.readouterr().err


def test_with_a_decay_it_warns_in_one_line(model, trainer, corpus, capsys):
    trainer(steps=4, decay="linear").fit(model, MDLM(), corpus)
    assert "decay" not in capsys.readouterr().err
    done = trainer(steps=8, decay="linear").fit(model, MDLM(), corpus)
    warned = [line for line in capsys.readouterr().err.splitlines() if "linear decay" in line]
    assert len(warned) == 1
    assert "steps 4 -> 8: the linear decay now ends at step 8" in warned[0]
    assert done.provenance["step"] == 8
