"""LLaDA's published `generate`, written plainly: every step the whole table of logits, Gumbel noise over all of it in
float64, the confidence of every position, and the best ones of the block. It stands here to be measured against.

Shapes: B rows, L positions, V states.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def with_gumbel_noise(logits_BLV: Tensor, temperature: float) -> Tensor:
    """Weights whose largest is a draw at this temperature, in float64."""
    if temperature == 0:
        return logits_BLV
    logits_BLV = logits_BLV.to(torch.float64)
    noise_BLV = torch.rand_like(logits_BLV, dtype=torch.float64)
    return logits_BLV.exp() / (-torch.log(noise_BLV)) ** temperature


@torch.inference_mode()
def plain_step(body: Any, model: Any, x_BL: Tensor, end: int, quota_B: Tensor, temperature: float) -> Tensor:
    """One forward: reveals the quota's most confident masked positions before `end`."""
    masked_BL = x_BL == model.mask_id
    logits_BLV = model.logits(body.features(x_BL))
    x0_BL = with_gumbel_noise(logits_BLV, temperature).argmax(-1)
    p_BLV = logits_BLV.softmax(-1)
    confidence_BL = p_BLV.gather(-1, x0_BL[..., None])[..., 0]
    confidence_BL[:, end:] = -torch.inf
    confidence_BL = confidence_BL.masked_fill(~masked_BL, -torch.inf)
    x_BL = x_BL.clone()
    for row, quota in enumerate(quota_B.tolist()):
        place_K = confidence_BL[row].topk(quota).indices
        x_BL[row, place_K] = torch.where(masked_BL[row], x0_BL[row], x_BL[row])[place_K]
    return x_BL
