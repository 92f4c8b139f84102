"""-log p of held-out tokens, term by term, against torch's own cross-entropy; and in no more memory than training."""

import pytest
import torch
import torch.nn.functional as F

from unmask.core.streams import stream
from unmask.metrics import elbo
from unmask.metrics.elbo import elbo_of, nll_of
from unmask.models.dit.network import DiT
from unmask.objectives import head_loss


class Table:
    """Logits that look at the token alone; the mask may be any state."""

    vocab_size, length = 9, 12

    def __init__(self, mask_id):
        self.mask_id = mask_id
        self.table_VV = 5 * torch.randn(9, 9, generator=stream(3), dtype=torch.float64)

    def features(self, z):
        return self.table_VV[z]

    def logits(self, h):
        return h


@pytest.mark.parametrize("mask_id", [0, 4, 8])
def test_it_is_the_cross_entropy_without_the_mask(mask_id):
    model, kept = Table(mask_id), torch.tensor([v for v in range(9) if v != mask_id])
    place_BL = torch.randint(8, (5, 12), generator=stream(4))
    x0_BL, masked_BL = kept[place_BL], torch.rand(5, 12, generator=stream(5)) < 0.5

    def direct(z_BL, place_BL):
        logits_BLV = model.table_VV[z_BL][..., kept]
        return F.cross_entropy(logits_BLV.flatten(0, 1), place_BL.flatten(), reduction="none").view_as(z_BL)

    nll_BL = direct(torch.where(masked_BL, mask_id, x0_BL), place_BL)
    expected_B = (nll_BL * masked_BL).sum(1) / masked_BL.sum(1)
    assert torch.allclose(elbo_of(model, x0_BL, masked_BL), expected_B, atol=1e-12)
    assert torch.allclose(nll_of(model, x0_BL), direct(x0_BL[:, :-1], place_BL[:, 1:]).mean(1), atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_no_more_logits_are_held_than_in_training(causal, monkeypatch):
    torch.manual_seed(0)
    model = DiT(50, 12, hidden=16, cond=8, blocks=1, heads=2, causal=causal).eval()
    torch.nn.init.normal_(model.head.linear.weight)
    x0_BL, masked_BL = torch.randint(49, (8, 12)), torch.rand(8, 12) < 0.7

    def found():
        with torch.no_grad():
            return nll_of(model, x0_BL) if causal else elbo_of(model, x0_BL, masked_BL)

    at_once, rows, cross_entropy = found(), [], elbo.cross_entropy
    monkeypatch.setitem(head_loss.TABLE_BYTES, "cpu", 4 * 50 * 7)  # seven positions
    monkeypatch.setattr(elbo, "cross_entropy", lambda *of: rows.append(len(of[0])) or cross_entropy(*of))
    assert torch.allclose(found(), at_once, atol=1e-6)
    assert len(rows) > 8
    assert max(rows) <= 7
