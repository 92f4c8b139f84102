"""Dream against what its published class computed: tests/assets/published/dream (see `meta` in reference.npz)."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from tests.small import reference_of

pytest.importorskip("transformers")

from unmask.checkpoint.io import load, save
from unmask.data.tokenizer import Tokenizer
from unmask.sampling.verbs import sample

FOLDER = Path(__file__).parents[1] / "assets/published/dream"


@pytest.fixture(scope="module")
def reference():
    return reference_of(FOLDER)


@pytest.fixture(scope="module")
def model():
    return load(FOLDER).model


@torch.no_grad()
def test_a_published_folder_gives_the_reference_logits(model, reference):
    ids, visible = reference["ids"], reference["attention_mask"].bool()
    plain = model.logits(model.outputs(ids))
    assert float((plain - reference["logits_nomask_fp32"]).abs().max()) < 1e-5
    padded = model.logits(model.outputs(ids, visible=visible)) - reference["logits_fp32"]
    assert float(padded[reference["compare"]].abs().max()) < 1e-5
    assert (model.mask_id, model.vocab_size) == (149, 160)


@torch.no_grad()
def test_the_output_before_a_position_predicts_its_token(model, reference):
    ids, visible = reference["ids"], reference["attention_mask"].bool()
    shifted = model.logits(model.features(ids, visible=visible)) - reference["logits_shifted_fp32"]
    assert float(shifted[reference["compare_shifted"]].abs().max()) < 1e-5


@torch.no_grad()
def test_in_bf16_it_is_no_further_from_float32_than_the_reference_is(reference):
    half, where = load(FOLDER).model.to(torch.bfloat16), reference["compare"]
    visible, at = reference["attention_mask"].bool(), reference["position_ids"]  # in bf16 even a common shift shows
    ours = half.logits(half.outputs(reference["ids"], visible=visible, at=at)).float()[where]
    exact, theirs = reference["logits_fp32"][where], reference["logits_bf16"][where]
    assert float((ours - exact).abs().mean()) <= 0.97 * float((theirs - exact).abs().mean())
    assert float((ours - exact).abs().max()) <= float((theirs - exact).abs().max())


def test_a_tokenizer_in_parts_is_read_as_the_hub_has_it(tmp_path):
    """Dream has a vocab.json and a merges.txt, no tokenizer.json, and code of its own, which is not run."""
    folder, names = tmp_path / "dream", ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>")
    shutil.copytree(FOLDER, folder)
    pieces = [*map(chr, range(33, 127)), "Ġ", "Ċ", "up", "Ġup", "er"]
    pieces += [f"unused{i}" for i in range(146 - len(pieces))]
    added = {str(146 + i): {"content": name, "special": True, "normalized": False} for i, name in enumerate(names)}
    turn = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    said = {"tokenizer_class": "DreamTokenizer", "added_tokens_decoder": added, "eos_token": names[0],
            "pad_token": names[0], "mask_token": names[3], "chat_template": turn,
            "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]}}  # fmt: skip
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    (folder / "merges.txt").write_text("#version: 0.2\nu p\nĠ up\ne r\n")
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    (folder / "tokenization_dream.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")

    checkpoint = load(folder)
    codec = checkpoint.tokenizer
    assert (codec.size, codec.mask_id, codec.eos_id, codec.stop_ids) == (150, 149, 146, {146, 148})
    # a digit is a token of its own, and the space before it too; <|mask|> in a text is no mask
    assert [pieces[i] for i in codec.encode("up upper 12")] == ["up", "Ġup", "p", "er", "Ġ", "1", "2"]
    assert 149 not in codec.encode("<|mask|>")
    start = [147, *codec.encode("user"), pieces.index("Ċ"), pieces.index("up"), 148, pieces.index("Ċ")]
    assert checkpoint.chat("up") == start
    answer = sample(checkpoint, chat="up", max_new=8, steps=4, plan="dream_entropy", temperature=0.2, device="cpu")
    assert answer.tokens[0, : len(start)].tolist() == start
    save(checkpoint, tmp_path / "ours")
    assert load(tmp_path / "ours").tokenizer.hash == codec.hash == Tokenizer.load(folder).hash
    assert not (tmp_path / "ran").exists()
