import copy

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from unmask.core.errors import UserError
from unmask.models.dit.layers import attend, kernels
from unmask.models.dit.network import DiT
from unmask.models.family import family_of


@pytest.mark.parametrize(("name", "count"), [("small", 169_627_218), ("medium", 424_477_010), ("large", 863_158_098)])
def test_presets_have_the_published_number_of_parameters(name, count):
    with torch.device("meta"):
        model = DiT.preset(name)
    assert sum(parameter.numel() for parameter in model.parameters()) == count


def test_pocket_is_pocket_sized():
    model = DiT.preset("pocket")
    assert 6e6 < sum(parameter.numel() for parameter in model.parameters()) < 7e6


def test_a_fresh_model_predicts_nothing_yet():
    model = DiT.preset("tiny")
    assert torch.equal(model(torch.arange(8)[None]), torch.zeros(1, 8, model.vocab_size))


def test_the_head_runs_on_any_selection_of_positions(random_dit):
    model = random_dit()
    z_BL = torch.randint(23, (4, 12))
    all_BLV, h_BLD = model(z_BL), model.features(z_BL)
    chosen_BL = torch.rand(4, 12) < 0.3
    torch.testing.assert_close(model.logits(h_BLD[chosen_BL]), all_BLV[chosen_BL])
    torch.testing.assert_close(model.logits(h_BLD[2, 5]), all_BLV[2, 5])


@pytest.mark.parametrize("causal", [False, True])
def test_only_the_causal_model_is_blind_to_what_follows(random_dit, causal):
    model = random_dit(causal=causal)
    z_BL = torch.randint(23, (1, 12))
    changed_BL = z_BL.clone()
    changed_BL[0, 7] = (z_BL[0, 7] + 1) % 23
    moved_L = (model(z_BL) - model(changed_BL)).abs().amax(-1)[0] > 1e-5
    assert moved_L[7:].all()
    assert bool(moved_L[:7].any()) is not causal


def test_sequences_may_be_shorter_but_not_longer_than_the_model(random_dit):
    model = random_dit(length=12)
    assert model(torch.zeros(1, 5, dtype=torch.long)).shape == (1, 5, 23)
    with pytest.raises(UserError, match=r"13 tokens is longer than the model's 12"):
        model.features(torch.zeros(1, 13, dtype=torch.long))


def test_dropout_acts_in_training_only(random_dit):
    model = random_dit(dropout=0.5)
    z_BL = torch.randint(23, (2, 12))
    assert torch.equal(model(z_BL), model(z_BL))
    model.train()
    assert not torch.equal(model(z_BL), model(z_BL))


def test_every_weight_learns(random_dit):
    model = random_dit()
    model(torch.arange(23)[:, None].expand(23, 12)).square().mean().backward()
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        if name == "sigma_in.weight":  # at sigma = 0 the sines are 0: their half never learns
            assert not gradient[:, 128:].any()
            gradient = gradient[:, :128]
        assert (gradient != 0).float().mean() > 0.99, name


# oneDNN's bfloat16 kernels want instructions that some virtual machines announce but do not run
@pytest.mark.filterwarnings("ignore:TF32")
def test_half_precision_weights_and_autocast_stay_near_float32(random_dit):
    model = random_dit()
    z_BL = torch.randint(23, (4, 12))
    expected = model(z_BL)
    scale = expected.std()
    with torch.backends.mkldnn.flags(enabled=False):
        with torch.autocast("cpu", torch.bfloat16):
            mixed = model(z_BL)
        half = random_dit().to(torch.bfloat16)(z_BL)
    assert mixed.dtype == half.dtype == torch.bfloat16
    assert (mixed - expected).abs().mean() < 0.03 * scale
    assert (half - expected).abs().mean() < 0.05 * scale


def test_the_position_table_survives_every_way_of_moving(random_dit):
    model = random_dit(length=12)
    z_BL = torch.randint(23, (2, 12))
    exact = model.double()(z_BL)
    with torch.device("meta"):
        born_on_meta = DiT.from_config(model.config)
    born_on_meta.to_empty(device="cpu").double()
    born_on_meta.load_state_dict(model.state_dict())
    assert torch.equal(born_on_meta.eval()(z_BL), exact)
    through_half = random_dit(length=12)
    through_half.rotary.to(torch.bfloat16)  # weights alone lose precision; the table is computed afresh
    assert torch.equal(through_half.double()(z_BL), exact)


def test_it_compiles_as_one_graph(random_dit):
    model = random_dit()
    z_BL = torch.randint(23, (2, 12))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(z_BL), model(z_BL))


def test_blocks_compile_without_the_reduction_that_loses_gradients(random_dit, monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "compile", lambda function, **options: asked.append(options) or function)
    model = random_dit()
    family_of(model).compile(model)
    assert asked
    if hasattr(torch._inductor.config.triton, "mix_order_reduction"):
        assert all(one["options"]["triton.mix_order_reduction"] is False for one in asked)


@pytest.mark.cuda
@pytest.mark.parametrize("length", [255, 256])
@pytest.mark.parametrize("causal", [False, True])
def test_compiled_gradients_are_those_of_eager_blocks(length, causal):
    """Of a batch so large that the compiler takes its kernels for large ones: every shift, scale and gate."""
    torch.manual_seed(0)
    eager = DiT.preset("pocket", dropout=0.0, causal=causal)
    with torch.no_grad():
        for parameter in eager.parameters():
            if not bool(parameter.any()):
                parameter.normal_(std=0.05)
    eager.cuda().train()
    compiled = copy.deepcopy(eager)
    family_of(compiled).compile(compiled)
    z_BL = torch.randint(8192, (256, length), device="cuda")
    pull_BLD = torch.randn(256, length, eager.config.hidden, device="cuda") / z_BL.numel()
    for model in (eager, compiled):
        for _ in range(2):  # what is left from the first pass must not come back in the second
            model.zero_grad()
            (model.features(z_BL) * pull_BLD).sum().backward()
    wanted = {name: parameter.grad for name, parameter in eager.named_parameters() if parameter.grad is not None}
    for name, parameter in compiled.named_parameters():
        if name in wanted:
            assert float((parameter.grad - wanted[name]).norm() / wanted[name].norm()) < 0.02, name


@pytest.mark.parametrize(
    ("length", "causal", "trains"), [(256, False, True), (255, False, False), (256, True, False), (17, True, False)]
)
def test_training_asks_cudnn_only_where_its_gradients_were_sound(length, causal, trains):
    cudnn = SDPBackend.CUDNN_ATTENTION
    assert (cudnn in kernels(length, causal)) is trains
    with torch.no_grad():
        assert kernels(length, causal)[0] == cudnn
    traced = torch.compile(
        lambda q: attention_of(kernels(q.shape[2], causal), q, causal), backend="eager", fullgraph=True
    )
    q_BHLE = torch.randn(1, 1, length, 8)
    torch.testing.assert_close(traced(q_BHLE), attend(q_BHLE, q_BHLE, q_BHLE, causal))


def attention_of(allowed, q_BHLE, causal):
    with sdpa_kernel(allowed, set_priority=True):
        return F.scaled_dot_product_attention(q_BHLE, q_BHLE, q_BHLE, is_causal=causal)


@pytest.mark.cuda
@pytest.mark.parametrize("length", [255, 256])
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_attention_in_bf16_are_finite_and_right(length, causal):
    """Whatever lay in memory before: nan lies there here."""
    torch.manual_seed(0)
    B, H, E = 512, 6, 32
    qkv, pull = (torch.randn(B, length, n * H * E, device="cuda").bfloat16() for n in (3, 1))
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        given = qkv.to(dtype).requires_grad_()
        q, k, v = given.unflatten(-1, (3, H, E)).permute(2, 0, 3, 1, 4).unbind(0)
        spoilt = [torch.full((2**26,), torch.nan, device="cuda") for _ in range(8)]
        del spoilt
        mixed = attend(q.contiguous(), k.contiguous(), v, causal)
        mixed.transpose(1, 2).flatten(2).backward(pull.to(dtype))
        found.append(given.grad.float())
    exact, narrow = found
    assert bool(narrow.isfinite().all())
    assert float((narrow - exact).norm() / exact.norm()) < 0.02


def test_mistakes_in_a_shape_are_named():
    with pytest.raises(UserError, match=r"unknown model preset 'smal': did you mean 'small'"):
        DiT.preset("smal")
    with pytest.raises(UserError, match=r"unknown model option 'head': did you mean 'heads'"):
        DiT.preset("tiny", head=3)
    with pytest.raises(UserError, match=r"hidden = 64 must be a multiple of 2 x heads = 6"):
        DiT.preset("tiny", heads=3)
