"""A LoRA adapter: it begins as nothing, only it trains, and merging it gives the same function."""

import copy

import pytest
import torch
from torch import nn

from unmask.core.errors import UserError
from unmask.core.streams import stream
from unmask.models.dit.network import DiT
from unmask.models.family import as_student, family_of, trainable
from unmask.models.lora import (
    Lora,
    adapter_tensors,
    base_of,
    does_nothing,
    fill,
    fingerprint,
    merged,
    with_adapter,
    without_adapter,
)

IDS = torch.tensor([[1, 2, 3, 20], [20, 20, 5, 6]])


def network(seed=0):
    model = DiT(21, 8, hidden=16, cond=8, blocks=2, heads=2, dropout=0.0)
    generator = stream(seed, "weights")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model.eval()


def busy(model, seed=1, rank=4):
    """The model with an adapter whose weights are all random."""
    adapted = with_adapter(model, Lora(True, rank, 8.0, 0.0), "base", seed)
    generator = stream(seed, "adapter")
    with torch.no_grad():
        for parameter in trainable(adapted).values():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return adapted


def test_a_fresh_adapter_changes_nothing_and_leaves_the_model_alone():
    model = network()
    adapted = with_adapter(model, Lora(True), "base", 0)
    assert does_nothing(adapted)
    assert torch.equal(adapted(IDS), model(IDS))
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert base_of(model) is None
    memory = {value.data_ptr() for value in model.parameters()}
    frozen = [value for value in adapted.parameters() if not value.requires_grad]
    assert {value.data_ptr() for value in frozen} == memory  # shared, not copied


def test_only_the_linear_layers_of_the_blocks_take_it():
    adapted = busy(network())
    changed = {name.split(".lora_")[0] for name in trainable(adapted)}
    assert changed == {f"blocks.{i}.{layer}" for i in (0, 1) for layer in ("qkv", "attention_out", "mlp_in", "mlp_out")}
    assert {"lora_A", "lora_B"} == {name.split(".")[-3] for name in trainable(adapted)}


def test_it_adds_alpha_over_rank_times_b_a_to_every_weight():
    model = network()
    adapted, one = busy(model), merged(busy(model))
    for name in ("blocks.0.qkv", "blocks.1.mlp_out"):
        a, b = (adapted.get_parameter(f"{name}.lora_{side}.default.weight") for side in "AB")
        expected = model.get_parameter(f"{name}.weight") + 8.0 / 4 * b @ a
        assert torch.allclose(one.get_parameter(f"{name}.weight"), expected, atol=1e-6)
    assert torch.allclose(one(IDS), adapted(IDS), atol=1e-5)
    assert not torch.allclose(one(IDS), model(IDS), atol=0.1)
    assert type(one.blocks[0].qkv) is nn.Linear
    assert base_of(one) is None
    assert torch.equal(model(IDS), network()(IDS))  # merging did not write into shared memory


def test_taken_off_the_base_is_as_it_was():
    model = network()
    adapted = busy(model)
    off = without_adapter(adapted)
    assert torch.equal(off(IDS), model(IDS))
    assert {id(value) for value in off.parameters()} < {id(value) for value in adapted.parameters()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_made_ready_for_inference_it_is_still_adapted(dtype):
    adapted = busy(network())
    ready = family_of(adapted).inference(adapted, dtype, torch.device("cpu"))
    close = 1e-4 if dtype is torch.float32 else 0.15
    assert torch.allclose(ready.logits(ready.features(IDS)).float(), adapted(IDS), atol=close)


def test_the_fingerprint_is_of_the_base_in_any_precision():
    model = network()
    half = copy.deepcopy(model).bfloat16()
    same = [busy(model), half, copy.deepcopy(half).float()]
    assert {fingerprint(one) for one in same} == {fingerprint(model)}
    assert fingerprint(model) != fingerprint(network(1)) != fingerprint(merged(busy(model)))


def test_a_student_of_an_adapted_model_has_an_adapter_of_its_own():
    adapted = busy(network())
    student = as_student(adapted)
    with torch.no_grad():
        for value in trainable(student).values():
            value.add_(1)
    assert not torch.allclose(student(IDS), adapted(IDS))
    assert student.embedding.weight is adapted.embedding.weight
    fill(student, adapter_tensors(adapted), "an adapter")
    assert torch.equal(student(IDS), adapted(IDS))


def test_mistakes_are_one_line():
    model = network()
    adapted = busy(model)
    with pytest.raises(UserError, match="has an adapter already"):
        with_adapter(adapted, Lora(True), "base", 0)
    with pytest.raises(UserError, match="add --lora"):
        Lora(lora_rank=8)
    with pytest.raises(UserError, match="at least 1"):
        Lora(True, 0)
    with pytest.raises(UserError, match=r"of another base: .* has shape \(4, 16\), and this model wants \(2, 16\)"):
        fill(busy(model, rank=2), adapter_tensors(adapted), "that")
    with pytest.raises(UserError, match="of another base: for this model it lacks"):
        fill(adapted, dict(list(adapter_tensors(adapted).items())[1:]), "that")


def _decoder(kind):
    from unmask.models.decoder import DecoderConfig
    from unmask.models.dream import Dream
    from unmask.models.llada import LLaDA

    shape = {"vocab_size": 40, "length": 32, "hidden": 16, "blocks": 2, "heads": 2, "kv_heads": 2, "mlp": 32, "mask": 7}
    return {"llada": LLaDA, "dream": Dream}[kind](DecoderConfig(**shape))


def _sdar(_):
    from unmask.models.sdar import family

    kind = family.SDAR
    preset = family_of_class(kind).presets["tiny"]
    return kind(preset)


def family_of_class(kind):
    from unmask.models.family import FAMILIES

    return next(family for family in FAMILIES.values() if family.network is kind)


def _bert(_):
    from transformers import BertConfig

    from unmask.models.masked_lm.network import MaskedLM, MaskedLMConfig

    shape = BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=32,
    ).to_dict()  # fmt: skip
    return MaskedLM(MaskedLMConfig(40, 32, 7, shape))


MAKERS = {"llada": _decoder, "dream": _decoder, "sdar": _sdar, "masked_lm": _bert}


@pytest.mark.parametrize("name", MAKERS)
def test_every_family_takes_it_and_its_head_does_not(name):
    model = MAKERS[name](name).eval()
    adapted, generator = with_adapter(model, Lora(True, 2, 4.0, 0.0), "base", 0), stream(3)
    assert torch.equal(adapted(IDS), model(IDS))
    changed = {key.split(".lora_")[0] for key in trainable(adapted)}
    blocks = [key for key, _ in model.named_modules() if any(key == one for one in changed)]
    assert len(blocks) == len(changed) > 0
    assert not [key for key in changed if "head" in key or "cls" in key or "embed" in key]
    with torch.no_grad():
        for value in trainable(adapted).values():
            value.copy_(torch.randn(value.shape, generator=generator) * 0.3)
    assert torch.allclose(merged(adapted)(IDS), adapted(IDS), atol=1e-4)
    assert not torch.allclose(adapted(IDS), model(IDS), atol=1e-2)


def saved_with_an_adapter(model, folder):
    """A model in folder/base, and beside it in folder/adapter what has been trained, as it were."""
    import unmask

    unmask.save(unmask.Checkpoint(model), folder / "base")
    adapted = with_adapter(unmask.load(folder / "base").model, Lora(True, 2, 4.0, 0.0), str(folder / "base"), 0)
    with torch.no_grad():
        for value in trainable(adapted).values():
            value.normal_(std=0.3)
    unmask.save(unmask.Checkpoint(adapted), folder / "adapter")
    return adapted


@pytest.mark.parametrize("name", ["dream", "sdar"])
def test_peft_merges_an_adapter_of_a_decoder_into_transformers_own_class_as_we_do(name, tmp_path):
    import peft
    from transformers import AutoConfig, AutoModelForCausalLM

    model = MAKERS[name](name).eval()
    shape, kind = model.config, {"dream": "qwen2", "sdar": "qwen3"}[name]
    adapted = saved_with_an_adapter(model, tmp_path)
    config = AutoConfig.for_model(
        kind, vocab_size=shape.vocab_size, hidden_size=shape.hidden, num_hidden_layers=shape.blocks,
        num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads, intermediate_size=shape.mlp,
        head_dim=shape.hidden // shape.heads, tie_word_embeddings=False,
    )  # fmt: skip
    theirs = AutoModelForCausalLM.from_config(config)
    theirs.load_state_dict(model.state_dict())
    found = peft.PeftModel.from_pretrained(theirs, str(tmp_path / "adapter")).merge_and_unload().state_dict()
    ours = merged(adapted).state_dict()
    assert found.keys() == ours.keys()
    assert all(torch.allclose(found[key], value, atol=1e-5) for key, value in ours.items())
    assert any(not torch.equal(value, model.state_dict()[key]) for key, value in ours.items())


def test_peft_reads_an_adapter_of_a_bert_on_transformers_own_class_and_back(tmp_path):
    import peft
    from transformers import BertForMaskedLM

    import unmask
    from unmask.models.masked_lm.network import transformers_config

    model = _bert("masked_lm").eval()
    adapted = saved_with_an_adapter(model, tmp_path)
    theirs = BertForMaskedLM(transformers_config(model.config.shape, "bert")).eval()
    state = model.state_dict()
    names = {
        key: key.replace("bert.", "body.") if key.startswith("bert.") else f"inner.{key}" for key in theirs.state_dict()
    }
    theirs.load_state_dict({key: state[ours] for key, ours in names.items()})
    with torch.no_grad():
        found = peft.PeftModel.from_pretrained(theirs, str(tmp_path / "adapter")).eval()(IDS).logits
        assert torch.allclose(found, adapted(IDS), atol=1e-5)
        again = unmask.load(tmp_path / "adapter").model
        assert torch.equal(again(IDS), adapted(IDS))
