"""The plain ancestral sampler, as published: the whole (positions x vocabulary) table at every step, the mask state
competing with the tokens in one Gumbel race, and argmax for what is left at the end.

It stands here to be measured against (law and speed), and because in fp32 it has a bias that users want to reproduce:
fp32 noise has no tail (its smallest -log u is 6e-8), so the race is a little too sure. Everything else in this folder
reveals by schedule and cannot have that bias.

Shapes: B sequences, L positions, V states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from unmask.models.denoiser import MASK_LOGIT
from unmask.processes.schedule import LogLinear, Schedule


class BodyAndHead(Protocol):
    def features(self, z_RL: Tensor) -> Tensor: ...
    def logits(self, h_MD: Tensor) -> Tensor: ...


Noise = Callable[[torch.Size, torch.dtype], Tensor]  # uniforms in [0, 1) of a shape (B, L, V)


def masked_shares(times: tuple[float, ...], schedule: Schedule) -> tuple[float, ...]:
    """The share still masked at each time, up to a factor: only ratios count.

    Under the log-linear schedule that is the time itself. The published code divides times, so no other form of the
    same number will do: a last bit would be another race.
    """
    if isinstance(schedule, LogLinear):
        return times
    return tuple((1 - schedule.gamma(torch.tensor(times, dtype=torch.float64))).tolist())


def ancestral(
    model: BodyAndHead, z_BL: Tensor, masked: tuple[float, ...], *, states: int, mask_id: int, temperature: float,
    dtype: torch.dtype, noise: Noise,
) -> Iterator[Tensor]:  # fmt: skip
    """z after every step from one masked share to the next, and after the noise removal at the end."""
    for at_t, at_s in pairwise(masked):
        race_BLV = token_probabilities(model, z_BL, states, mask_id, temperature, dtype)
        # P(masked at s | masked at t) is the ratio of the shares; the tokens have the rest
        race_BLV *= 1 - at_s / at_t
        race_BLV[..., mask_id] = at_s / at_t
        race_BLV /= noise(race_BLV.shape, dtype).clamp_(min=torch.finfo(dtype).tiny).log_().neg_()
        z_BL = torch.where(z_BL == mask_id, race_BLV.argmax(-1), z_BL)
        yield z_BL
    p_BLV = token_probabilities(model, z_BL, states, mask_id, temperature, dtype)
    yield torch.where(z_BL == mask_id, p_BLV.argmax(-1), z_BL)


def token_probabilities(
    model: BodyAndHead, z_BL: Tensor, states: int, mask_id: int, temperature: float, dtype: torch.dtype
) -> Tensor:
    """p(x_0) at every position under the carry-over rule, in place on one table of the whole vocabulary."""
    # up to the vocabulary, not to the mask: padding takes no noise, and a mask need not be the last state
    p_BLV = model.logits(model.features(z_BL))[..., :states].to(dtype, copy=True)
    if temperature != 1:
        p_BLV /= temperature
    p_BLV[..., mask_id] = MASK_LOGIT
    p_BLV -= p_BLV.logsumexp(-1, keepdim=True)
    p_BLV.exp_()
    visible_BL = z_BL != mask_id
    p_BLV[visible_BL] = 0
    p_BLV[visible_BL, z_BL[visible_BL]] = 1
    return p_BLV
