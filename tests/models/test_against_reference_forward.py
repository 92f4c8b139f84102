"""The DiT against a second forward, written from the published description alone: plain functions, float64.

Legend: B sequences, L positions, D features, H heads, E = D / H.
"""

import math

import pytest
import torch

from unmask.models.dit.network import DiT
from unmask.models.dit.published import key_map


def silu(x):
    return x / (1 + torch.exp(-x))


def gelu_tanh(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def layer_norm(x, weight):
    mean = x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + 1e-5) * weight


def modulate(x, shift, scale):
    return x * (1 + scale) + shift


def conditioning(p, sigma):
    """c = SiLU(sigma_map(sigma)): a sinusoid of 256, cosines first, longest period 1e4."""
    frequencies = torch.exp(-math.log(1e4) * torch.arange(128, dtype=torch.float64) / 128)
    angles = sigma * frequencies
    sinusoid = torch.cat([torch.cos(angles), torch.sin(angles)])
    hidden = silu(p["sigma_map.mlp.0.weight"] @ sinusoid + p["sigma_map.mlp.0.bias"])
    return silu(p["sigma_map.mlp.2.weight"] @ hidden + p["sigma_map.mlp.2.bias"])


def rotate(x_LE):
    """Half-split rotary positions, base 1e4, one pair of features at a time."""
    L, E = x_LE.shape
    out = torch.empty_like(x_LE)
    for e in range(E // 2):
        angle_L = torch.arange(L, dtype=torch.float64) * 1e4 ** (-2 * e / E)
        a, b = x_LE[:, e], x_LE[:, e + E // 2]
        out[:, e] = a * torch.cos(angle_L) - b * torch.sin(angle_L)
        out[:, e + E // 2] = b * torch.cos(angle_L) + a * torch.sin(angle_L)
    return out


def attention(x_LD, qkv_weight, out_weight, heads, causal):
    L, D = x_LD.shape
    E = D // heads
    qkv_LF = x_LD @ qkv_weight.T
    mixed = []
    for head in range(heads):
        q, k, v = (qkv_LF[:, part * D + head * E : part * D + (head + 1) * E] for part in range(3))
        scores_LL = rotate(q) @ rotate(k).T / math.sqrt(E)
        if causal:
            scores_LL = scores_LL.masked_fill(torch.ones(L, L).triu(1).bool(), -math.inf)
        weights_LL = torch.exp(scores_LL - scores_LL.amax(-1, keepdim=True))
        mixed.append(weights_LL / weights_LL.sum(-1, keepdim=True) @ v)
    return torch.cat(mixed, -1) @ out_weight.T


def reference_forward(p, z_L, blocks, heads, causal):
    c = conditioning(p, sigma=0.0)
    x = p["vocab_embed.embedding"][z_L]
    for i in range(blocks):
        b = {name.removeprefix(f"blocks.{i}."): value for name, value in p.items() if name.startswith(f"blocks.{i}.")}
        modulation = b["adaLN_modulation.weight"] @ c + b["adaLN_modulation.bias"]
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = modulation.chunk(6)
        h = modulate(layer_norm(x, b["norm1.weight"]), shift_a, scale_a)
        x = x + gate_a * attention(h, b["attn_qkv.weight"], b["attn_out.weight"], heads, causal)
        h = modulate(layer_norm(x, b["norm2.weight"]), shift_m, scale_m)
        h = gelu_tanh(h @ b["mlp.0.weight"].T + b["mlp.0.bias"]) @ b["mlp.2.weight"].T + b["mlp.2.bias"]
        x = x + gate_m * h
    shift, scale = (p["output_layer.adaLN_modulation.weight"] @ c + p["output_layer.adaLN_modulation.bias"]).chunk(2)
    h = modulate(layer_norm(x, p["output_layer.norm_final.weight"]), shift, scale)
    return h @ p["output_layer.linear.weight"].T + p["output_layer.linear.bias"]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("hidden", "heads", "length"), [(24, 2, 40), (48, 3, 9)])
def test_against_the_published_description(hidden, heads, length, causal):
    model = DiT(vocab_size=31, length=64, hidden=hidden, cond=10, blocks=3, heads=heads, causal=causal).double().eval()
    generator = torch.Generator().manual_seed(hidden)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    assert all((parameter != 0).all() for parameter in model.parameters())
    ours = model.state_dict()
    theirs = {name: ours[our_name] for name, our_name in key_map(3).items()}
    z_BL = torch.randint(31, (2, length), generator=generator)
    with torch.no_grad():
        got_BLV = model(z_BL)
        expected_BLV = torch.stack([reference_forward(theirs, z_L, 3, heads, causal) for z_L in z_BL])
    assert expected_BLV.std() > 1  # far from the zeros of a fresh model
    assert (got_BLV - expected_BLV).abs().max() < 1e-10
