"""MDLM against what its published class and sampler computed (`meta` in tests/assets/published/mdlm/reference.npz)."""

from pathlib import Path

import pytest
import torch
from tests.small import reference_of

from unmask.checkpoint.io import load
from unmask.inference.ready import make_ready
from unmask.models.denoiser import log_probs
from unmask.plans.grids import make_grid
from unmask.sampling.ancestral import ancestral, token_probabilities

FOLDER = Path("tests/assets/published/mdlm")


@pytest.fixture(scope="module")
def reference():
    return reference_of(FOLDER)


@pytest.fixture(scope="module")
def published():
    return load(FOLDER).model


@torch.no_grad()
def test_logits_and_the_carry_over_rule(reference, published):
    """The network, and the folded one that samples; then its law: of the network where masked, the token elsewhere."""
    ids, expected, ready = reference["ids"], reference["logits_fp32"], make_ready(published, torch.device("cpu"))
    torch.testing.assert_close(published(ids), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(ready.logits(ready.features(ids))[..., :97], expected, rtol=0, atol=1e-5)
    law, masked = reference["logprobs_subs_fp32"], ids == 96
    torch.testing.assert_close(log_probs(published(ids), 96)[masked][:, :96], law[masked][:, :96], rtol=0, atol=1e-5)
    p_BLV = token_probabilities(published, ids, 97, 96, 1.0, torch.float32)
    torch.testing.assert_close(p_BLV, law.exp(), rtol=0, atol=1e-6)


@torch.no_grad()
def test_the_published_sampler_step_by_step(reference, published):
    """Five steps from the reference's own uniforms, and the noise removal: every token of every step."""
    uniforms, steps = iter(reference["gen_uniforms"]), reference["gen_ddpm_inputs"].long()
    path = ancestral(
        published, steps[0], make_grid("mdlm", 5).times, states=97, mask_id=96, temperature=1.0, dtype=torch.float32,
        noise=lambda shape, dtype: next(uniforms).clone(),
    )  # fmt: skip
    for drawn, expected in zip(path, [*steps[1:], reference["gen_ddpm_out"]], strict=True):
        assert drawn.equal(expected)
