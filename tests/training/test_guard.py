"""The guard: it sees a student that loses its diversity, says so once, and stops the run if asked to."""

import json

import pytest
import torch
from tests.training.runs import lines

from unmask.checkpoint.io import Checkpoint, load
from unmask.core.errors import UserError
from unmask.models.denoiser import log_probs
from unmask.models.dit.network import DiT
from unmask.objectives.base import LossOutput
from unmask.training.guard import Bounds, Guard


@pytest.fixture
def uniform(model) -> Checkpoint:
    """A fresh head is zero: every token is equally likely everywhere."""
    return Checkpoint(model.eval())


@pytest.fixture
def parrot(model) -> Checkpoint:
    """It only ever says one word."""
    parrot = DiT.from_config(model.config).eval()
    with torch.no_grad():
        parrot.head.linear.bias[2] = 100.0
    return Checkpoint(parrot)


def test_it_measures_entropy_repetition_and_drift(uniform, parrot):
    guard = Guard()
    first = guard.look(uniform, elbo=2.0, tau_product=1.0, device="cpu")
    assert first.crossed == {}
    assert first.values["elbo_drift"] == 0
    # 12 tokens drawn evenly from 6: the plug-in entropy is below log 6 by about (6 - 1) / 24
    assert first.values["entropy"] == pytest.approx(1.7918 - 5 / 24, abs=0.1)
    assert first.values["repeated"] < 0.02
    again = guard.look(uniform, elbo=2.0, tau_product=1.0, device="cpu")
    assert again == first  # the noise is fixed: looks differ by the weights alone

    look = guard.look(parrot, elbo=2.25, tau_product=0.9, device="cpu")
    assert look.values["entropy"] == pytest.approx(0.0, abs=1e-12)
    assert look.values["repeated"] == pytest.approx(8 / 9)  # 9 equal 4-grams in 12 tokens
    assert look.values["elbo_drift"] == pytest.approx(0.25)
    assert look.crossed.keys() == {"entropy_drop", "repetition_rise"}
    assert "\n" not in "; ".join(look.crossed.values())
    far = guard.look(parrot, elbo=float("nan"), tau_product=0.4, device="cpu")
    assert far.crossed.keys() == {"entropy_drop", "repetition_rise", "elbo_rise", "least_tau_product"}


def test_bounds_are_the_users(uniform, parrot):
    guard = Guard("warn", Bounds(entropy_drop=9, repetition_rise=1, elbo_rise=0.1, least_tau_product=0.95))
    guard.look(uniform, elbo=2.0, tau_product=1.0, device="cpu")
    look = guard.look(parrot, elbo=2.2, tau_product=0.9, device="cpu")
    assert look.crossed.keys() == {"elbo_rise", "least_tau_product"}
    assert "0.200 above the teacher's (elbo_rise 0.1)" in "; ".join(look.crossed.values())
    assert "product of tau is 0.900 (least_tau_product 0.95)" in "; ".join(look.crossed.values())
    with pytest.raises(UserError, match="entropy_drop is a bound: at least 0"):
        Bounds(entropy_drop=-1)
    with pytest.raises(UserError, match="did you mean 'warn'"):
        Guard("warm")


def test_it_tells_news_once_also_after_a_restart(uniform, parrot):
    guard = Guard()
    for checkpoint, is_news in ((uniform, False), (parrot, True), (parrot, False), (uniform, False), (parrot, True)):
        look = guard.look(checkpoint, elbo=2.0, tau_product=1.0, device="cpu")
        assert bool(guard.news(look)) == is_news
        other = Guard()
        other.restore(json.loads(json.dumps(guard.to_json())))
        guard = other


class Narrowing:
    """Not a distillation anyone wants: every position learns to say token 2."""

    forwards, regions = 3, ("reconstruct",)

    def __call__(self, student, batch, *, step, generator):
        hidden = torch.full_like(batch.tokens_BL, student.mask_id)
        loss = -log_probs(student.logits(student.features(hidden)), student.mask_id)[..., 2]
        return LossOutput(loss, torch.ones_like(loss), torch.full_like(batch.tokens_BL, 2, dtype=torch.int8))


OPTIONS = {"steps": 20, "lr": 0.05, "warmup": 0, "eval_every": 4, "save_every": 2, "ema": 0.0, "clip": 0.0}


def test_a_run_is_warned_in_one_line_and_every_look_is_logged(model, trainer, corpus, tmp_path, capsys):
    trainer(**OPTIONS).fit(model, Narrowing(), corpus, guard=Guard())
    errors = capsys.readouterr().err
    assert errors.count("sample entropy") == 1
    assert errors.count("\n") == errors.count("note: guard, step")
    looks = [record for record in lines(tmp_path / "run") if "elbo" in record]
    assert [record["step"] for record in looks] == [0, 4, 8, 12, 16, 20]
    for record in looks:
        assert record["elbo_drift"] == pytest.approx(record["elbo"] - looks[0]["elbo"])
        assert record["tau_product"] == 1
    assert looks[-1]["entropy"] < 0.1 < looks[0]["entropy"] - 1
    assert looks[-1]["repeated"] > 0.8
    assert looks[-1]["elbo_drift"] > 0.5


def test_a_run_is_stopped_and_may_go_on_if_the_user_says_so(model, trainer, corpus, tmp_path):
    begun = {name: value.clone() for name, value in model.state_dict().items()}
    for _ in range(2):  # the same command again ends the same way
        model.load_state_dict(begun)
        with pytest.raises(UserError, match=r"guard stopped the run at step (\d+): sample entropy .*step \d+ is saved"):
            trainer(**OPTIONS).fit(model, Narrowing(), corpus, guard=Guard("stop"))
    assert load(tmp_path / "run").provenance["step"] < 20
    assert trainer(**OPTIONS).fit(model, Narrowing(), corpus, guard=Guard()).provenance["step"] == 20


def test_a_guard_needs_evaluations_and_the_teachers_numbers(model, trainer, corpus, tmp_path):
    with pytest.raises(UserError, match="looks at the student when it is evaluated"):
        trainer(eval_every=0).fit(model, Narrowing(), corpus, guard=Guard())
    assert not (tmp_path / "run").exists()
    trainer(steps=2).fit(model, Narrowing(), corpus)
    with pytest.raises(UserError, match="without a guard"):
        trainer(steps=4).fit(model, Narrowing(), corpus, guard=Guard())
