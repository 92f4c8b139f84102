"""Masked language models of transformers as Denoisers: against a reference file, and against transformers itself."""

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file

pytest.importorskip("transformers")

from unmask.checkpoint.io import Checkpoint, load, save
from unmask.core.errors import UserError
from unmask.data.tokenizer import Tokenizer
from unmask.inference.ready import make_ready
from unmask.sampling.verbs import sample

FOLDER = Path(__file__).parents[1] / "assets/published/modernbert"
SMALL = {
    "vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "max_position_embeddings": 64,
}  # fmt: skip
KINDS = {
    "bert": SMALL,
    "roberta": SMALL,
    "modernbert": {**SMALL, "pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1,
                   "eos_token_id": 2},
    "albert": {**SMALL, "embedding_size": 16},
    "distilbert": {"vocab_size": 300, "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64,
                   "max_position_embeddings": 64},
    "electra": {**SMALL, "embedding_size": 16},
}  # fmt: skip


def write_tokenizer(folder, mask="[MASK]"):
    """A byte-level tokenizer with a mask token, BERT's names for the rest."""
    inner = tokenizers.Tokenizer.from_str(Tokenizer.train(["a cat sat on a mat"], 262).to_json())
    names = ["[PAD]", "[CLS]", "[SEP]", *([mask] if mask else [])]
    inner.add_special_tokens([tokenizers.AddedToken(name, special=True, normalized=False) for name in names])
    inner.save(str(folder / "tokenizer.json"))
    said = {"pad_token": "[PAD]", **({"mask_token": mask} if mask else {})}
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    return inner.token_to_id(mask) if mask else None


@pytest.fixture
def write(tmp_path):
    """A folder as transformers saves it, and its model."""
    from transformers import AutoConfig, AutoModelForMaskedLM

    def make(kind, **changes):
        torch.manual_seed(0)
        config = AutoConfig.for_model(kind, **{**KINDS[kind], **changes})
        model = AutoModelForMaskedLM.from_config(config).eval()
        folder = tmp_path / kind
        model.save_pretrained(folder)
        write_tokenizer(folder)
        return folder, model

    return make


@torch.no_grad()
def test_modernbert_gives_the_reference_logits(tmp_path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((FOLDER / name).read_bytes())
    with pytest.raises(UserError, match="does not say which token is the mask"):
        load(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**said, "mask_token_id": 164}))
    arrays = {k: torch.tensor(v) for k, v in np.load(FOLDER / "reference.npz").items() if k != "meta"}
    model, ids, where = load(tmp_path).model, arrays["ids"], arrays["compare"]
    padded = model.logits(model.features(ids, visible=arrays["attention_mask"].bool())) - arrays["logits_fp32"]
    assert float(padded[where].abs().max()) < 1e-5
    assert float((model.logits(model.features(ids)) - arrays["logits_nomask_fp32"]).abs().max()) < 1e-5
    assert (model.mask_id, model.vocab_size, model.length) == (164, 176, 8192)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_body_and_head_together_are_what_transformers_computes(write, kind, tmp_path):
    folder, theirs = write(kind)
    checkpoint = load(folder)
    model = checkpoint.model
    assert model.mask_id == checkpoint.tokenizer.mask_id
    assert model.length == {"roberta": 62}.get(kind, 64)  # RoBERTa's positions begin after the padding's
    ids = torch.randint(3, 250, (3, 20), generator=torch.Generator().manual_seed(1))
    expected = theirs(input_ids=ids).logits
    features = model.features(ids)
    assert torch.allclose(model.logits(features), expected, atol=1e-5)
    assert torch.allclose(model.logits(features[:, 5:7].flatten(0, 1)), expected[:, 5:7].flatten(0, 1), atol=1e-5)
    assert torch.allclose(model.features(model.embed(ids)), features, atol=1e-5)
    one_hot = torch.nn.functional.one_hot(ids, model.vocab_size).float()
    assert torch.allclose(model.features(model.embed(one_hot)), features, atol=1e-4)
    save(checkpoint, tmp_path / "own")
    again = load(tmp_path / "own")
    assert torch.equal(again.model.logits(again.model.features(ids)), model.logits(features))
    samples = sample(again, prompt="a cat", length=12, steps=3, device="cpu")
    assert samples.tokens.shape == (1, 12)
    assert model.mask_id not in samples.tokens


@torch.no_grad()
def test_positions_stay_exact_when_the_weights_do_not(write):
    folder, _ = write("modernbert")
    model = load(folder).model
    half = make_ready(model.to(torch.float64), torch.device("cpu")).model
    buffers = {value.dtype for value in half.buffers() if value.is_floating_point()}
    from unmask.models.family import family_of

    cast = family_of(model).inference(load(folder).model, torch.bfloat16, torch.device("cpu"))
    assert {value.dtype for value in cast.parameters()} == {torch.bfloat16}
    assert {value.dtype for value in cast.buffers() if value.is_floating_point()} == {torch.float32}
    assert buffers


@torch.no_grad()
def test_older_names_of_tensors_are_known(write):
    folder, theirs = write("bert")
    tensors = load_file(folder / "model.safetensors")
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
           for name, value in tensors.items()}  # fmt: skip
    assert old.keys() != tensors.keys()
    save_file(old, folder / "model.safetensors", metadata={"format": "pt"})
    ids = torch.randint(3, 250, (2, 9))
    model = load(folder).model
    assert torch.allclose(model.logits(model.features(ids)), theirs(input_ids=ids).logits, atol=1e-5)


def test_what_is_missing_is_said(write):
    folder, _ = write("bert")
    tensors = load_file(folder / "model.safetensors")
    lost = next(name for name in tensors if "layer.1" in name)
    save_file({k: v for k, v in tensors.items() if k != lost}, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=f"incomplete: the tensor '{lost}' is missing"):
        load(folder)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_tokenizer(folder, mask=None)
    with pytest.raises(UserError, match="does not say which token is the mask"):
        load(folder)


def test_a_mask_that_is_the_last_token_of_the_tokenizer(write, tmp_path):
    """As RoBERTa's is."""
    folder, _ = write("roberta")
    size = load(folder).tokenizer.size
    folder, _ = write("roberta", vocab_size=size)
    checkpoint = load(folder)
    assert checkpoint.model.mask_id == size - 1 == checkpoint.model.vocab_size - 1
    assert isinstance(checkpoint, Checkpoint)
