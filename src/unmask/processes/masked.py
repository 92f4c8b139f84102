"""The masked view of clean tokens, and the reverse posterior of a mask.

Shapes: B sequences, L positions.
"""

from __future__ import annotations

import torch
from torch import Tensor


def per_sequence(value: Tensor | float, like_BL: Tensor) -> Tensor:
    """A scalar, one value a sequence (B,) or one a position (B, L), shaped to broadcast against (B, L)."""
    value = torch.as_tensor(value, device=like_BL.device)
    return value[:, None] if value.ndim == 1 else value


def is_masked(u_BL: Tensor, gamma: Tensor | float) -> Tensor:
    """Scalar trajectory locking: masked at t iff u >= gamma_t (so that u = 0 at gamma = 0 is masked)."""
    return u_BL >= per_sequence(gamma, u_BL)


def mask(x0: Tensor, u: Tensor, gamma: Tensor | float, mask_id: int) -> Tensor:
    """z_t = Mask(x_0, u, gamma_t). gamma is a number, one value a sequence (B,), or one a position (B, L)."""
    return torch.where(is_masked(u, gamma), mask_id, x0)


def stay_masked(gamma_s: Tensor, gamma_t: Tensor) -> Tensor:
    """P(masked at s | masked at t) = (1 - gamma_s) / (1 - gamma_t), s < t: the reverse posterior of a mask."""
    return (1 - gamma_s) / (1 - gamma_t)
