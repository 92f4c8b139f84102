"""A causal DiT that reads one token a call, with a cache of keys and values.

As in the folded DiT only the matrix products are in the narrow type: the residual stream and the norms stay in float32.

Shapes: B texts, L tokens, T places that are looked at, D features, H heads, E features of a head.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.models.dit.layers import Block, rotated
from unmask.models.dit.network import DiT
from unmask.models.family import Graph

REACH = 256


class Cached:
    """A causal DiT that reads one token a call and remembers the keys and values of those before.

    With `graph`, which makes work on fixed tensors quick (CUDA graphs), attention goes over a whole number of `REACH`
    places and a mask hides what is not written yet: then a few shapes serve every place.
    """

    def __init__(self, model: DiT, rows: int, graph: Graph | None = None) -> None:
        self.model, self.graph, self.read = model, graph, 0
        config, weight = model.config, model.head.linear.weight
        shape = (config.blocks, 2, rows, config.heads, config.length, config.hidden // config.heads)
        self.memory = torch.zeros(shape, dtype=weight.dtype, device=weight.device)
        self.condition_C = model._condition()
        self.token_B = torch.zeros(rows, dtype=torch.int64, device=weight.device)
        self.place_1 = torch.zeros(1, dtype=torch.int64, device=weight.device)
        self.runs: dict[int, Callable[[], Tensor]] = {}

    def restart(self) -> None:
        """The next token is the first of other texts."""
        self.read = 0

    def __call__(self, token_B: Tensor) -> Tensor:
        """logits_BV of what follows; with `graph` the next call overwrites them."""
        self.token_B.copy_(token_B)
        self.place_1.fill_(self.read)
        self.read += 1
        if self.graph is None:
            return self._next(self.read)
        reach = min(-(-self.read // REACH) * REACH, self.model.config.length)
        if reach not in self.runs:
            self.runs[reach] = self.graph(partial(self._next, reach))
        return self.runs[reach]()

    def _next(self, reach: int) -> Tensor:
        h_B1D = self.model.embedding(self.token_B[:, None])
        seen_T = None if self.graph is None else torch.arange(reach, device=h_B1D.device) <= self.place_1
        for block, memory in zip(self.model.blocks, self.memory, strict=True):
            assert isinstance(block, Block)
            h_B1D = self._through(block, h_B1D, memory, reach, seen_T)
        return self.model.logits(h_B1D, _product)[:, 0]

    def _through(self, block: Block, x_B1D: Tensor, memory_2BHLE: Tensor, reach: int, seen_T: Tensor | None) -> Tensor:
        shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = block.modulation(self.condition_C).chunk(6)
        narrow = block.qkv.weight.dtype
        qkv_B1D = block.qkv(block.attention_norm(x_B1D, shift_1, scale_1).to(narrow))
        q_BH1E, k_BH1E, v_BH1E = qkv_B1D.unflatten(-1, (3, block.heads, -1)).permute(2, 0, 3, 1, 4)
        memory_2BHLE[0].index_copy_(2, self.place_1, self._turned(k_BH1E))
        memory_2BHLE[1].index_copy_(2, self.place_1, v_BH1E)
        k_BHTE, v_BHTE = memory_2BHLE[:, :, :, :reach]
        mask_1T = None if seen_T is None else seen_T[None]
        mixed_BH1E = F.scaled_dot_product_attention(self._turned(q_BH1E), k_BHTE, v_BHTE, attn_mask=mask_1T)
        x_B1D = x_B1D + gate_1 * block.attention_out(mixed_BH1E.transpose(1, 2).flatten(2))
        return x_B1D + gate_2 * block._mlp(block.mlp_norm(x_B1D, shift_2, scale_2).to(narrow))

    def _turned(self, x_BH1E: Tensor) -> Tensor:
        """Rotary positions at this place alone."""
        rotary = self.model.rotary
        return rotated(x_BH1E, rotary.cos_LE[self.place_1], rotary.sin_LE[self.place_1])


def _product(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.linear(x.to(weight.dtype), weight, bias)


def narrowed(model: DiT, dtype: torch.dtype, device: torch.device) -> DiT:
    """A copy there with the matrices of its products in `dtype`, everything else in float32."""
    model = copy.deepcopy(model).to(device, torch.float32).eval()
    for block in model.blocks:
        assert isinstance(block, Block)
        for linear in (block.qkv, block.attention_out, block.mlp_in, block.mlp_out):
            linear.to(dtype)
    model.head.linear.to(dtype)
    return model
