"""Draws by Gumbel noise: the token is the argmax of log-weight + noise, with one noise for each position and state.

The noise is a function of a position's key and of the state, so that it can be computed anew for any block of positions
and states, on any device, and need not be kept. What it gains over one uniform a position: a law that changes a little
seldom changes the token.

Shapes: M positions, V states.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from unmask.inference.categorical import Draw, Law, shape_logits

# the mixing function of SplitMix64 and its step; as int64, whose products wrap around
_STEP = 0x9E3779B97F4A7C15 - 2**64
_FIRST, _SECOND = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64


def _down(x: Tensor, bits: int) -> Tensor:
    """The logical shift to the right; torch's keeps the sign."""
    return (x >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _mixed(x: Tensor) -> Tensor:
    """SplitMix64's mixing: every bit of the result hangs on every bit of x. In place, twice as fast on a CPU."""
    x = (x ^ _down(x, 30)).mul_(_FIRST)
    x = x.bitwise_xor_(_down(x, 27)).mul_(_SECOND)
    return x.bitwise_xor_(_down(x, 31))


def keys_of(uniform_M: Tensor) -> Tensor:
    """A key for each position from its float64 uniform, which names seed, sample and position."""
    return _mixed(uniform_M.double().contiguous().view(torch.int64))


def uniforms_of(uniform_M: Tensor, kind: int) -> Tensor:
    """Another float64 uniform for each position, of its own: one for every kind."""
    return (_down(_mixed(_mixed(keys_of(uniform_M) + kind + 1)), 11).double() + 0.5) * 2.0**-53


@lru_cache
@torch.inference_mode(False)
def offsets_of(states: int, device: torch.device | None = None) -> Tensor:
    """What each state adds to a key. Made outside of what is compiled: the compiler would make it of 32-bit indices."""
    return torch.arange(1, states + 1, device=device) * _STEP


def gumbel(key_M: Tensor, step_V: Tensor) -> Tensor:
    """Standard Gumbel noise of every state at every position, (M, V) float64."""
    bits_MV = _mixed(key_M[:, None] + step_V)
    uniform_MV = _down(bits_MV, 11).double().add_(0.5).mul_(2.0**-53)
    return uniform_MV.log_().neg_().log_().neg_()


def pick(shaped_MV: Tensor, key_M: Tensor, step_V: Tensor) -> Draw:
    """One state a position, of log-weights."""
    return pick_with(shaped_MV, gumbel(key_M.to(shaped_MV.device), step_V))


def pick_with(shaped_MV: Tensor, noise_MV: Tensor) -> Draw:
    """The same with the noise at hand."""
    token_M = (shaped_MV + noise_MV.to(shaped_MV.dtype)).argmax(-1)
    log_q_M = shaped_MV.gather(1, token_M[:, None])[:, 0] - shaped_MV.logsumexp(-1)
    return Draw(token_M, log_q_M, shaped_MV.dtype)


def draw(
    logits_MV: Tensor, key_M: Tensor, step_V: Tensor, mask_id: int | None, law: Law, heat_M: Tensor | None = None
) -> Draw:
    """One token a position from the law that logits are shaped into."""
    return pick(shape_logits(logits_MV, mask_id, law, heat_M), key_M, step_V)
