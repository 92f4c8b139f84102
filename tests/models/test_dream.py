"""Dream against what its published class computed: tests/assets/published/dream (see `meta` in reference.npz)."""

from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from unmask.checkpoint.io import load

FOLDER = Path(__file__).parents[1] / "assets/published/dream"


@pytest.fixture(scope="module")
def reference():
    return {name: torch.tensor(value) for name, value in np.load(FOLDER / "reference.npz").items() if name != "meta"}


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
