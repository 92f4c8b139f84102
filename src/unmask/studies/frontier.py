"""The frontier: scores as functions of the sampler's own entropy along a path, and the speed-up at equal own entropy.

A path is one model on one plan as its temperature falls, or as its draw is cut (top-p): either buys the judge's favour
with entropy. So a number is put beside what the teacher gets at the same entropy, its own, -log q of what it drew, in
nats a byte. Between two points of a path a score is read off linearly; beyond the last one 'not bracketed' is the
answer.

At each NFE of the undistilled teacher on the student's own plan, the best of its paths, made to fall with log NFE, says
at which NFE n* it first reaches the student's nats; the speed-up is n* over the student's NFE. All cells are resampled
in every draw; one in which the student's entropy is not bracketed counts against both ends.

Shapes: D draws (the first is the value), P points of a path, N teacher NFEs, n texts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

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
    """The judge's nats where a path has the target's entropy; NaN where it never does.

    Linear in entropy over the monotone part of the path: from the hottest on, as long as entropy falls. Elsewhere the
    lower envelope: the best that any piece of the path offers at that entropy, which is the teacher's gain.
    """
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
    """A score of a student's texts and of the teacher's where its path has their own entropy.

    Linear in entropy between two points, the first pair that encloses it. None where there is no such score or pair.
    """
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


@dataclass(frozen=True)
class SpeedUp:
    """`relation` says how to read `value`: '=' itself, '>' or '<' a bound beyond which no teacher was run."""

    relation: str  # "=", ">", "<", or "not bracketed"
    value: float | None
    low: float | None  # None: no lower end above 0
    high: float | None  # None: no upper end
    n_star: float | None
    nfe: float
    bracketed: float  # share of draws in which the student's entropy was bracketed

    @property
    def faster(self) -> bool:
        """Whether 'x faster' may be said."""
        return self.value is not None and self.low is not None and self.low > 1

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "faster": self.faster}


def falling(value_ND: Tensor) -> Tensor:
    """The isotonic fit that never rises along N: min over i <= k of max over j >= k of mean(i..j). NaN is missing."""
    known_ND = value_ND.isfinite()
    total_ND = torch.where(known_ND, value_ND, 0).cumsum(0)
    count_ND = known_ND.double().cumsum(0)
    nothing_1D = torch.zeros_like(total_ND[:1])
    total_ND, count_ND = torch.cat([nothing_1D, total_ND]), torch.cat([nothing_1D, count_ND])
    fits = []
    for k in range(len(value_ND)):
        best_D = torch.full_like(value_ND[0], torch.inf)
        for i in range(k + 1):
            mean_JD = (total_ND[k + 1 :] - total_ND[i]) / (count_ND[k + 1 :] - count_ND[i])
            best_D = torch.minimum(best_D, mean_JD.nan_to_num(nan=-torch.inf).amax(0))
        fits.append(torch.where(known_ND[k], best_D, torch.nan))
    return torch.stack(fits)


@dataclass(frozen=True, eq=False)
class Reach:
    """log n* in every draw: inf where no NFE that was run is enough, -inf where the first one is, NaN if none is known.

    `least_D` and `most_D` are what is certain: between a point that is not bracketed and its neighbours, n* may lie
    anywhere.
    """

    log_n_D: Tensor
    least_D: Tensor
    most_D: Tensor


def first_reach(log_nfe_N: Tensor, fit_ND: Tensor, target_D: Tensor) -> Reach:
    """Where a falling curve first is as low as the target, linear in log NFE between known points."""
    missing_D = torch.full_like(target_D, torch.nan)
    found_D, last_nfe_D, last_fit_D = missing_D.clone(), missing_D.clone(), missing_D.clone()
    least_D, most_D = torch.full_like(target_D, -torch.inf), torch.full_like(target_D, torch.inf)
    broken_D = torch.zeros_like(target_D, dtype=torch.bool)  # a point since the last known one is missing
    for log_nfe, fit_D in zip(log_nfe_N, fit_ND, strict=True):
        known_D = fit_D.isfinite()
        first_D = known_D & last_fit_D.isnan()
        reaches_D = known_D & (fit_D <= target_D) & (found_D.isnan() | (found_D == torch.inf))
        share_D = (last_fit_D - target_D) / (last_fit_D - fit_D)
        between_D = last_nfe_D + share_D * (log_nfe - last_nfe_D)
        found_D = torch.where(reaches_D, torch.where(first_D, -torch.inf, between_D), found_D)
        least_D = torch.where(reaches_D & ~first_D, torch.where(broken_D, last_nfe_D, between_D), least_D)
        most_D = torch.where(reaches_D, torch.where(first_D | broken_D, log_nfe, between_D), most_D)
        found_D = torch.where(first_D & ~reaches_D, torch.inf, found_D)
        last_nfe_D, last_fit_D = torch.where(known_D, log_nfe, last_nfe_D), torch.where(known_D, fit_D, last_fit_D)
        broken_D = ~known_D
    return Reach(found_D, torch.where(found_D == torch.inf, last_nfe_D, least_D), most_D)


PathsByNFE = Mapping[float, Sequence[EntropyPath]]  # of the teacher on one plan, by NFE


def reference(teacher: PathsByNFE, entropy_D: Tensor) -> tuple[Tensor, Tensor]:
    """(log NFE, nats at this entropy) of the teacher, NFE rising; NaN where it is not bracketed."""
    order = sorted(teacher)
    log_nfe_N = torch.tensor([math.log(nfe) for nfe in order], dtype=torch.float64)
    return log_nfe_N, torch.stack([best_at(teacher[nfe], entropy_D) for nfe in order])


def speed_up(student: Resampled, nfe: float, teacher: PathsByNFE) -> SpeedUp:
    """Of a student's cell, against the teacher's paths by NFE, on the same plan."""
    log_nfe_N, value_ND = reference(teacher, student.entropy_D)
    fit_ND = falling(value_ND)
    reach = first_reach(log_nfe_N, fit_ND, student.nats_D)
    low, high = between((reach.least_D[1:] - math.log(nfe)).exp(), (reach.most_D[1:] - math.log(nfe)).exp())
    log_n, share = float(reach.log_n_D[0]), float((~reach.log_n_D.isnan()).double().mean())
    if math.isnan(log_n):
        return SpeedUp("not bracketed", None, None, None, None, nfe, share)
    relation = ">" if log_n == math.inf else "<" if log_n == -math.inf else "="
    n_star = math.exp({">": float(reach.least_D[0]), "<": float(reach.most_D[0]), "=": log_n}[relation])
    return SpeedUp(relation, n_star / nfe, low or None, high, n_star if relation == "=" else None, nfe, share)


def gap_at(student: Resampled, nfe: float, teacher: PathsByNFE) -> Interval:
    """The judge's nats a byte of the student less the teacher's at its NFE and own entropy; below 0 is its gain."""
    log_nfe_N, value_ND = reference(teacher, student.entropy_D)
    return Interval.of(student.nats_D - at_nfe(log_nfe_N, value_ND, nfe))


def at_nfe(log_nfe_N: Tensor, value_ND: Tensor, nfe: float) -> Tensor:
    """A curve at one NFE, linear in log NFE between points and NaN beyond them (1% beside a point is that point)."""
    log_target = math.log(nfe)
    nearest = int((log_nfe_N - log_target).abs().argmin())
    if abs(float(log_nfe_N[nearest]) - log_target) < 0.01:
        return value_ND[nearest]
    above = int((log_nfe_N > log_target).int().argmax())
    if log_target < float(log_nfe_N[0]) or log_target > float(log_nfe_N[-1]):
        return torch.full_like(value_ND[0], torch.nan)
    share = (log_target - log_nfe_N[above - 1]) / (log_nfe_N[above] - log_nfe_N[above - 1])
    return value_ND[above - 1] + share * (value_ND[above] - value_ND[above - 1])
