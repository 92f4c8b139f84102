"""Coupled trajectories: two masked views of one text, at s < t, locked together by one u a position.

Refuses to know where u and the times come from (plans/, times.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.core.devices import to_device
from unmask.core.errors import UserError
from unmask.processes.masked import is_masked
from unmask.processes.schedule import Schedule


@dataclass(frozen=True)
class TrajectoryPair:
    """The student's view z_t and the teacher's view z_s of the same text; m_t, m_s say where each is masked."""

    z_t: Tensor  # (B, L)
    z_s: Tensor  # (B, L)
    m_t: Tensor  # (B, L) bool
    m_s: Tensor  # (B, L) bool, a subset of m_t
    s: Tensor  # (B,)
    t: Tensor  # (B,)

    @property
    def identity(self) -> Tensor:
        """Visible in both views: nothing to learn."""
        return ~self.m_t

    @property
    def distil(self) -> Tensor:
        """Masked in both views: the teacher's distribution is the target."""
        return self.m_s

    @property
    def reconstruct(self) -> Tensor:
        """Masked for the student, visible to the teacher: the token itself is the target."""
        return self.m_t & ~self.m_s


def couple(
    x0: Tensor, u: Tensor, s: Tensor | float, t: Tensor | float, *, schedule: Schedule, mask_id: int
) -> TrajectoryPair:
    """The nested pair (z_t, z_s) of x_0 from one shared u: a token visible at t is visible at s.

    The views are where x_0 is, masks and times where u is: a caller that counts masks need not wait for a device.
    """
    s_B, t_B = (torch.as_tensor(time, dtype=u.dtype, device=u.device).expand(x0.shape[0]) for time in (s, t))
    if bool((s_B > t_B).any()):
        raise UserError("a coupled pair needs s <= t in every sequence: the teacher sees no less than the student")
    m_t, m_s = is_masked(u, schedule.gamma(t_B)), is_masked(u, schedule.gamma(s_B))
    z_t, z_s = (torch.where(to_device(masked, x0.device), mask_id, x0) for masked in (m_t, m_s))
    return TrajectoryPair(z_t=z_t, z_s=z_s, m_t=m_t, m_s=m_s, s=s_B, t=t_B)
