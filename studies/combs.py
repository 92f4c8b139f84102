"""Plans of the race in docs/studies/plans.md that did not become plans of the package: `--plugin studies/combs.py`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import unmask
from unmask.plans.laws import Comb, Rotation, Turning, Turns


@dataclass(frozen=True)
class Hop(Turning):
    """A comb that hops three places a step: its turn is 3 (1 + eps)/N."""

    drift: float = 0.5

    def turns(self, steps: int) -> Turns:
        ends = 3 / steps, 3 * (1 + self.drift / 3) / steps
        return [(1 - ends[1], 1 - ends[0])] if steps > 4 else Comb(self.drift).turns(steps)


@dataclass(frozen=True)
class Twice:
    """A comb that sweeps over every second class, then over those between."""

    drift: float = 0.5

    def __call__(self, B: int, L: int, generator: torch.Generator, steps: int | None) -> Tensor:
        assert steps is not None
        place_BL = Comb(self.drift)(B, L, generator, steps) * steps
        cell_BL = place_BL.long().clamp(max=steps - 1)
        first_BL = torch.where(cell_BL % 2 == 0, cell_BL // 2, (steps + 1) // 2 + cell_BL // 2)
        return (first_BL + place_BL - cell_BL) / steps


for drift in (0.0, 0.15, 0.3, 0.4, 0.6, 0.75, 1.0):
    unmask.register_plan(f"comb-{drift}", Comb(drift), for_steps=True)
unmask.register_plan("rising", Comb(rising=True), for_steps=True)
unmask.register_plan("rotation-4", Rotation(4), for_steps=True)
unmask.register_plan("hop", Hop(), for_steps=True)
unmask.register_plan("twice", Twice(), for_steps=True)
