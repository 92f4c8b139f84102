"""How far a predicted law is from its target, position by position, with lean memory.

Refuses to know which positions: callers hand over the logits of the positions that carry loss.

Shapes: N chosen positions, V = K states, the mask included.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _TokenNLL(torch.autograd.Function):
    """-log p(target) with the mask ruled out.

    By hand because autograd keeps four tables of N x V for this where one is enough, and on a CPU the time goes into
    writing them. The derivative by the logits is softmax - onehot(target).
    """

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, target_N: Tensor, mask_id: int) -> Tensor:
        scores_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
        below_N, above_N = scores_NV[:, :mask_id].logsumexp(-1), scores_NV[:, mask_id + 1 :].logsumexp(-1)
        normaliser_N = torch.logaddexp(below_N, above_N)
        ctx.save_for_backward(logits_NV, target_N, normaliser_N)
        ctx.mask_id = mask_id
        return normaliser_N - scores_NV.gather(-1, target_N[:, None])[:, 0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        logits_NV, target_N, normaliser_N = ctx.saved_tensors
        slope_NV = torch.sub(logits_NV, normaliser_N[:, None]).exp_()
        slope_NV[:, ctx.mask_id] = 0
        slope_NV.scatter_add_(-1, target_N[:, None], torch.full_like(slope_NV[:, :1], -1))
        return slope_NV.mul_(grads[0][:, None]).to(logits_NV.dtype), None, None


def token_nll(logits_NV: Tensor, target_N: Tensor, mask_id: int) -> Tensor:
    """-log p(target) under the logits, the mask ruled out: at least float32, whatever the logits came in."""
    nll_N: Tensor = _TokenNLL.apply(logits_NV, target_N, mask_id)
    return nll_N
