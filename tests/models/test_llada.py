"""LLaDA against what its published class computed: tests/assets/published/llada (see `meta` in reference.npz)."""

from pathlib import Path

import pytest
import torch
from tests.small import reference_of

pytest.importorskip("transformers")

from unmask.checkpoint.io import load

FOLDER = Path(__file__).parents[1] / "assets/published/llada"


@pytest.fixture(scope="module")
def reference():
    return reference_of(FOLDER)


@pytest.fixture(scope="module")
def model():
    return load(FOLDER).model


@torch.no_grad()
def logits(model, ids, mask=None):
    return model.logits(model.features(ids, visible=None if mask is None else mask.bool())).float()


def test_a_published_folder_gives_the_reference_logits(model, reference):
    ids, mask = reference["ids"], reference["attention_mask"]
    assert float((logits(model, ids) - reference["logits_nomask_fp32"]).abs().max()) < 1e-5
    assert float((logits(model, ids, mask) - reference["logits_fp32"]).abs().max()) < 1e-5
    assert (model.mask_id, model.vocab_size, model.length) == (150, 160, 128)


def test_in_bf16_it_is_no_further_from_float32_than_the_reference_is(reference):
    half = load(FOLDER).model.to(torch.bfloat16)
    exact, theirs = reference["logits_fp32"], reference["logits_bf16"]
    ours = logits(half, reference["ids"], reference["attention_mask"])
    assert float((ours - exact).abs().mean()) <= 1.001 * float((theirs - exact).abs().mean())
    assert float((ours - theirs).abs().mean()) < 1e-3  # a wrong order of casts is off by 0.015
