"""Only the parameters that a family calls trainable are optimised, averaged and saved; the rest is shared."""

import copy
import dataclasses

import pytest
import torch
from safetensors.torch import load_file
from tests.training.runs import metrics, weights
from torch import nn

from unmask.checkpoint.io import load
from unmask.models import family as families
from unmask.models.dit.network import DiT
from unmask.models.family import Family, as_student
from unmask.objectives.elbo import MDLM
from unmask.training.rounds import make_rounds


def frozen(model: DiT) -> DiT:
    """Only the last block is trained; the rest stays as it is, in bfloat16."""
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.to(torch.bfloat16).requires_grad_(False)
    model.blocks[-1].float().requires_grad_(True)
    return model


def test_weights_that_are_not_trained_are_not_touched_averaged_or_saved(model, trainer, corpus, tmp_path):
    whole = copy.deepcopy(frozen(model))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    options = {"precision": "fp32", "ema": 0.5}
    with torch.autocast("cpu", torch.bfloat16):
        done = trainer(**options, steps=4).fit(model, MDLM(), corpus)
        state = load_file(next((tmp_path / "run/state/step-00000004").glob("*.safetensors")))
        names = {f"blocks.1.{name}" for name, _ in model.blocks[1].named_parameters()}
        kinds = ("weight", "ema", "adam.m", "adam.v", "adam.n")
        assert state.keys() == {f"{kind}.{name}" for kind in kinds for name in names}
        for name, value in model.state_dict().items():
            same = torch.equal(value, before[name])
            assert same == (name not in names), name
            assert value.dtype == before[name].dtype
        built = dict(done.model.named_parameters())
        for name, parameter in model.named_parameters():  # one tensor for both
            assert (built[name].data_ptr() == parameter.data_ptr()) == (name not in names)

        resumed = trainer(**options, steps=8).fit(model, MDLM(), corpus)
        straight = trainer(**options, steps=8, out=tmp_path / "straight").fit(whole, MDLM(), corpus)
    assert torch.equal(weights(resumed.model.float()), weights(straight.model.float()))


# --- a network that is no DiT: recurrent, its head tied to its embedding, the mask in the middle, the body frozen ---


@dataclasses.dataclass(frozen=True)
class Shape:
    vocab_size: int = 7
    length: int = 12
    hidden: int = 8


class Recurrent(nn.Module):
    mask_id = 5  # the end of a text, which the corpus lacks

    def __init__(self, config: Shape) -> None:
        super().__init__()
        self.config, self.vocab_size, self.length = config, config.vocab_size, config.length
        self.embedding = nn.Embedding(config.vocab_size, config.hidden)
        self.body = nn.GRU(config.hidden, config.hidden // 2, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(config.hidden, config.vocab_size)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.full((config.hidden,), 2.0))

    def features(self, z):
        return self.body(self.embedding(z))[0] * self.scale

    def logits(self, h):
        return self.head(h)


class Adapted(Family):
    """Only the embedding and the head are trained."""

    name, network, config = "recurrent", Recurrent, Shape

    def trainable(self, model):
        return {name: value for name, value in model.named_parameters() if not name.startswith("body")}


def test_a_tied_network_whose_body_is_frozen_goes_all_the_way(trainer, corpus, tmp_path, monkeypatch):
    monkeypatch.setitem(families.FAMILIES, "recurrent", Adapted())
    torch.manual_seed(0)
    model = Recurrent(Shape())
    body = model.body.weight_hh_l1.detach().clone()
    done = trainer(steps=4).fit(model, MDLM(), corpus)
    assert load_file(tmp_path / "run/checkpoint/raw.safetensors").keys() == {"embedding.weight", "head.bias"}
    averaged, raw = load(tmp_path / "run"), load(tmp_path / "run", weights="raw")
    for loaded, expected in ((averaged.model, done.model), (raw.model, model)):
        assert torch.equal(weights(loaded), weights(expected))
        assert loaded.head.weight is loaded.embedding.weight
        assert loaded.scale.tolist() == [2.0] * 8
    assert not torch.equal(averaged.model.embedding.weight, raw.model.embedding.weight)
    assert torch.equal(raw.model.body.weight_hh_l1, body)
    assert model.body.weight_hh_l1.grad is None

    student, rounds = as_student(averaged.model), make_rounds("mcd", averaged, rounds=2, round_steps=3)
    assert rounds.method.teacher.model.body.weight_hh_l1.data_ptr() == student.body.weight_hh_l1.data_ptr()
    trainer(steps=4, out=tmp_path / "student").fit(student, rounds, corpus)
    assert rounds.now.teacher.model.body.weight_hh_l1.data_ptr() == student.body.weight_hh_l1.data_ptr()
    student, rounds = as_student(averaged.model), make_rounds("mcd", averaged, rounds=2, round_steps=3)
    distilled = trainer(steps=6, out=tmp_path / "student").fit(student, rounds, corpus)  # goes on inside round 2
    assert rounds.now.teacher.model.body.weight_hh_l1.data_ptr() == student.body.weight_hh_l1.data_ptr()
    assert torch.equal(distilled.model.body.weight_hh_l1, body)
    assert not torch.equal(distilled.model.embedding.weight, averaged.model.embedding.weight)


def test_on_a_cpu_bf16_learns_what_float32_learns(model, trainer, corpus, tmp_path):
    losses = {}
    for precision in ("fp32", "bf16"):
        trainer(precision=precision, out=tmp_path / precision).fit(copy.deepcopy(model), MDLM(), corpus)
        losses[precision] = [*metrics(tmp_path / precision, "loss").values()]
    assert losses["bf16"] != losses["fp32"]
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.02)
