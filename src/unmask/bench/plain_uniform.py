"""A step of Duo's published sampler, written plainly: the whole (positions x vocabulary) posterior in float64, and a
Gumbel race over it. It stands here to be measured against, for law and for speed.

Shapes: B sequences, L positions, K states.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Noise = Callable[[torch.Size, torch.dtype], Tensor]  # uniforms in [0, 1) of a shape (B, L, K)


def posterior(logits_BLK: Tensor, z_BL: Tensor, alpha_t: float, alpha_s: float) -> Tensor:
    """q(z_s | z_t) at every position, with x_0 from the model: the published formula, term by term."""
    p_BLK = logits_BLK.double().softmax(-1)
    K, between = p_BLK.shape[-1], alpha_t / alpha_s
    z_BLK = F.one_hot(z_BL, K).double()
    top_BLK = alpha_t * K * p_BLK * z_BLK + (between - alpha_t) * z_BLK + (alpha_s - alpha_t) * p_BLK
    top_BLK = top_BLK + (1 - between) * (1 - alpha_s) / K
    at_z_BL1 = p_BLK.gather(-1, z_BL[..., None])
    return top_BLK / (alpha_t * K * at_z_BL1 + 1 - alpha_t)


def race(law_BLK: Tensor, noise: Noise) -> Tensor:
    """argmax of p / (-log u): a draw from p."""
    u_BLK = noise(law_BLK.shape, torch.float64)
    return (law_BLK / (1e-10 - (u_BLK + 1e-10).log())).argmax(-1)


def step(logits_BLK: Tensor, z_BL: Tensor, alpha_t: float, alpha_s: float, noise: Noise) -> Tensor:
    return race(posterior(logits_BLK, z_BL, alpha_t, alpha_s), noise)
