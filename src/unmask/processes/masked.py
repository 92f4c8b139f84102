"""The masked process: a token becomes the mask once, at a time that one u fixes for its whole path.

A position is masked at t iff u >= gamma_t. So two times see nested views, and a plan that draws u before the first step
knows when every position is revealed.

Shapes: B sequences, L positions, M chosen positions, V states.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from unmask.core.devices import to_device
from unmask.core.errors import UserError
from unmask.processes.process import Pair, States, View, check_order, per_sequence, register_process
from unmask.processes.schedule import LogLinear, Schedule


def is_masked(u_BL: Tensor, gamma: Tensor | float) -> Tensor:
    """Masked at t iff u >= gamma_t (so that u = 0 at gamma = 0 is masked)."""
    return u_BL >= per_sequence(gamma, u_BL)


def stay_masked(gamma_s: Tensor, gamma_t: Tensor) -> Tensor:
    """P(masked at s | masked at t) = (1 - gamma_s) / (1 - gamma_t), s < t: the reverse posterior of a mask."""
    return (1 - gamma_s) / (1 - gamma_t)


def mask_of(states: States) -> int:
    if states.mask is None:
        raise UserError("the masked process needs a model with a mask state, and this one has none (it is causal, or "
                        "uniform, say)")  # fmt: skip
    return states.mask


def hide(x0_BL: Tensor, masked_BL: Tensor, states: States) -> Tensor:
    """The text with the mask where it is masked."""
    return torch.where(to_device(masked_BL, x0_BL.device), mask_of(states), x0_BL)


@register_process
@dataclass(frozen=True)
class Masked:
    """Absorbing-state diffusion: MDLM, SDTT, LLaDA, Dream.

    Args:
        schedule: gamma(t), the probability that a token is still visible at time t
    """

    schedule: Schedule = field(default_factory=LogLinear)

    name: ClassVar[str] = "masked"
    by_plan: ClassVar[bool] = True

    def condition(self, t: Tensor) -> None:
        """The masks themselves say how noisy a text is."""
        return None

    def prior(self, length: int, states: States, generator: torch.Generator) -> Tensor:
        return torch.full((length,), mask_of(states))

    def noise(self, u_BL: Tensor, states: States, generator: torch.Generator) -> Tensor:
        return u_BL

    def corrupt(self, x0_BL: Tensor, noise_BL: Tensor, t_B: Tensor, states: States) -> Tensor:
        """z_t = Mask(x_0, u, gamma_t)."""
        return hide(x0_BL, is_masked(noise_BL, self.schedule.gamma(t_B)), states)

    def couple(self, x0_BL: Tensor, noise_BL: Tensor, s_B: Tensor, t_B: Tensor, states: States) -> Pair:
        """Nested views. Masked in both, a token is distilled; masked at t only, it is reconstructed."""
        check_order(s_B, t_B)
        m_t, m_s = (is_masked(noise_BL, self.schedule.gamma(time)) for time in (t_B, s_B))
        z_t, z_s = (hide(x0_BL, masked, states) for masked in (m_t, m_s))
        return Pair(z_t, z_s, distil=m_s, reconstruct=m_t & ~m_s, s=s_B, t=t_B)

    def view(self, x0_BL: Tensor, noise_BL: Tensor, t_B: Tensor, states: States) -> View:
        """NELBO = E_t [ -gamma'(t) / (1 - gamma(t)) · sum over masked i of -log p(x_i | z_t) ]."""
        masked_BL = is_masked(noise_BL, self.schedule.gamma(t_B))
        return View(hide(x0_BL, masked_BL, states), masked_BL, self.schedule.elbo_weight(t_B))

    def posterior(self, log_p_MV: Tensor, z_M: Tensor, s: Tensor, t: Tensor, states: States) -> Tensor:
        """A mask stays with probability (1 - gamma_s)/(1 - gamma_t), else it becomes a token; a token stays itself."""
        mask = mask_of(states)
        stay = stay_masked(self.schedule.gamma(s), self.schedule.gamma(t)).to(log_p_MV).expand(len(z_M))[:, None]
        law_MV = log_p_MV + (1 - stay).log()
        law_MV = law_MV.scatter(-1, torch.full_like(z_M, mask)[:, None], stay.log())
        point_MV = torch.full_like(law_MV, -torch.inf).scatter_(-1, z_M[:, None], 0.0)
        return torch.where((z_M == mask)[:, None], law_MV, point_MV)
