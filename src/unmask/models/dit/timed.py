"""A DiT that is conditioned on time, for inference: the same function in fewer kernels, its matrices in any precision.

As in the folded DiT the residual stream, the norms and the conditioning stay in float32. Shift, scale and gate of all
blocks are one product of each text's conditioning vector: texts at different times may share a forward.

Shapes: R rows, L positions, D features, V states; "1" is one vector for all positions of a text.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.models.dit.folded import Twin, _frozen, _Linear
from unmask.models.dit.layers import LAYER_NORM_EPS, Block, ModulatedNorm, Rotary, attend
from unmask.models.dit.network import DiT, sinusoid


class _Norm(nn.Module):
    """norm(x) · weight · scale + shift, in the matrices' dtype; scale has its 1 already."""

    def __init__(self, norm: ModulatedNorm, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.weight = _frozen(norm.weight, torch.promote_types(dtype, torch.float32))

    def forward(self, x_RLD: Tensor, shift_R1D: Tensor, scale_R1D: Tensor) -> Tensor:
        normed_RLD = F.layer_norm(x_RLD, self.weight.shape, self.weight, None, LAYER_NORM_EPS)
        return torch.addcmul(shift_R1D, normed_RLD, scale_R1D).to(self.dtype)


class _TimedBlock(nn.Module):
    def __init__(self, block: Block, dtype: torch.dtype) -> None:
        super().__init__()
        self.heads = block.heads
        self.attention_norm, self.mlp_norm = _Norm(block.attention_norm, dtype), _Norm(block.mlp_norm, dtype)
        self.qkv = _Linear(block.qkv.weight, None, dtype)
        self.attention_out = _Linear(block.attention_out.weight, None, dtype)
        self.mlp_in = _Linear(block.mlp_in.weight, block.mlp_in.bias, dtype)
        self.mlp_out = _Linear(block.mlp_out.weight, block.mlp_out.bias, dtype)

    def forward(self, x_RLD: Tensor, modulation: Sequence[Tensor], rotary: Rotary) -> Tensor:
        shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = modulation
        qkv_RL3D = self.qkv(self.attention_norm(x_RLD, shift_1, scale_1))
        q, k, v = qkv_RL3D.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        mixed_RLD = attend(rotary(q), rotary(k), v, causal=False).transpose(1, 2).flatten(2)
        x_RLD = torch.addcmul(x_RLD, gate_1, self.attention_out(mixed_RLD))
        hidden = self.mlp_in.gelu(self.mlp_norm(x_RLD, shift_2, scale_2))
        return torch.addcmul(x_RLD, gate_2, self.mlp_out(hidden))


class TimedDiT(Twin):
    """Conditioned on time; the head's norm, which hangs on it, is part of the features."""

    @torch.no_grad()
    def __init__(self, model: DiT, dtype: torch.dtype) -> None:
        super().__init__(model, dtype)
        assert model.config.time, "the folded DiT is for models without time"
        wide = self.wide
        self.sigma_in = _Linear(model.sigma_in.weight, model.sigma_in.bias, wide)
        self.sigma_out = _Linear(model.sigma_out.weight, model.sigma_out.bias, wide)
        blocks = [block for block in model.blocks if isinstance(block, Block)]
        layers = [*(block.modulation for block in blocks), model.head.modulation]
        weight, bias = (torch.cat([getattr(layer, name) for layer in layers]) for name in ("weight", "bias"))
        # of each six, and of the head's two, the second is a scale, and the fifth: their 1 is added here
        parts = bias.unflatten(0, (-1, model.config.hidden)).clone()
        parts[[6 * i + j for i in range(len(blocks)) for j in (1, 4)] + [6 * len(blocks) + 1]] += 1
        self.modulation = _Linear(weight, parts.flatten(), wide)
        self.blocks = nn.ModuleList(_TimedBlock(block, dtype) for block in blocks)
        self.head_norm = _Norm(model.head.norm, dtype)
        self.eval()

    def features(self, z: Tensor, time: Tensor) -> Tensor:
        """h_RLD of token ids z_RL, normed for the head, at the sigma of each row."""
        seen = sinusoid(time, self.wide)
        parts = self.modulation(F.silu(self.sigma_out(F.silu(self.sigma_in(seen))))).chunk(6 * len(self.blocks) + 2, -1)
        h_RLD = self.embedding(z)
        for number, block in enumerate(self.blocks):
            h_RLD = block(h_RLD, parts[6 * number : 6 * number + 6], self.rotary)
        return self.head_norm(h_RLD, *parts[-2:])
