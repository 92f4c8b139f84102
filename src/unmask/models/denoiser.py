"""What every sampler and loss may ask of a model, and the carry-over rule (SUBS) that turns logits into a law.

Refuses to know any network: an exact oracle that returns its posterior as features is a Denoiser too.

Shapes: B sequences, L positions, D features, V = K states, the mask included.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from unmask.core.errors import UserError

MASK_LOGIT = -1e6  # stands for log 0; finite, so that differences and products with zero stay finite


@runtime_checkable
class Denoiser(Protocol):
    """Body and head are separate calls, so that the head runs on chosen positions only."""

    @property
    def vocab_size(self) -> int:
        """K: the tokens and the mask."""

    @property
    def mask_id(self) -> int: ...

    @property
    def length(self) -> int:
        """The longest sequence it takes."""

    def features(self, z: Tensor) -> Tensor:
        """h_BLD of a masked view z_BL."""

    def logits(self, h: Tensor) -> Tensor:
        """logits_...V of features at any selection of positions h_...D."""


def without_mask(logits: Tensor, mask_id: int) -> Tensor:
    """Logits with the mask ruled out; at least float32 whatever they came in."""
    logits_V = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
    logits_V[..., mask_id] = MASK_LOGIT
    return logits_V


def log_probs(logits: Tensor, mask_id: int) -> Tensor:
    """log p(x_0 = v) over the last axis, the mask ruled out."""
    return without_mask(logits, mask_id).log_softmax(-1)


def carry_over(logits_BLV: Tensor, z_BL: Tensor, mask_id: int) -> Tensor:
    """The SUBS rule: `log_probs` at masked positions, a point mass on the token itself at visible ones."""
    logp_BLV = log_probs(logits_BLV, mask_id)
    point_BLV = torch.full_like(logp_BLV, MASK_LOGIT).scatter_(-1, z_BL[..., None], 0.0)
    masked_BL1 = (z_BL == mask_id)[..., None]
    return torch.where(masked_BL1, logp_BLV, point_BLV)


def check_masked(model: object) -> None:
    """Refuse what has no mask state to fill: a causal model, or something else altogether."""
    if getattr(model, "mask_id", None) is None or getattr(getattr(model, "config", None), "causal", False):
        raise UserError("this model has no mask state (a causal one has none): give a masked-diffusion model")
