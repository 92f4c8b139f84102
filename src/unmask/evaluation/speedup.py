"""Speed-up at matched entropy: how many steps the teacher needs to write as well as the student does, and as diversely.

The reference is the undistilled teacher on the student's own plan. At each of its NFE the temperature path gives the
log PPL it has at the student's entropy (frontier.py); made to fall with log NFE, that curve says at which NFE n* the
teacher first reaches the student's log PPL. The speed-up is n* over the student's NFE. All cells are resampled in every
draw, so the interval knows the noise of both sides; a draw in which the student's entropy is not bracketed counts
against both ends.

Refuses to know models, files and words beyond a verdict. Shapes: D draws (the first is the value), N teacher NFEs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from unmask.evaluation.frontier import Drawn, Interval, at_entropy, between


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

    def __str__(self) -> str:
        if self.value is None:
            return "not bracketed: no teacher temperature has this entropy"
        sign = "" if self.relation == "=" else f"{self.relation} "
        ends = f"[{_end(self.low, '0')}, {_end(self.high, '∞')}]"
        if self.faster:
            return f"{sign}{self.value:.2f}x faster {ends}"
        return f"no speed-up shown: {sign}{self.value:.2f}x {ends}"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "faster": self.faster, "words": str(self)}


def _end(value: float | None, otherwise: str) -> str:
    return otherwise if value is None else f"{value:.2f}"


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


def first_reach(log_nfe_N: Tensor, fit_ND: Tensor, target_D: Tensor) -> tuple[Tensor, Tensor]:
    """(log n*, at its first point): where a falling curve first is as low as the target, linear in log NFE.

    inf where it never is, -inf where its first known point already is below; NaN where no point is known. The second
    result is the log NFE of the first known point.
    """
    found_D = torch.full_like(target_D, torch.nan)
    first_D, last_nfe_D, last_fit_D = found_D.clone(), found_D.clone(), found_D.clone()
    for log_nfe, fit_D in zip(log_nfe_N, fit_ND, strict=True):
        known_D = fit_D.isfinite()
        begins_D = known_D & first_D.isnan()
        first_D = torch.where(begins_D, log_nfe, first_D)
        reaches_D = known_D & (fit_D <= target_D) & ~found_D.isfinite() & (found_D != -torch.inf)
        share_D = (last_fit_D - target_D) / (last_fit_D - fit_D)
        between_D = last_nfe_D + share_D * (log_nfe - last_nfe_D)
        found_D = torch.where(reaches_D, torch.where(begins_D, -torch.inf, between_D), found_D)
        found_D = torch.where(begins_D & ~reaches_D, torch.inf, found_D)
        last_nfe_D = torch.where(known_D, log_nfe, last_nfe_D)
        last_fit_D = torch.where(known_D, fit_D, last_fit_D)
    return found_D, first_D


def reference(teacher: Mapping[float, Sequence[Drawn]], entropy_D: Tensor) -> tuple[Tensor, Tensor]:
    """(log NFE, log PPL at this entropy) of the teacher, NFE rising; NaN where it is not bracketed."""
    order = sorted(teacher)
    log_nfe_N = torch.tensor([math.log(nfe) for nfe in order], dtype=torch.float64)
    return log_nfe_N, torch.stack([at_entropy(teacher[nfe], entropy_D) for nfe in order])


def speed_up(student: Drawn, nfe: float, teacher: Mapping[float, Sequence[Drawn]]) -> SpeedUp:
    """Of a student's cell, against the teacher's temperature paths (hottest first) by NFE, on the same plan."""
    log_nfe_N, value_ND = reference(teacher, student.entropy_D)
    fit_ND = falling(value_ND)
    log_n_D, log_first_D = first_reach(log_nfe_N, fit_ND, student.log_ppl_D)
    log_last_D = torch.where(fit_ND.isfinite(), log_nfe_N[:, None], -torch.inf).amax(0)
    # what is certain in each draw: at least this, at most that
    least_D = torch.where(log_n_D == torch.inf, log_last_D, log_n_D).nan_to_num(nan=-torch.inf, neginf=-torch.inf)
    most_D = torch.where(log_n_D == -torch.inf, log_first_D, log_n_D).nan_to_num(nan=torch.inf, posinf=torch.inf)
    low, high = between((least_D[1:] - math.log(nfe)).exp(), (most_D[1:] - math.log(nfe)).exp())
    found, share = float(log_n_D[0]), float((~log_n_D.isnan()).double().mean())
    if math.isnan(found):
        return SpeedUp("not bracketed", None, None, None, None, nfe, share)
    relation = ">" if found == math.inf else "<" if found == -math.inf else "="
    edge = {">": float(log_last_D[0]), "<": float(log_first_D[0]), "=": found}[relation]
    n_star = math.exp(edge)
    return SpeedUp(relation, n_star / nfe, low or None, high, n_star if relation == "=" else None, nfe, share)


def gap_at(
    student_log_ppl_D: Tensor, nfe: float, teacher: Mapping[float, Sequence[Drawn]], entropy_D: Tensor
) -> Interval:
    """log PPL of the student less the teacher's at this NFE and entropy; below 0 is the student's gain.

    The teacher is read off linearly in log NFE between its two nearest ones; beyond them not at all.
    """
    log_nfe_N, value_ND = reference(teacher, entropy_D)
    return Interval.of(student_log_ppl_D - at_nfe(log_nfe_N, value_ND, nfe))


def at_nfe(log_nfe_N: Tensor, value_ND: Tensor, nfe: float) -> Tensor:
    """A curve over log NFE at one NFE (1% beside a point still is that point)."""
    wanted = math.log(nfe)
    nearest = int((log_nfe_N - wanted).abs().argmin())
    if abs(float(log_nfe_N[nearest]) - wanted) < 0.01:
        return value_ND[nearest]
    above = int((log_nfe_N > wanted).int().argmax())
    if wanted < float(log_nfe_N[0]) or wanted > float(log_nfe_N[-1]):
        return torch.full_like(value_ND[0], torch.nan)
    share = (wanted - log_nfe_N[above - 1]) / (log_nfe_N[above] - log_nfe_N[above - 1])
    return value_ND[above - 1] + share * (value_ND[above] - value_ND[above - 1])
