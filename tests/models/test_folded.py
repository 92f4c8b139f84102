"""The twins for inference are the same functions as the DiT, to float64's last digits."""

import pytest
import torch
from tests.small import shaken

from unmask.models.dit.folded import FoldedDiT
from unmask.models.dit.network import DiT
from unmask.models.dit.timed import TimedDiT


@pytest.mark.parametrize("kind", [FoldedDiT, TimedDiT])
@torch.no_grad()
def test_the_twin_for_inference_is_the_same_function(kind):
    model = shaken(DiT.preset("tiny", vocab_size=300, length=40, time=kind is TimedDiT).double().eval(), 0.2)
    twin, z_BL = kind(model, torch.float64), torch.randint(300, (3, 33))
    how = {"time": torch.tensor([0.01, 1.0, 6.9]).double()} if kind is TimedDiT else {}
    padded = twin.padded_logits(twin.features(z_BL, **how))
    expected = model.logits(model.features(z_BL, **how))
    torch.testing.assert_close(padded[..., :300], expected, rtol=1e-12, atol=1e-12)
    assert padded.shape[-1] == 512
    assert bool((padded[..., 300:] == -torch.inf).all())
