import torch

from unmask.models.denoiser import Denoiser, carry_over, log_probs
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


def test_carry_over_is_a_point_mass_on_visible_tokens_only():
    logits_BLV = torch.randn(2, 3, 5, requires_grad=True)
    z_BL = torch.tensor([[MASK, 0, 3], [1, MASK, MASK]])
    logp_BLV = carry_over(logits_BLV, z_BL, MASK)
    for b in range(2):
        for i in range(3):
            if z_BL[b, i] == MASK:
                assert torch.equal(logp_BLV[b, i], log_probs(logits_BLV[b, i], MASK))
            else:
                assert torch.equal(logp_BLV[b, i].exp(), torch.nn.functional.one_hot(z_BL[b, i], 5).float())
    logp_BLV.exp().square().sum().backward()
    moved_BL = logits_BLV.grad.abs().sum(-1) > 0
    assert torch.equal(moved_BL, z_BL == MASK)


def test_a_dit_is_a_denoiser():
    assert isinstance(DiT.preset("tiny"), Denoiser)
