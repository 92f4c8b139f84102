"""The parts of the DiT: a modulated LayerNorm, rotary positions, one block, the vocabulary head.

Where time conditioning is off the conditioning vector is the same for every sample, so adaLN's shift, scale and gate
are vectors of the model, not of the batch. With it they are of each text; either way they are computed once per forward
pass.

Shapes: B sequences, L positions, D features, C conditioning features, H heads, E = D / H features of a head; "1C" is
one vector for all positions, of the whole batch (1C = C) or of each text (B, 1, C).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

LAYER_NORM_EPS = 1e-5
ROTARY_BASE = 1e4
SOUND_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
CUDNN_TILE = 128  # positions


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


class ModulatedNorm(nn.Module):
    """adaLN: norm(x) · weight · (1 + scale) + shift, which is one LayerNorm whose weight and bias are computed."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: Tensor, shift_1D: Tensor, scale_1D: Tensor) -> Tensor:
        dtype = _at_least_float32(x.dtype)
        shift_1D, scale_1D = shift_1D.to(dtype), scale_1D.to(dtype)
        if scale_1D.ndim > 1:
            normed = F.layer_norm(x.to(dtype), self.weight.shape, self.weight.to(dtype), None, LAYER_NORM_EPS)
            return (normed * (1 + scale_1D) + shift_1D).to(x.dtype)
        weight_D = self.weight.to(dtype) * (1 + scale_1D)
        normed = F.layer_norm(x.to(dtype), weight_D.shape, weight_D, shift_1D, LAYER_NORM_EPS)
        return normed.to(x.dtype)


def inverse_frequencies(head_size: int) -> Tensor:
    """The E/2 angular frequencies of rotary positions, in float64."""
    return ROTARY_BASE ** (-torch.arange(0, head_size, 2, dtype=torch.float64) / head_size)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Features turned to their positions, half-split (NeoX): e and e + E/2 of a head together."""
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat([-second, first], dim=-1) * sin).to(x.dtype)


class Rotary(nn.Module):
    """Rotary positions: the angle is position · frequency.

    The table is a cache of a formula, not state: it is never saved, and moving the model computes it afresh, so that
    `.double()` gives float64 angles, `.bfloat16()` keeps float32 ones, and a model born on `meta` gets real ones.
    """

    cos_LE: Tensor
    sin_LE: Tensor

    def __init__(self, length: int, head_size: int) -> None:
        super().__init__()
        self.length, self.head_size = length, head_size
        for name in ("cos_LE", "sin_LE"):
            self.register_buffer(name, torch.empty(0), persistent=False)
        self._build(torch.empty(0).device, torch.get_default_dtype())

    def _build(self, device: torch.device, dtype: torch.dtype) -> None:
        if device.type == "meta":  # whose sizes nobody has checked yet
            self.cos_LE = self.sin_LE = torch.empty(0, dtype=_at_least_float32(dtype), device=device)
            return
        # float64 on the CPU, because some devices have none
        positions_L = torch.arange(self.length, dtype=torch.float64, device="cpu")
        with torch.device("cpu"):
            angle_LE = torch.outer(positions_L, inverse_frequencies(self.head_size)).repeat(1, 2)
        dtype = _at_least_float32(dtype)
        self.cos_LE, self.sin_LE = (part.to(dtype).to(device) for part in (angle_LE.cos(), angle_LE.sin()))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Rotary:
        where = fn(torch.empty(0, dtype=self.cos_LE.dtype, device=self.cos_LE.device))
        self._build(where.device, where.dtype)
        return self

    def forward(self, x_BHLE: Tensor) -> Tensor:
        length = x_BHLE.shape[-2]
        return rotated(x_BHLE, self.cos_LE[:length], self.sin_LE[:length])


def kernels(length: int, causal: bool) -> list[SDPBackend]:
    """For attention on CUDA; the first that can goes. cuDNN's takes 8% off a step of the small model on an H200.

    In bf16 on Hopper its backward pass may give nan though the loss is sound: where the last tile of positions is not
    full (pytorch issue 196678, cudnn-frontend issue 160) and elsewhere (pytorch issue 139298). A causal pocket model on
    255 positions had nan in its second step, in torch 2.11; masked ones on 256 never did. Whether this kernel was to
    blame nobody could look up, so in training it is left to what has run soundly for billions of tokens.
    """
    sound = not torch.is_grad_enabled() or not (causal or length % CUDNN_TILE)
    return [SDPBackend.CUDNN_ATTENTION, *SOUND_KERNELS] if sound else SOUND_KERNELS


def attend(q_BHLE: Tensor, k_BHLE: Tensor, v_BHLE: Tensor, causal: bool) -> Tensor:
    """softmax(q k^T / sqrt(E)) v."""
    if q_BHLE.device.type != "cuda":
        return F.scaled_dot_product_attention(q_BHLE, k_BHLE, v_BHLE, is_causal=causal)
    with sdpa_kernel(kernels(q_BHLE.shape[-2], causal), set_priority=True):
        return F.scaled_dot_product_attention(q_BHLE, k_BHLE, v_BHLE, is_causal=causal)


def linear_in(layer: nn.Linear, x: Tensor, dtype: torch.dtype | None) -> Tensor:
    """A layer whose product is done in `dtype`; None: as it is."""
    return layer(x) if dtype is None else F.linear(x, layer.weight.to(dtype), layer.bias.to(dtype))


def _zero_linear(inputs: int, outputs: int) -> nn.Linear:
    linear = nn.Linear(inputs, outputs)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


class Block(nn.Module):
    """x + gate · dropout(attention), then x + gate · dropout(MLP), each branch behind its modulated norm."""

    def __init__(self, hidden: int, cond: int, heads: int, dropout: float, causal: bool) -> None:
        super().__init__()
        self.heads, self.dropout, self.causal = heads, dropout, causal
        self.attention_norm = ModulatedNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.attention_out = nn.Linear(hidden, hidden, bias=False)
        self.mlp_norm = ModulatedNorm(hidden)
        self.mlp_in = nn.Linear(hidden, 4 * hidden)
        self.mlp_out = nn.Linear(4 * hidden, hidden)
        self.modulation = _zero_linear(cond, 6 * hidden)

    def forward(self, x_BLD: Tensor, c_1C: Tensor, rotary: Rotary) -> Tensor:
        shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = self.modulation(c_1C).chunk(6, dim=-1)
        x_BLD = self._add(x_BLD, gate_1, self._attend(self.attention_norm(x_BLD, shift_1, scale_1), rotary))
        return self._add(x_BLD, gate_2, self._mlp(self.mlp_norm(x_BLD, shift_2, scale_2)))

    def _add(self, x_BLD: Tensor, gate_1D: Tensor, branch_BLD: Tensor) -> Tensor:
        return x_BLD + gate_1D * F.dropout(branch_BLD, self.dropout, self.training)

    def _attend(self, x_BLD: Tensor, rotary: Rotary) -> Tensor:
        qkv_3BHLE = self.qkv(x_BLD).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q_BHLE, k_BHLE, v_BHLE = qkv_3BHLE.unbind(0)
        mixed_BHLE = attend(rotary(q_BHLE), rotary(k_BHLE), v_BHLE, self.causal)
        return self.attention_out(mixed_BHLE.transpose(1, 2).flatten(2))

    def _mlp(self, x_BLD: Tensor) -> Tensor:
        return self.mlp_out(F.gelu(self.mlp_in(x_BLD), approximate="tanh"))


Product = Callable[[Tensor, Tensor, Tensor], Tensor]  # of x_...D, weight_VD and bias_V


class Head(nn.Module):
    """Features to logits over all states: modulated norm, then one linear map, zero at birth.

    `product` may do something else than the map with its inputs: a loss need not form all logits at once.
    """

    def __init__(self, hidden: int, cond: int, vocab_size: int) -> None:
        super().__init__()
        self.norm = ModulatedNorm(hidden)
        self.linear = _zero_linear(hidden, vocab_size)
        self.modulation = _zero_linear(cond, 2 * hidden)

    def normed(self, h: Tensor, c_1C: Tensor) -> Tensor:
        shift_1D, scale_1D = self.modulation(c_1C).chunk(2, dim=-1)
        return self.norm(h, shift_1D, scale_1D)

    def forward(self, h: Tensor, c_C: Tensor, product: Product = F.linear) -> Tensor:
        return product(self.normed(h, c_C), self.linear.weight, self.linear.bias)
