"""MDLM's and SDTT's published folders, hub names, and the kinds that are refused."""

import json

import pytest
import torch
from tests.checkpoint.conftest import same_weights

from unmask.checkpoint.convert import convert
from unmask.checkpoint.io import Checkpoint, load, save
from unmask.checkpoint.tensors import read_tensors, write_tensors
from unmask.core.errors import UserError
from unmask.core.files import write_json
from unmask.models.dit.layers import inverse_frequencies
from unmask.processes import Masked
from unmask.processes.schedule import Cosine, LogLinear


def test_an_mdlm_hub_folder_loads_and_can_be_kept_and_fine_tuned(random_dit, mdlm_folder, tmp_path):
    model = random_dit(seed=3, dropout=0.2)
    loaded = load(mdlm_folder(model))
    assert loaded.model.config == model.config
    assert same_weights(loaded.model, model)
    assert loaded.process.schedule == LogLinear(eps=1e-3)
    assert loaded.tokenizer is None
    loaded.model.train()
    loaded.model(torch.randint(23, (2, 12))).square().mean().backward()
    torch.optim.SGD(loaded.model.parameters(), lr=1e-3).step()
    save(loaded, tmp_path / "tuned")
    again = load(tmp_path / "tuned")
    assert same_weights(again.model, loaded.model)
    assert not same_weights(again.model, model)


def test_gpt2_states_bring_gpt2s_tokenizer(random_dit, mdlm_folder):
    loaded = load(mdlm_folder(random_dit(vocab_size=50258, hidden=4, heads=1, blocks=1)))
    assert loaded.tokenizer.name == "gpt2"
    assert loaded.tokenizer.size == loaded.model.mask_id == 50257
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("Call me Ishmael.")) == "Call me Ishmael."


def test_converting_there_and_back_changes_no_bit(random_dit, mdlm_folder, tmp_path):
    theirs = mdlm_folder(random_dit(seed=5))
    convert(theirs, tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "theirs", format="mdlm")
    before, after = read_tensors(theirs / "model.safetensors"), read_tensors(tmp_path / "theirs" / "model.safetensors")
    assert before.keys() == after.keys()
    for name in before:
        if "inv_freq" in name:
            torch.testing.assert_close(before[name], after[name], rtol=1e-6, atol=0)
        else:
            assert torch.equal(before[name], after[name]), name
    for one, other in ((theirs, tmp_path / "theirs"), (tmp_path / "theirs", theirs)):
        first, second = (json.loads((folder / "config.json").read_text()) for folder in (one, other))
        assert first == second


def test_our_tokenizer_travels_in_an_mdlm_folder(random_dit, tokenizer, tmp_path):
    checkpoint = Checkpoint(random_dit(vocab_size=tokenizer.size + 1), Masked(LogLinear()), tokenizer)
    save(checkpoint, tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "theirs", format="mdlm")
    assert load(tmp_path / "theirs").tokenizer.hash == tokenizer.hash


def test_half_the_size_leaves_the_rotary_frequencies_whole(random_dit, tmp_path):
    """MDLM's code reads them from the file: rounded to bf16 they would turn far positions by another angle."""
    save(Checkpoint(random_dit()), tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "theirs", format="mdlm", dtype="bf16")
    written = read_tensors(tmp_path / "theirs" / "model.safetensors")
    frequencies = written.pop("backbone.rotary_emb.inv_freq")
    assert torch.equal(frequencies, inverse_frequencies(2 * len(frequencies)).float())
    assert {tensor.dtype for tensor in written.values()} == {torch.bfloat16}


def test_what_mdlms_layout_cannot_say_is_not_written(random_dit, tmp_path):
    save(Checkpoint(random_dit(), Masked(Cosine())), tmp_path / "cosine")
    save(Checkpoint(random_dit(), Masked(LogLinear(0.2))), tmp_path / "eps")
    save(Checkpoint(random_dit(causal=True)), tmp_path / "causal")
    refusals = {"cosine": "'cosine'", "eps": "'eps': 0.2", "causal": "no causal models"}
    for name, message in refusals.items():
        with pytest.raises(UserError, match=message):
            convert(tmp_path / name, tmp_path / "out", format="mdlm")
    assert not (tmp_path / "out").exists()


HYDRA = {  # the shape of SDTT's config.json
    "mode": "train",
    "model": {"name": "small", "hidden_size": 24, "length": 12, "n_heads": 2, "dropout": 0.3},
    "parameterization": {"name": "multi-round-sdtt", "num_distill_steps": 2},
    "tokenizer": {"name": "gpt2"},
    "time_conditioning": False,
}


@pytest.mark.parametrize("prefix", ["backbone.backbone.", "backbone.", "", "backbone._orig_mod.backbone."])
@pytest.mark.parametrize("with_buffer", [True, False])
def test_sdtt_folders_load_under_every_prefix(random_dit, mdlm_tensors, tmp_path, prefix, with_buffer):
    model = random_dit(seed=6, dropout=0.3)
    tensors = mdlm_tensors(model, prefix)
    if not with_buffer:  # then the number of heads comes from the config
        del tensors[prefix + "rotary_emb.inv_freq"]
    if prefix:
        tensors["noise.sigma_max"] = torch.tensor(20.0)
    write_tensors(tmp_path / "model.safetensors", tensors)
    write_json(tmp_path / "config.json", HYDRA)
    loaded = load(tmp_path)
    assert loaded.model.config == model.config
    assert same_weights(loaded.model, model)


REFUSED = {
    "duo by algorithm, mdlm by type": ({"algo": {"name": "duo"}}, "contradicts itself"),
    "a stranger": ({"model_type": "gpt2"}, "another kind: model_type = 'gpt2'"),
    "uniform noise": ({"diffusion": "uniform"}, "another kind: diffusion = 'uniform'"),
    "score entropy": ({"parameterization": "sedd"}, "another kind: SEDD"),
    "time conditioning": ({"time_conditioning": True}, "time-conditioned"),
    "time conditioning by reference": (
        {"time_conditioning": "${algo.time_conditioning}", "algo": {"name": "mdlm", "time_conditioning": True}},
        "time-conditioned",
    ),
    "causal": ({"causal": True}, "autoregressive"),
    "a mask inside": ({"data": {"tokenizer_name_or_path": "bert-base-uncased"}}, "mask lies inside its vocabulary"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_other_kinds_are_refused_by_name_though_their_tensors_fit(random_dit, mdlm_folder, what):
    facts, message = REFUSED[what]
    with pytest.raises(UserError, match=message) as caught:
        load(mdlm_folder(random_dit(), **facts))
    assert "\n" not in str(caught.value)


def test_a_kind_that_is_said_by_reference_is_read_where_it_is_said(random_dit, mdlm_folder):
    facts = {"parameterization": "${algo.parameterization}", "algo": {"name": "mdlm", "parameterization": "subs"}}
    assert load(mdlm_folder(random_dit(), **facts)).model.config == random_dit().config


def test_a_model_without_a_mask_is_refused(random_dit, mdlm_folder):
    with pytest.raises(UserError, match=r"50257 states, GPT-2's tokens without a mask"):
        load(mdlm_folder(random_dit(vocab_size=50257, hidden=4, heads=1, blocks=1)))


def test_foreign_files_that_are_not_whole(random_dit, mdlm_folder):
    folder = mdlm_folder(random_dit())
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    tensors = {name: value.clone() for name, value in read_tensors(weights).items()}  # which may lie in the file itself

    def without(part):
        return {name: value for name, value in tensors.items() if part not in name}

    frequencies = torch.tensor([1.0, 0.3, 0.1, 0.01, 0.001, 1e-4])
    for content, said in (
        (without("norm2"), r"lacks 'blocks.0.norm2.weight' .2 tensors missing"),
        (without("blocks.1."), r"lacks 'blocks.1.adaLN_modulation.bias' .10 tensors missing"),
        (tensors | {"backbone.adapter": torch.zeros(1)}, "unknown tensor 'adapter'"),
        (tensors | {"backbone.rotary_emb.inv_freq": frequencies}, "base 10000"),
    ):
        write_tensors(weights, content)
        with pytest.raises(UserError, match=said):
            load(folder)
    weights.write_bytes(whole[:-100])
    with pytest.raises(UserError, match="is damaged"):
        load(folder)
    weights.unlink()
    with pytest.raises(UserError, match=r"cannot read .*model.safetensors: it does not exist"):
        load(folder)
