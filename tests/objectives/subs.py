"""The published rule that fixes visible tokens, written plainly: the objectives, which never build it, must agree.

Shapes: B rows, L positions, V states.
"""

import torch
from torch import Tensor

from unmask.models.denoiser import MASK_LOGIT, log_probs


def carry_over(logits_BLV: Tensor, z_BL: Tensor, mask_id: int) -> Tensor:
    """The SUBS rule: `log_probs` at masked positions, a point mass on the token itself at visible ones."""
    logp_BLV = log_probs(logits_BLV, mask_id)
    point_BLV = torch.full_like(logp_BLV, MASK_LOGIT).scatter_(-1, z_BL[..., None], 0.0)
    masked_BL1 = (z_BL == mask_id)[..., None]
    return torch.where(masked_BL1, logp_BLV, point_BLV)
