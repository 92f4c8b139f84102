"""A DiT folded for inference: the same function, a plain pre-norm transformer.

Time conditioning is off, so adaLN's shift, scale and gate are constants of the model. Scale and shift become the
weight and bias of LayerNorm, the gates are multiplied into the output projections, and no conditioning is left.
The residual stream and the norms stay in float32 whatever the matrices are in: it costs 2% on an H200 and is three
times nearer to the float32 model.

Shapes: B sequences, L positions, N positions of sequences of any lengths, D features, H heads, E = D / H features of a
head.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.models.denoiser import Network
from unmask.models.dit.layers import LAYER_NORM_EPS, Block, ModulatedNorm, Rotary, attend, linear_in
from unmask.models.dit.network import DiT

HEAD_MULTIPLE = 256  # 50258 columns make a matrix product three times slower than 50432: tensor cores want aligned rows


def _frozen(value: Tensor, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(value.detach().to(dtype, copy=True), requires_grad=False)


class _Linear(nn.Module):
    """x · weight' + bias, in the matrices' dtype."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = _frozen(weight, dtype)
        self.bias = None if bias is None else _frozen(bias, dtype)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def gelu(self, x: Tensor) -> Tensor:
        """GELU(tanh) of the product; cuBLAS does it while the product is still in registers."""
        if self.bias is not None and x.is_cuda and x.dtype == torch.bfloat16:
            flat = x.flatten(0, -2)
            return torch._addmm_activation(self.bias, flat, self.weight.t(), use_gelu=True).unflatten(0, x.shape[:-1])
        return F.gelu(self(x), approximate="tanh")


class _Norm(nn.Module):
    """norm(x) · weight (1 + scale) + shift, as a LayerNorm with weight and bias."""

    def __init__(self, norm: ModulatedNorm, shift_D: Tensor, scale_D: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype, wide = dtype, torch.promote_types(dtype, torch.float32)
        self.weight = _frozen(norm.weight * (1 + scale_D), wide)
        self.bias = _frozen(shift_D, wide)

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, LAYER_NORM_EPS).to(self.dtype)


class _FoldedBlock(nn.Module):
    def __init__(self, block: Block, c_C: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = linear_in(block.modulation, c_C, c_C.dtype).chunk(6)
        self.heads = block.heads
        self.attention_norm = _Norm(block.attention_norm, shift_1, scale_1, dtype)
        self.qkv = _Linear(block.qkv.weight, None, dtype)
        self.attention_out = _Linear(gate_1[:, None] * block.attention_out.weight, None, dtype)
        self.mlp_norm = _Norm(block.mlp_norm, shift_2, scale_2, dtype)
        self.mlp_in = _Linear(block.mlp_in.weight, block.mlp_in.bias, dtype)
        self.mlp_out = _Linear(gate_2[:, None] * block.mlp_out.weight, gate_2 * block.mlp_out.bias, dtype)

    def forward(self, x_BLD: Tensor, rotary: Rotary) -> Tensor:
        mixed_BLD = self._mix(self.qkv(self.attention_norm(x_BLD)), rotary)
        return self._add(x_BLD, mixed_BLD)

    def packed(self, x_ND: Tensor, rotary: Rotary, alike: Sequence[tuple[int, int]]) -> Tensor:
        """Texts of different length one after the other: only attention looks at one at a time."""
        qkv_N3D = self.qkv(self.attention_norm(x_ND))
        parts = zip(qkv_N3D.split([rows * length for rows, length in alike]), alike, strict=True)
        mixed = [self._mix(part.unflatten(0, shape), rotary).flatten(0, 1) for part, shape in parts]
        return self._add(x_ND, torch.cat(mixed))

    def _mix(self, qkv_BL3D: Tensor, rotary: Rotary) -> Tensor:
        """Attention: (B, L, 3 D) -> (B, L, D)."""
        q_BHLE, k_BHLE, v_BHLE = qkv_BL3D.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        return attend(rotary(q_BHLE), rotary(k_BHLE), v_BHLE, causal=False).transpose(1, 2).flatten(2)

    def _add(self, x: Tensor, mixed: Tensor) -> Tensor:
        x = x + self.attention_out(mixed)
        return x + self.mlp_out(self.mlp_in.gelu(self.mlp_norm(x)))


class Twin(Network):
    """A Denoiser that computes what `model` computes, faster; its weights are its own, matrices in `dtype`."""

    @torch.no_grad()
    def __init__(self, model: DiT, dtype: torch.dtype) -> None:
        super().__init__()
        self.config, self.wide = model.config, torch.promote_types(dtype, torch.float32)
        self.embedding = nn.Embedding.from_pretrained(model.embedding.weight.detach().to(self.wide, copy=True))
        self.rotary = Rotary(model.config.length, model.config.hidden // model.config.heads)
        self.rotary.to(device=model.embedding.weight.device, dtype=self.wide)
        extra, linear = -self.vocab_size % HEAD_MULTIPLE, model.head.linear
        bias = F.pad(linear.bias, (0, extra), value=-torch.inf)
        self.head = _Linear(F.pad(linear.weight, (0, 0, 0, extra)), bias, dtype)

    def padded_logits(self, h: Tensor) -> Tensor:
        """Logits with columns of -inf after the vocabulary, up to a multiple of 256."""
        return self.head(h)

    def logits(self, h: Tensor) -> Tensor:
        return self.padded_logits(h)[..., : self.vocab_size]


class FoldedDiT(Twin):
    """Without conditioning; the head's norm is part of the head."""

    @torch.no_grad()
    def __init__(self, model: DiT, dtype: torch.dtype) -> None:
        super().__init__(model, dtype)
        assert not model.config.causal, "folding is for denoisers"
        c_C = model._condition(torch.promote_types(model.embedding.weight.dtype, torch.float32))
        blocks = (block for block in model.blocks if isinstance(block, Block))
        self.blocks = nn.ModuleList(_FoldedBlock(block, c_C, dtype) for block in blocks)
        shift_D, scale_D = linear_in(model.head.modulation, c_C, c_C.dtype).chunk(2)
        self.head_norm = _Norm(model.head.norm, shift_D, scale_D, dtype)
        self.eval()

    def features(self, z: Tensor) -> Tensor:
        h_BLD = self.embedding(z)
        for block in self.blocks:
            h_BLD = block(h_BLD, self.rotary)
        return h_BLD

    def packed_features(self, z_N: Tensor, lengths: Sequence[int]) -> Tensor:
        """h_ND of texts of these lengths, one after the other: for each what `features` gives for it alone."""
        alike = [(len(list(rows)), length) for length, rows in groupby(lengths)]
        h_ND = self.embedding(z_N)
        for block in cast(Iterable[_FoldedBlock], self.blocks):
            h_ND = block.packed(h_ND, self.rotary, alike)
        return h_ND

    def padded_logits(self, h: Tensor) -> Tensor:
        return super().padded_logits(self.head_norm(h))


@torch.no_grad()
def fold(model: DiT) -> DiT:
    """A DiT that computes what `model` computes; a pocket model loses 8% of its parameters.

    It is an ordinary DiT with one conditioning feature that is 0 and its modulations in their biases, so that it can be
    trained, saved and folded again.
    """
    folded = DiT.from_config(dataclasses.replace(model.config, cond=1)).to(model.embedding.weight)
    condition_C, kept = model._condition(), model.state_dict()
    constants = {
        f"{name}.bias": layer(condition_C)
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and name.endswith("modulation")
    }
    for name, parameter in folded.named_parameters():
        if name.startswith("sigma_") or name.endswith("modulation.weight"):
            parameter.zero_()
        else:
            parameter.copy_(constants.get(name, kept[name]))
    return folded.eval()
