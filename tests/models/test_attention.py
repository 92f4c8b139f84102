"""How sharply a DiT attends, against a plain softmax, and a network made to collapse."""

import math
from statistics import median

import pytest
import torch

from unmask.core.streams import stream
from unmask.models.dit.attention import attention_stats
from unmask.models.dit.network import DiT
from unmask.models.family import family_of
from unmask.training.watch import AttentionWatch


def network(causal: bool = False, scale: float = 1.0) -> DiT:
    model = DiT(vocab_size=9, length=16, hidden=24, cond=8, blocks=3, heads=3, causal=causal).eval()
    generator = stream(0, "weights")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
        for block in model.blocks:
            block.qkv.weight[:24] *= scale  # the queries
    return model


def directly(model: DiT, z: torch.Tensor) -> list[tuple[float, float]]:
    """The forward pass once more, with every attention written out."""
    found, c, h = [], model._condition(), model.embedding(z)
    for block in model.blocks:
        shift, scale = block.modulation(c).chunk(6)[:2]
        q, k, _ = block.qkv(block.attention_norm(h, shift, scale)).unflatten(-1, (3, 3, 8)).unbind(-3)
        logits = torch.einsum("bihe,bjhe->bhij", *(model.rotary(x.transpose(1, 2)).transpose(1, 2) for x in (q, k)))
        logits = logits / math.sqrt(8)
        if model.config.causal:
            logits = logits + torch.full((16, 16), -1e9).triu(1)
        p = logits.softmax(-1)
        entropy = -torch.xlogy(p, p).sum(-1).mean(dim=(0, 2))
        found.append((median(entropy.tolist()), logits.max().item()))
        h = block(h, c, model.rotary)
    return found


@pytest.mark.parametrize("causal", [False, True])
def test_it_is_what_a_softmax_gives(causal):
    model = network(causal)
    z = torch.randint(9, (2, 16), generator=stream(1))
    with torch.no_grad():
        expected = directly(model, z)
    assert torch.tensor(attention_stats(model, z)) == pytest.approx(torch.tensor(expected), rel=1e-4)
    family_of(model).compile(model)  # the same on a compiled network, which then has no hooks left
    assert torch.tensor(attention_stats(model, z)) == pytest.approx(torch.tensor(expected), rel=1e-4)
    assert not any(block.qkv._forward_hooks for block in model.blocks)


def test_a_collapsed_network_is_named_once():
    z = torch.randint(9, (2, 16), generator=stream(1))
    sound, sharp = (attention_stats(network(scale=scale), z) for scale in (1.0, 300.0))
    watch = AttentionWatch(16)
    assert watch.news([entropy for entropy, _ in sound]) is None
    assert "sees few tokens in block 0 (" in (watch.news([entropy for entropy, _ in sharp]) or "")
    assert watch.named == {0, 1, 2}
    assert watch.news([entropy for entropy, _ in sharp]) is None
    assert sharp[0][1] == pytest.approx(300 * sound[0][1])


@pytest.mark.parametrize(("length", "least"), [(1024, 1.0), (8, 1.0), (4, math.log(4) / 2), (2, math.log(2) / 2)])
def test_short_sequences_have_a_bound_that_attention_can_reach(length, least):
    watch = AttentionWatch(length)
    assert watch.least == pytest.approx(least)
    assert watch.news([math.log(length)]) is None
    assert watch.news([0.9 * least]) is not None
    assert AttentionWatch(length).news([math.nan]) is not None
