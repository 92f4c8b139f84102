import torch

from unmask.models.denoiser import Denoiser, log_probs
from unmask.models.dit.network import DiT

MASK = 4


def test_log_probs_rules_out_the_mask_and_normalises_the_rest():
    logits_BLV = torch.randn(2, 3, 5, dtype=torch.float64)
    weight_BLV = logits_BLV.exp()
    weight_BLV[..., MASK] = 0
    expected = weight_BLV / weight_BLV.sum(-1, keepdim=True)
    torch.testing.assert_close(log_probs(logits_BLV, MASK).exp(), expected)


def test_log_probs_leaves_bfloat16_before_the_softmax_and_its_input_alone():
    logits_V = torch.tensor([0.0, 0.01, 0.02, 0.03, 9.0], dtype=torch.bfloat16)
    before = logits_V.clone()
    got = log_probs(logits_V, MASK)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, log_probs(logits_V.float(), MASK))
    assert torch.equal(logits_V, before)


def test_a_dit_is_a_denoiser():
    assert isinstance(DiT.preset("tiny"), Denoiser)
