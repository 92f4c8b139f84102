"""Laws of u. Position i is revealed when gamma passes u_i, so a law of u is a law of orders.

In every plan each u_i by itself is uniform on [0, 1); plans differ in how positions go together. Spreading u evenly
over positions keeps neighbours out of one step, where drawing them independently is worst. Positions are never
wrapped modulo L, so any length works and no two ends are taken for neighbours.

Shapes: B sequences, L positions, C intervals of turns.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor

from unmask.core.errors import UserError, check_name

GOLDEN = (math.sqrt(5) - 1) / 2
Turns = list[tuple[float, float]]  # intervals of [0, 1) that do not overlap, or one point
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


def parse_settings(text: str, known: Collection[str]) -> dict[str, Any]:
    """Settings as they follow a plan's name: NAME=VALUE, with commas between them."""
    given = dict(part.partition("=")[::2] for part in text.split(","))
    for name in given:
        check_name("setting of a plan", name, known)
    try:
        return {name: json.loads(value) for name, value in given.items()}
    except ValueError as error:
        raise UserError(f"settings of a plan are NAME=VALUE with commas between them, not {text}") from error


class Turning:
    """u_i = frac(shift + i turn), as golden, but with a turn of each text's own, uniform over intervals.

    `choices` are settings that `fit-plan` tries beside the usual ones.
    """

    choices: ClassVar[tuple[str, ...]] = ()

    def turns(self, steps: int) -> Turns:
        """The intervals for N steps."""
        raise NotImplementedError

    def distance(self, steps: int) -> int:
        """The promise of Locked."""
        raise NotImplementedError

    def with_settings(self, text: str) -> Turning:
        """The same law with other settings: NAME=VALUE, with commas between them."""
        return replace(self, **parse_settings(text, vars(self)))  # type: ignore[type-var]

    def __call__(self, B: int, L: int, generator: torch.Generator, steps: int | None) -> Tensor:
        assert steps is not None, "Locked.draw asks for them"
        shift_B1, share_B1 = _uniform((B, 1), generator), _uniform((B, 1), generator)
        low_C, high_C = torch.tensor(self.turns(steps), dtype=torch.float64).T
        end_C = (high_C - low_C).cumsum(0)
        at_B1 = share_B1 * end_C[-1]
        which_B1 = torch.bucketize(at_B1, end_C, right=True).clamp(max=len(end_C) - 1)
        turn_B1 = high_C[which_B1] - (end_C[which_B1] - at_B1)
        return ((torch.arange(L) * turn_B1).frac() + shift_B1).frac()


@dataclass(frozen=True)
class Comb(Turning):
    """Teeth about N apart that sweep and drift: u falls (or rises) by (1 + eps)/N a position, eps ~ U(0, drift).

    Each step reveals the neighbours of what the step before revealed. Without drift positions N apart always share a
    step. In 2 steps or fewer there is none: it would put neighbours together.
    """

    drift: float = 0.5
    rising: bool = False
    # a smaller drift is likelier still, and has lags that it cannot copy: docs/studies/plans.md
    choices: ClassVar[tuple[str, ...]] = (
        "drift=0.75", "drift=1", "rising=true", "drift=0.75,rising=true", "drift=1,rising=true",
    )  # fmt: skip

    def __post_init__(self) -> None:
        if not (isinstance(self.drift, (int, float)) and 0 <= self.drift <= 1 and isinstance(self.rising, bool)):
            raise UserError("comb takes a drift between 0 and 1, and rising=true or false")

    def turns(self, steps: int) -> Turns:
        ends = 1 / steps, (1 + self.drift * (steps > 2)) / steps
        return [ends if self.rising else (1 - ends[1], 1 - ends[0])]

    def distance(self, steps: int) -> int:
        """The least q whose turn may come within 1/N of a whole one: q (1 + drift) > N - 1."""
        return math.floor((steps - 1) / (1 + self.drift * (steps > 2))) + 1


@dataclass(frozen=True)
class Rotation(Turning):
    """Any turn that keeps positions up to K apart out of one step: ||k turn|| >= 1/N for k <= K = N/2, at most `most`.

    ||x|| is the distance from x to the nearest whole number. In 2 steps a turn is a half.
    """

    most: int = 12
    choices: ClassVar[tuple[str, ...]] = ("most=4", "most=8")

    def __post_init__(self) -> None:
        if not (isinstance(self.most, int) and self.most >= 1):
            raise UserError(f"rotation takes most=1 or more, not {self.most}")

    def turns(self, steps: int) -> Turns:
        return [(1 / steps, 1 / steps)] if steps <= 2 else _allowed(steps, min(steps // 2, self.most))

    def distance(self, steps: int) -> int:
        return steps if steps <= 2 else min(steps // 2, self.most) + 1


@lru_cache
def _allowed(steps: int, K: int) -> Turns:
    """Where ||k turn|| >= 1/N for all k <= K."""
    edges = {(whole + side / steps) / k for k in range(1, K + 1) for whole in range(k + 1) for side in (-1, 1)}
    k_K1 = torch.arange(1, K + 1)[:, None]
    cuts = [(a, b) for a, b in pairwise(sorted({0.0, 1.0, *(edge for edge in edges if 0 < edge < 1)}))]
    turned_KC = k_K1 * torch.tensor([(a + b) / 2 for a, b in cuts], dtype=torch.float64)
    apart_KC = (turned_KC - turned_KC.round()).abs()
    return [cut for cut, far in zip(cuts, (apart_KC >= 1 / steps).all(0).tolist(), strict=True) if far]


def golden_distance(steps: int) -> int:
    """The smallest q with |q/phi - nearest integer| < 1/N: 1, 2, 3, 5, 8, ... as N grows."""
    q = 1
    while abs(q * GOLDEN - round(q * GOLDEN)) >= 1 / steps:
        q += 1
    return q
