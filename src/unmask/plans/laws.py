"""Laws of u. Position i is revealed when gamma passes u_i, so a law of u is a law of orders.

In every plan each u_i by itself is uniform on [0, 1); plans differ in how positions go together. Spreading u evenly
over positions keeps neighbours out of one step, where drawing them independently is worst. Positions are never
wrapped modulo L, so any length works and no two ends are taken for neighbours.

Shapes: B sequences, L positions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

GOLDEN = (math.sqrt(5) - 1) / 2
_BITS = 53  # of a float64 in [0, 1)


def _uniform(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def iid(B: int, L: int, generator: torch.Generator, steps: int | None) -> Tensor:
    """Independent positions: the law of MDLM, SDTT and Duo."""
    return _uniform((B, L), generator)


def permutation(B: int, L: int, generator: torch.Generator, steps: int | None) -> Tensor:
    """A random order, one position in each interval of length 1/L: equal counts, no spacing."""
    rank_BL = _uniform((B, L), generator).argsort(dim=1)
    return (rank_BL + _uniform((B, L), generator)) / L


def golden(B: int, L: int, generator: torch.Generator, steps: int | None) -> Tensor:
    """u_i = frac(shift + i/phi). An offset of the positions would only be another shift."""
    turns_L = torch.arange(L, dtype=torch.float64) * GOLDEN
    return (turns_L + _uniform((B, 1), generator)).frac()


def van_der_corput(B: int, L: int, generator: torch.Generator, steps: int | None) -> Tensor:
    """u_i = the bits of i mirrored at the binary point, each flipped by a random digital shift of the sequence."""
    position_L = torch.arange(L)
    mirrored_L = torch.zeros(L, dtype=torch.int64)
    for bit in range(max(1, (L - 1).bit_length())):
        mirrored_L |= ((position_L >> bit) & 1) << (_BITS - 1 - bit)
    shift_B1 = torch.randint(1 << _BITS, (B, 1), generator=generator)
    return (mirrored_L ^ shift_B1).double() / (1 << _BITS)


def stride(B: int, L: int, generator: torch.Generator, steps: int | None) -> Tensor:
    """Residue classes modulo `steps` in random order: step k of N reveals every N-th position."""
    assert steps is not None, "draw_u asks for them"
    order_BN = _uniform((B, steps), generator).argsort(dim=1)
    return (order_BN[:, torch.arange(L) % steps] + _uniform((B, L), generator)) / steps


def dilated(B: int, L: int, generator: torch.Generator, steps: int | None) -> Tensor:
    """Coarse lattice first, then the points halfway between, and so on (dilated unmasking), with a random offset.

    The lattice has the period P = 2^m >= L, so a randomly offset line of L positions meets each residue at most once.
    """
    m = max(1, (L - 1).bit_length())
    P = 1 << m
    residue_P = torch.arange(P)
    lowest_bit_P = residue_P & -residue_P  # 2^(trailing zeros); residue 0 is the coarsest point of all
    level_P = torch.where(residue_P == 0, -1, m - 1 - lowest_bit_P.clamp(min=1).double().log2().round().long())
    in_order_BP = (level_P + _uniform((B, P), generator)).argsort(dim=1)  # by level, at random within one
    rank_BP = torch.empty_like(in_order_BP).scatter_(1, in_order_BP, residue_P.expand(B, P))
    offset_B1 = torch.randint(P, (B, 1), generator=generator)
    rank_BL = rank_BP.gather(1, (torch.arange(L) + offset_B1) % P)
    return (rank_BL + _uniform((B, L), generator)) / P


def golden_distance(steps: int) -> int:
    """The smallest q with |q/phi - nearest integer| < 1/N: 1, 2, 3, 5, 8, ... as N grows."""
    q = 1
    while abs(q * GOLDEN - round(q * GOLDEN)) >= 1 / steps:
        q += 1
    return q
