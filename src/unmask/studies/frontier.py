"""The frontier: the judge's nats a byte, and other scores, as functions of the sampler's own entropy along a path.

A path is one model on one plan as its temperature falls, or as its draw is cut (top-p): either buys the judge's favour
with entropy. So a number is put beside what the teacher gets at the same entropy, its own, -log q of what it drew, in
nats a byte. Between two points of a path a score is read off linearly; beyond the last one 'not bracketed' is the
answer. Every quantity comes with its bootstrap draws, row 0 being the value itself.

Shapes: D draws (the first is the value), P points of a path, n texts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from unmask.metrics.score import DRAWS, LEVEL, independent
from unmask.studies.results import Cell, Json

ENDS = ("value", "low", "high")


@dataclass(frozen=True, eq=False)
class Resampled:
    """A cell's own entropy and the judge's nats, both a byte, in every draw, resampled together text by text."""

    entropy_D: Tensor
    nats_D: Tensor


EntropyPath = Sequence[Resampled]  # the highest entropy first


@dataclass(frozen=True)
class Interval:
    """A value with its 95% interval; None where it could not be read off, or the interval has no end."""

    value: float | None
    low: float | None
    high: float | None

    @classmethod
    def of(cls, value_D: Tensor) -> Interval:
        """From draws that may be missing (NaN): a missing one may lie anywhere and widens both ends."""
        value = float(value_D[0])
        low_D = value_D[1:].nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
        high_D = value_D[1:].nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)
        return cls(_finite(value), *between(low_D, high_D))


def between(low_D: Tensor, high_D: Tensor) -> tuple[float | None, float | None]:
    """The lower end of the one and the upper end of the other. Sorted, because quantiles of infinities are NaN."""
    tail = round((1 - LEVEL) / 2 * len(low_D))
    low, high = float(low_D.sort().values[tail]), float(high_D.sort().values[-1 - tail])
    return _finite(low), _finite(high)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def draw_cell(cell: Cell, *, seed: int = 0, draws: int = DRAWS) -> Resampled:
    """Bootstrap a cell: texts are drawn with replacement, each with its log q and its judge's nats."""
    both = [cell.ratios["sampler_entropy"], cell.ratios["judge_nll"]]
    value_1R = torch.tensor([[ratio.value for ratio in both]], dtype=torch.float64)
    value_DR = torch.cat([value_1R, independent(both, cell.name, seed=seed, draws=draws)])
    return Resampled(value_DR[:, 0], value_DR[:, 1])


def best_at(paths: Sequence[EntropyPath], target_D: Tensor) -> Tensor:
    """The least nats that any of several paths has at the target's entropy: the teacher's best control."""
    found_D = torch.full_like(target_D, torch.nan)
    for path in paths:
        found_D = found_D.fmin(at_entropy(path, target_D))
    return found_D


def at_entropy(path: EntropyPath, target_D: Tensor) -> Tensor:
    """The judge's nats where a path has the target's entropy, linear over its monotone part, from the hottest on; NaN
    where it never does. Elsewhere the lower envelope, the best that any piece offers there, which is the teacher's
    gain."""
    if len(path) < 2:
        return torch.full_like(target_D, torch.nan)
    entropy_PD = torch.stack([point.entropy_D for point in path])
    nats_PD = torch.stack([point.nats_D for point in path])
    above_PD, below_PD = entropy_PD[:-1], entropy_PD[1:]
    on_it_PD = (torch.minimum(above_PD, below_PD) <= target_D) & (target_D <= torch.maximum(above_PD, below_PD))
    share_PD = torch.where(above_PD == below_PD, 0, (target_D - above_PD) / (below_PD - above_PD))
    read_PD = nats_PD[:-1] + share_PD * (nats_PD[1:] - nats_PD[:-1])
    falling_PD = (below_PD < above_PD).int().cumprod(0).bool()
    monotone_D = torch.where(on_it_PD & falling_PD, read_PD, torch.inf).amin(0)
    envelope_D = torch.where(on_it_PD, read_PD, torch.inf).amin(0)
    found_D = torch.where(monotone_D.isfinite(), monotone_D, envelope_D)
    return torch.where(found_D.isfinite(), found_D, torch.nan)


def at_equal_entropy(cell: Cell, path: Sequence[Cell], score: str) -> Json | None:
    """A score of a student's texts and of the teacher's where its path has their own entropy, linear between the first
    pair of points that encloses it; None where there is no such score or pair."""
    target = cell.value("sampler_entropy")
    if target is None or any(one.value(name) is None for one in (cell, *path) for name in (score, "sampler_entropy")):
        return None
    for hot, cool in pairwise(path):
        above, below = hot.scores["sampler_entropy"]["value"], cool.scores["sampler_entropy"]["value"]
        if min(above, below) <= target <= max(above, below):
            share = 0.0 if above == below else (target - above) / (below - above)
            student, start, stop = (one.scores[score] for one in (cell, hot, cool))
            if any(one[end] is None for one in (student, start, stop) for end in ENDS):
                return None
            teacher = {end: (1 - share) * start[end] + share * stop[end] for end in ENDS}
            student = {end: student[end] for end in ENDS}
            return {"student": student, "teacher": teacher, "differ": _differ(student, teacher)}
    return None


def _differ(one: Json, other: Json) -> bool:
    """Whether two values of independent texts are surely apart."""
    half = math.hypot(*((score["high"] - score["low"]) / 2 for score in (one, other)))
    return abs(one["value"] - other["value"]) > half
