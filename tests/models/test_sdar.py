"""SDAR against what its published class and its evaluation's sampler computed: tests/assets/published/sdar."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from unmask.checkpoint.io import Checkpoint, load
from unmask.core.errors import UserError
from unmask.inference.cache import Caching, Memory
from unmask.inference.ready import make_ready
from unmask.models.quick import Quick
from unmask.models.sdar import SDARConfig
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
    assert drawn.record["cache"] == {"kind": "exact", "refresh": None, "approximate": False}
    plain = sample(Checkpoint(checkpoint.model), n=2, steps=8, length=16, device="cpu", cache="none")
    assert torch.equal(drawn.tokens, plain.tokens)
    assert torch.allclose(drawn.log_q, plain.log_q, atol=1e-5)
