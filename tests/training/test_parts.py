"""The engine's small parts, each alone: learning rate, clipping, the watch on the loss, the log, the diff."""

import json
import math
from functools import partial

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from unmask.models.dit.network import DiT
from unmask.models.family import family_of
from unmask.training.optim import Muon, adamw, learning_rate, moments, orthogonal, step_with
from unmask.training.watch import PATIENCE, LossWatch


@pytest.mark.parametrize(
    ("decay", "at_half", "at_end"), [("constant", 2.0, 2.0), ("linear", 1.0, 0.02), ("cosine", 1.0, 2 * 2.467e-4)]
)
def test_the_rate_warms_up_and_decays(decay, at_half, at_end):
    def rate(step):
        return learning_rate(step, peak=2.0, warmup=10, decay=decay, steps=110)

    assert [rate(0), rate(4), rate(9)] == pytest.approx([0.2, 1.0, 2.0])
    assert rate(60) == pytest.approx(at_half)
    assert rate(109) == pytest.approx(at_end, rel=1e-3)


def test_adamw_follows_its_equations():
    """Two steps against m, v, bias correction and decoupled decay written out; a gain is not decayed."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    start = {name: parameter.detach().clone().double() for name, parameter in model.named_parameters()}
    optimiser = adamw(model, betas=(0.9, 0.99), weight_decay=0.1)
    moment = {name: (torch.zeros_like(value), torch.zeros_like(value)) for name, value in start.items()}
    for n in (1, 2):
        gradients = []
        for name, parameter in model.named_parameters():
            parameter.grad = torch.randn_like(parameter)
            gradients.append(parameter.grad)
            g = parameter.grad.double() * 0.5
            m, v = 0.9 * moment[name][0] + 0.1 * g, 0.99 * moment[name][1] + 0.01 * g**2
            moment[name] = (m, v)
            if name == "weight":
                start[name] = start[name] * (1 - 0.01 * 0.1)
            start[name] = start[name] - 0.01 * (m / (1 - 0.9**n)) / ((v / (1 - 0.99**n)).sqrt() + 1e-8)
        step_with(optimiser, gradients, scale=torch.tensor(0.5), lr=0.01, sound=torch.tensor(True))
    for name, parameter in model.named_parameters():
        assert torch.allclose(parameter.double(), start[name], atol=1e-7)
        assert torch.allclose(moments(model, optimiser)[f"m.{name}"].double(), moment[name][0], atol=1e-7)


@pytest.mark.parametrize("kind", [adamw, partial(Muon, ratio=2.0)])
def test_an_unsound_step_changes_nothing(kind):
    model = DiT(vocab_size=9, length=8, hidden=8, cond=4, blocks=1, heads=2, dropout=0.0)
    optimiser = kind(model, betas=(0.9, 0.99), weight_decay=0.1)
    kept = {**dict(model.named_parameters()), **moments(model, optimiser)}
    for value, sound in ((1.0, True), (math.nan, False)):
        before = {name: tensor.detach().clone() for name, tensor in kept.items()}
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, value)
        gradients = [parameter.grad for parameter in model.parameters()]
        step_with(optimiser, gradients, scale=torch.tensor(1.0), lr=0.01, sound=torch.tensor(sound))
        assert all(torch.equal(tensor, before[name]) != sound for name, tensor in kept.items())


def test_the_watch_stops_at_once_for_what_is_not_a_number():
    for loss, norm in ((math.nan, 1.0), (1.0, math.inf)):
        assert "not a finite number" in (LossWatch().trouble(loss, norm) or "")


def test_the_watch_forgives_spikes_but_not_a_loss_that_stays_up():
    watch = LossWatch()
    for step in range(300):
        assert watch.trouble(50.0 if step % 3 == 0 and step > 60 else 3.0 + 0.1 * math.sin(step), 1.0) is None
    for step in range(PATIENCE - 1):
        assert watch.trouble(8.0 + step, 1.0) is None
        assert not watch.calm
    again = LossWatch()
    again.restore(json.loads(json.dumps(watch.to_json())))  # a resumed run stops where the first would have
    for one in (watch, again):
        assert "for 50 steps" in (one.trouble(8.0, 1.0) or "")


def test_operations_are_counted_as_torch_counts_them():
    model = DiT(vocab_size=50, length=32, hidden=64, cond=8, blocks=3, heads=2)
    z = torch.zeros(4, 32, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):  # it counts plain products only
        model.logits(model.features(z))
    ours = 4 * 32 * sum(family_of(model).flops(model, 32))
    assert counter.get_total_flops() == pytest.approx(ours, rel=0.02)  # torch also counts the tiny conditioning path


def test_newton_schulz_keeps_the_singular_vectors_and_evens_the_values():
    torch.manual_seed(0)
    for shape in ((3, 6, 10), (3, 10, 6)):
        matrices = torch.randn(*shape, dtype=torch.float64)
        u, _, vh = torch.linalg.svd(matrices, full_matrices=False)
        core = u.mT @ orthogonal(matrices) @ vh.mT  # diagonal in the basis of the SVD
        values = core.diagonal(dim1=1, dim2=2)
        assert torch.allclose(core, torch.diag_embed(values), atol=1e-9)
        assert bool(((values > 0.6) & (values < 1.3)).all())


def test_muon_takes_q_k_and_v_each_by_itself_and_leaves_the_rest_to_adamw():
    models = [DiT(vocab_size=9, length=8, hidden=8, cond=4, blocks=1, heads=2, dropout=0.0) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    muon = Muon(models[0], ratio=2.0, betas=(0.9, 0.95), weight_decay=0.1)
    adam = adamw(models[1], betas=(0.9, 0.95), weight_decay=0.1)
    before = {name: value.detach().clone() for name, value in models[0].named_parameters()}
    gradients = {name: torch.randn_like(value) for name, value in before.items()}
    for model, optimiser in zip(models, (muon, adam), strict=True):
        for name, value in model.named_parameters():
            value.grad = gradients[name].clone()
        step_with(optimiser, grads(model), scale=torch.ones(()), lr=0.1, sound=torch.tensor(True))
    after = [dict(model.named_parameters()) for model in models]
    taken = set(family_of(models[0]).matrices(models[0]))
    assert {name.rsplit(".", 2)[-2] for name in taken} == {"qkv", "attention_out", "mlp_in", "mlp_out"}
    for name in before.keys() - taken:
        assert torch.equal(after[0][name], after[1][name])
    qkv = "blocks.0.qkv.weight"
    moved = before[qkv] * (1 - 0.1 * 0.1) - after[0][qkv]
    for part, gradient in zip(moved.split(8), gradients[qkv].split(8), strict=True):
        u, _, vh = torch.linalg.svd(gradient)
        values = (u.mT @ part @ vh.mT).diagonal() / (2.0 * 0.1)
        assert bool(((values > 0.6) & (values < 1.3)).all())


def grads(model: DiT) -> list[torch.Tensor]:
    return [value.grad for value in model.parameters() if value.grad is not None]
