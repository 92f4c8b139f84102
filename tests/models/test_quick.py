"""The quick pass computes what the network's own layers compute, and is not taken where they are no longer plain."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from unmask.checkpoint.io import load, save
from unmask.inference.ready import Ready
from unmask.models.quick import Quick, quick
from unmask.sampling.verbs import sample

PUBLISHED = Path(__file__).parents[1] / "assets/published"
FAMILIES = ("llada", "dream", "sdar")


@pytest.fixture(scope="module")
def models():
    return {name: load(PUBLISHED / name).model for name in FAMILIES}


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_it_is_the_same_function(models, family):
    model = models[family]
    z_BL = torch.randint(140, (3, 21), generator=torch.Generator().manual_seed(0))
    visible = torch.ones(3, 21, dtype=torch.bool)
    visible[1, :4] = False
    soft = model.embed(z_BL)
    at = torch.arange(5, 26).expand(3, -1)
    for given, how in ((z_BL, {}), (z_BL, {"visible": visible}), (soft, {}), (z_BL, {"at": at})):
        before = given.clone()
        ours, theirs = Quick(model, False).features(given, **how), model.features(given, **how)
        keep = visible if "visible" in how else torch.ones_like(visible)
        assert torch.allclose(ours[keep], theirs[keep], atol=1e-5)
        assert torch.equal(given, before), "what was given is not written to"


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_one_matrix_for_queries_keys_and_values_is_the_same_function_and_no_second_copy(family, tmp_path, monkeypatch):
    """The network's own weights lie in it from then on; they are saved and trained as before."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    with torch.inference_mode(False):
        checkpoint = load(PUBLISHED / family)
        model, before = checkpoint.model, {k: v.clone() for k, v in checkpoint.model.state_dict().items()}
        bodies = [Quick(model, False, packed=True), Quick(model, True, packed=True)]  # the second moves nothing
    z_BL = torch.randint(140, (3, 21), generator=torch.Generator().manual_seed(0))
    expected = Quick(load(PUBLISHED / family).model, False).features(z_BL)
    for body in bodies:
        assert torch.allclose(body.features(z_BL), expected, atol=1e-5)
    products = [model.model.layers[1].self_attn.q_proj, model.model.layers[1].self_attn.v_proj]
    assert len({product.weight.untyped_storage().data_ptr() for product in products}) == 1
    model.model.layers[1].self_attn.v_proj.weight.mul_(0)
    assert not torch.allclose(bodies[0].features(z_BL), expected, atol=1e-3), "it reads the network's own weights"
    model.model.layers[1].self_attn.v_proj.weight.copy_(before["model.layers.1.self_attn.v_proj.weight"])
    save(checkpoint, tmp_path / "saved")
    after = load(tmp_path / "saved").model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_gradients_still_flow(models):
    soft = models["llada"].embed(torch.arange(12)[None]).detach().requires_grad_(True)
    Quick(models["llada"], False).features(soft).sum().backward()
    (mine,), soft.grad = (soft.grad.clone(),), None
    models["llada"].features(soft).sum().backward()
    assert torch.allclose(mine, soft.grad, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_inference_takes_it_and_an_adapted_network_does_not(family):
    pytest.importorskip("peft")
    from unmask.models.lora import Lora, with_adapter

    model = load(PUBLISHED / family).model
    assert isinstance(Ready(model, torch.device("cpu")).body, Quick)
    adapted = with_adapter(model, Lora(lora=True), None, 0)
    assert quick(adapted) is None
    assert Ready(adapted, torch.device("cpu")).body is adapted


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_compiled_it_writes_the_same(family, device, monkeypatch):
    """With a cache and without; on a GPU by CUDA graphs of packed products. On a CPU the compiler stands aside."""
    if device == "cpu":
        monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    how = {"n": 3, "length": 24, "steps": 6, "seed": 1, "device": device, "precision": "fp32"}
    for cache in ("none", "exact" if family == "sdar" else "dual"):
        plain = sample(load(PUBLISHED / family), plan="blocks", block_size=8, cache=cache, **how)
        compiled = load(PUBLISHED / family)
        for _ in range(2):  # the second time by what is there
            again = sample(compiled, plan="blocks", block_size=8, cache=cache, compile=True, **how)
            assert torch.equal(again.tokens, plain.tokens)
            assert torch.allclose(again.log_q, plain.log_q, atol=1e-4)
