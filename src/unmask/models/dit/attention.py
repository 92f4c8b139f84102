"""How sharply a DiT attends: the entropy of its attention and the largest logit, block by block.

A head that has collapsed looks at one position whatever it reads: its entropy is near 0 and its logits are huge.

Shapes: B sequences, L positions, H heads, E features of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor

from unmask.models.dit.layers import Block, Rotary
from unmask.models.dit.network import DiT


@torch.no_grad()
def attention_stats(model: DiT, z_BL: Tensor, time_B: Tensor | None = None) -> list[tuple[float, float]]:
    """For each block: the attention's entropy in nats, averaged over z's queries (median over heads), and its largest
    logit. One sequence's attention in one block is in memory at a time.
    """
    found: list[Tensor] = []
    blocks = [block for block in model.blocks if isinstance(block, Block)]
    hooks = [block.qkv.register_forward_hook(_look(block, model.rotary, found)) for block in blocks]
    try:
        with torch.compiler.set_stance("force_eager"):  # compiled blocks would not see the hooks
            model.features(z_BL, time_B)
    finally:
        for hook in hooks:
            hook.remove()
    return [(median(entropy_H), largest) for *entropy_H, largest in torch.stack(found).tolist()]


def _look(block: Block, rotary: Rotary, found: list[Tensor]) -> Callable[..., None]:
    def look(_module: Any, _inputs: Any, qkv: Tensor) -> None:
        with torch.autocast(qkv.device.type, enabled=False):
            q_BHLE, k_BHLE, _ = qkv.float().unflatten(-1, (3, block.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
            seen = [_sharpness(q, k, block.causal) for q, k in zip(rotary(q_BHLE), rotary(k_BHLE), strict=True)]
        entropy_BH, largest_B = (torch.stack(part) for part in zip(*seen, strict=True))
        found.append(torch.cat([entropy_BH.mean(0), largest_B.max()[None]]))

    return look


def _sharpness(q_HLE: Tensor, k_HLE: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Each head's mean entropy over its queries, and the largest logit of all."""
    logits_HLL = q_HLE @ k_HLE.mT / math.sqrt(q_HLE.shape[-1])
    if causal:
        later_LL = torch.ones_like(logits_HLL[0], dtype=torch.bool).triu(1)
        logits_HLL = logits_HLL.masked_fill(later_LL, -torch.inf)
    entropy_HL = torch.distributions.Categorical(logits=logits_HLL, validate_args=False).entropy()
    return entropy_HL.mean(-1), logits_HLL.max()
