"""The folded model is the same function as the DiT, to float64's last digits."""

import torch

from unmask.models.dit.folded import FoldedDiT
from unmask.models.dit.network import DiT


def test_folding_changes_nothing() -> None:
    torch.manual_seed(0)
    model = DiT.preset("tiny", vocab_size=301, length=40).double().eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    folded = FoldedDiT(model, torch.float64)
    z_BL = torch.randint(301, (3, 33))
    with torch.no_grad():
        torch.testing.assert_close(folded.logits(folded.features(z_BL)), model(z_BL), rtol=1e-12, atol=1e-12)
        padded = folded.padded_logits(folded.features(z_BL))
    assert padded.shape[-1] % 256 == 0
    assert bool((padded[..., 301:] == -torch.inf).all())


def test_its_weights_are_its_own() -> None:
    model = DiT.preset("tiny")
    folded = FoldedDiT(model, torch.float32)
    before = folded.embedding.weight.clone()
    with torch.no_grad():
        model.embedding.weight.add_(1)
    assert torch.equal(folded.embedding.weight, before)
