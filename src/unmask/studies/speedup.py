"""Speed-up at equal own entropy: how many steps the teacher needs to write as well as the student does, as broadly.

At each NFE of the undistilled teacher on the student's own plan, its paths give the judge's nats a byte at the
student's own entropy, the best of them (frontier.py). Made to fall with log NFE, that curve says at which NFE n* the
teacher first reaches the student's nats; the speed-up is n* over the student's NFE. All cells are resampled in every
draw; one in which the student's entropy is not bracketed counts against both ends.

Shapes: D draws (the first is the value), N teacher NFEs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from unmask.studies.frontier import EntropyPath, Interval, Resampled, best_at, between


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
