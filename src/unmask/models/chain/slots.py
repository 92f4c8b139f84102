"""Slots: the positions that one step draws, text by text, in the order in which they are drawn.

Shapes: M positions drawn, R texts that have some, S slots of the longest of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

GRID = 1024


@dataclass(frozen=True)
class Slots:
    """Which of the M positions stands in each slot of each text."""

    which_RS: Tensor  # any of the text's own where a slot is beyond its last
    real_RS: Tensor  # bool: whether it is not

    def rows(self, keep_R: Tensor) -> Slots:
        """Only some of the texts."""
        return Slots(self.which_RS[keep_R], self.real_RS[keep_R])


def in_slots(row_M: Tensor, rank_M: Tensor | None = None) -> Slots:
    """The slots of positions that come text by text. Within a text they are drawn as `rank_M` rises; None: as given."""
    M, device = len(row_M), row_M.device
    text_M = torch.unique_consecutive(row_M, return_inverse=True)[1]
    order_M = torch.arange(M, device=device)
    if rank_M is not None:
        order_M = rank_M.to(device).argsort(stable=True)
        order_M = order_M[text_M[order_M].argsort(stable=True)]
    count_R = torch.bincount(text_M)
    start_R = count_R.cumsum(0) - count_R
    S = int(count_R.max()) if M else 0
    slot_S = torch.arange(S, device=device)
    real_RS = slot_S < count_R[:, None]
    which_RS = order_M[(start_R[:, None] + slot_S).clamp(max=max(M - 1, 0))]
    return Slots(torch.where(real_RS, which_RS, order_M[start_R][:, None]), real_RS)


def certainty(log_weight_MV: Tensor) -> Tensor:
    """How sure a law is of its likeliest token, on a grid wider than the rounding of float32, which must not choose."""
    return (log_weight_MV.double().log_softmax(-1).amax(-1).exp() * GRID).round() / GRID
