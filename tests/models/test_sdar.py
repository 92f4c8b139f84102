"""SDAR against what its published class and its evaluation's sampler computed: tests/assets/published/sdar."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from unmask.checkpoint.io import Checkpoint, load
from unmask.core.errors import UserError
from unmask.core.streams import stream
from unmask.data.loader import Batch
from unmask.inference.cache import Caching, Memory
from unmask.inference.ready import make_ready
from unmask.metrics.elbo import elbo_of
from unmask.models.denoiser import without_mask
from unmask.models.quick import Quick
from unmask.models.sdar import SDARConfig
from unmask.models.sdar.family import SDAR
from unmask.objectives.distil.cd4lm import CD4LM
from unmask.objectives.distil.mcd import MCD
from unmask.objectives.distil.sdtt import SDTT
from unmask.objectives.elbo import MDLM
from unmask.processes import Masked
from unmask.processes.schedule import stratified
from unmask.sampling.verbs import sample

FOLDER = Path(__file__).parents[1] / "assets/published/sdar"
PROMPT, BLOCK = 28, 4  # of `ids`: whole blocks that are full, and the block behind them


@pytest.fixture(scope="module")
def reference():
    return dict(np.load(FOLDER / "reference.npz"))


@pytest.fixture(scope="module")
def checkpoint():
    return load(FOLDER)


@torch.no_grad()
def logits(model, ids, **how):
    return model.logits(model.features(torch.tensor(ids), **how)).float().numpy()


@pytest.mark.parametrize("quick", [False, True])
def test_a_published_folder_gives_the_reference_logits(checkpoint, reference, quick):
    network = checkpoint.model
    body = Quick(network, False) if quick else network
    with torch.no_grad():
        ours = network.logits(body.features(torch.tensor(reference["ids"]))).numpy()
        explicit = torch.tensor(reference["block_causal_mask"])[None, None]
        given = network.logits(body.features(torch.tensor(reference["ids"]), visible=explicit)).numpy()
    assert np.abs(ours - reference["logits_fp32"]).max() < 1e-5
    assert np.abs(given - reference["logits_fp32"]).max() < 1e-5
    assert (network.mask_id, network.config.block, network.vocab_size) == (152, 4, 160)


@pytest.mark.parametrize("how", [{"guidance": 0.5}, {"plan": "iid", "grid": "uniform", "remask": "cap"}])
def test_its_own_blocks_and_cache_stand_in_the_way_of_nothing_that_knows_none(checkpoint, how):
    given_L = torch.tensor([3, 4, 5, *[-1] * 6])
    found = sample(checkpoint, steps=6, infill=given_L, device="cpu", **how)
    assert found.record["cache"] is None
    assert torch.equal(
        found.tokens, sample(checkpoint, steps=6, infill=given_L, cache="none", device="cpu", **how).tokens
    )
    assert torch.equal(found.tokens[0, :3], given_L[:3])


@torch.inference_mode()
def test_the_last_block_on_a_cache_of_the_prompt_gives_the_reference_logits(checkpoint, reference):
    ready, ids = make_ready(checkpoint.model, torch.device("cpu")), torch.tensor(reference["ids"])
    memory = Memory(ready, Caching("exact"), len(ids), ids.shape[1])
    span_R3 = torch.tensor([[row, PROMPT, PROMPT + BLOCK] for row in range(len(ids))])
    memory.features(torch.where(torch.arange(ids.shape[1]) < PROMPT, ids, 0), span_R3)  # stores the prompt
    before = memory.computed
    h_RLD = memory.features(ids, span_R3)
    assert memory.computed - before == len(ids) * BLOCK
    ours = ready.logits(h_RLD[:, PROMPT:].flatten(0, 1)).view(len(ids), BLOCK, -1).numpy()
    assert np.abs(ours - reference["logits_last_block_cached_fp32"]).max() < 1e-5


def test_in_bf16_it_is_no_further_from_float32_than_the_reference_is(reference):
    half = load(FOLDER).model.to(torch.bfloat16)
    exact, theirs = reference["logits_fp32"], reference["logits_bf16"]
    for body in (half, Quick(half, False)):
        with torch.no_grad():
            ours = half.logits(body.features(torch.tensor(reference["ids"]))).float().numpy()
        assert np.abs(ours - exact).mean() <= 1.001 * np.abs(theirs - exact).mean()


def test_a_position_sees_no_later_block(checkpoint, reference):
    ids = torch.tensor(reference["ids"])
    other = ids.clone()
    other[:, 16:] = 7
    with torch.no_grad():
        first, second = (checkpoint.model.features(z)[:, :16] for z in (ids, other))
    assert torch.allclose(first, second, atol=1e-6)


@pytest.mark.parametrize("cache", ["none", "exact"])
def test_the_published_greedy_runs_come_out_token_for_token(checkpoint, reference, cache):
    runs = json.loads(str(reference["meta"]))["generation"]
    ours = [run for run in runs if run["name"].startswith("eval_greedy")]
    assert len(ours) == 3
    for run in ours:
        prompt_L, out_L = reference["gen_prompt"][0], reference[f"gen_{run['name']}_out"][0]
        template_L = torch.full((len(out_L),), -1)
        template_L[: len(prompt_L)] = torch.tensor(prompt_L)
        by_threshold = run["args"]["threshold"] < 1
        how = {"threshold": run["args"]["threshold"]} if by_threshold else {}
        steps = None if by_threshold else run["denoising_forwards"]
        drawn = sample(
            checkpoint, steps=steps, plan="sdar", infill=template_L, temperature=0, cache=cache, device="cpu", **how
        )
        assert drawn.tokens[0].tolist() == out_L.tolist(), run["name"]
        assert int(drawn.nfe[0]) == run["denoising_forwards"]
        assert (drawn.record["cache"] is None) == (cache == "none")


@pytest.mark.parametrize(
    ("change", "message"),
    [({"block_size": None}, "lacks 'block_size'"), ({"attention_bias": True}, "attention_bias"),
     ({"mask_token_id": None}, "which token is the mask")],
)  # fmt: skip
def test_a_config_that_is_not_whole_is_one_line(tmp_path, change, message):
    config = {**json.loads((FOLDER / "config.json").read_text()), **change}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes((FOLDER / "model.safetensors").read_bytes())
    with pytest.raises(UserError, match=message):
        load(tmp_path)


def test_a_block_has_at_least_one_position():
    with pytest.raises(UserError, match="block must be a whole number above 0, not 0"):
        SDARConfig(vocab_size=9, length=8, hidden=8, blocks=1, heads=2, kv_heads=2, mlp=8, mask=8, block=0)


def test_without_a_word_it_writes_in_its_own_blocks_with_its_cache(checkpoint):
    drawn = sample(checkpoint, n=2, steps=8, length=16, device="cpu")
    assert drawn.record["plan"]["name"] == "blocks(4, comb)"
    named = sample(checkpoint, n=1, steps=8, length=16, plan="confidence", device="cpu")
    assert named.record["plan"]["name"] == "blocks(4, confidence)"
    assert drawn.record["cache"] == {"kind": "exact", "refresh": None, "approximate": False}
    plain = sample(Checkpoint(checkpoint.model), n=2, steps=8, length=16, device="cpu", cache="none")
    assert torch.equal(drawn.tokens, plain.tokens)
    assert torch.allclose(drawn.log_q, plain.log_q, atol=1e-5)


class Recorded(SDAR):
    """Remembers the views and texts that it was shown."""

    def features(self, z, **how):
        self.shown = [*getattr(self, "shown", []), (z, how.get("beside"))]
        return super().features(z, **how)


@pytest.fixture
def pair():
    """A small random network, a text, and the number of its first given tokens."""
    torch.manual_seed(0)
    model = Recorded(SDARConfig(vocab_size=12, length=10, hidden=16, blocks=2, heads=2, kv_heads=1, mlp=32, mask=11))
    return model.eval(), torch.randint(11, (3, 10), generator=stream(1))


def alone(model, z_L, x0_L, block):
    """What the network says of one block of z, after the text's blocks before it; a loop instead of a mask."""
    here = slice(4 * block, 4 * block + 4)
    return SDAR.features(model, torch.cat([x0_L[: here.start], z_L[here]])[None])[0, here]


@torch.no_grad()
def test_beside_a_text_each_block_is_read_after_the_blocks_of_that_text(pair):
    model, x0_BL = pair
    z_BL = x0_BL.masked_fill(torch.rand(x0_BL.shape, generator=stream(2)) < 0.6, 11)
    together = model.features(z_BL, beside=x0_BL)
    for row in range(3):
        expected = torch.cat([alone(model, z_BL[row], x0_BL[row], block) for block in range(3)])
        assert torch.allclose(together[row], expected, atol=1e-5)
    assert not torch.allclose(together, model.features(z_BL), atol=1e-2)
    with pytest.raises(UserError, match="longer than the model's 10"):
        model.features(torch.zeros(1, 11, dtype=torch.int64), beside=torch.zeros(1, 11, dtype=torch.int64))


@pytest.mark.parametrize("prompts", [None, torch.tensor([5, 0, 2])])
@torch.no_grad()
def test_its_training_loss_is_that_of_block_diffusion(pair, prompts):
    """Sum over blocks of cross-entropy / p_mask, each block given the text before it; answers by their length."""
    model, x0_BL = pair
    output = MDLM()(model, Batch(x0_BL, 0, 3, prompts), step=0, generator=stream(5))
    [(z_BL, beside_BL)] = model.shown
    assert torch.equal(beside_BL, x0_BL)
    t_B = stratified(3, stream(5))
    weight_B = Masked().schedule.elbo_weight(t_B)
    for row in range(3):
        h_LD = torch.cat([alone(model, z_BL[row], x0_BL[row], block) for block in range(3)])
        log_p_LV = without_mask(model.logits(h_LD), 11).log_softmax(-1)
        nll_L = -log_p_LV.gather(1, x0_BL[row][:, None])[:, 0] * (z_BL[row] == 11) * weight_B[row]
        assert torch.allclose(output.loss_BL[row].float(), nll_L.float(), atol=1e-4)


@pytest.mark.parametrize("method", [MCD, SDTT, CD4LM])
def test_student_and_teacher_of_a_distillation_see_the_text_before_a_block(pair, method):
    model, x0_BL = pair
    objective = method(model) if method is CD4LM else method(model, delta=0.25)
    teacher = objective.teacher.model
    assert isinstance(teacher, Recorded)
    with torch.no_grad():
        objective(model, Batch(x0_BL, 0, 3), step=0, generator=stream(5))
    for network in (model, teacher):
        assert network.shown
        assert all(torch.equal(beside_BL, x0_BL) for _, beside_BL in network.shown)
    assert torch.isfinite(elbo_of(model, x0_BL, x0_BL > 3)).all()
    assert torch.equal(model.shown[-1][1], x0_BL)
