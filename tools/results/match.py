"""What it takes to match the teacher's many-step sampling, and differences that are paired over texts.

The yardstick is the teacher in the most forwards that were run on a plan of iid order (one token a step in a random
order is what iid sampling tends to), at the headline's temperature; a score that was not taken there says nothing.
How far a (model, plan, NFE) is from it is read in five ways. At equal entropy, `gen_ppl_cooled` and `path_gap_cooled`:
each (model, plan, steps) is cooled along its own temperatures until its texts are as diverse as the yardstick's, as
somebody who uses it would. At the headline's temperature: `gen_ppl`, against the yardstick heated or cooled to the
other's entropy; `path_gap`; and `nelbo`, the N-step NELBO on the same texts. Over NFE each distance is made to fall,
and n* is where it first is nought, linear in log NFE. Everything is done again in every draw of the bootstrap.

Refuses to know files and pages. Shapes: D draws (the first is the value), N step counts of a curve, P points of a
temperature path, S seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from statistics import mean
from typing import Any, NamedTuple

import torch
from tools.results.names import parse
from torch import Tensor

from unmask.metrics.score import Ratio, independent, paired_draws
from unmask.studies.analysis import contenders
from unmask.studies.frontier import Drawn, Interval, at_entropy, between, cell_name, draw_cell
from unmask.studies.results import Bound, Cell, Json, Results
from unmask.studies.speedup import falling, first_reach

IID_ORDER = ("iid", "permutation")  # plans that reveal in a uniformly random order
COOLED = {"gen_ppl_cooled": "gen_ppl", "path_gap_cooled": "path_gap"}  # readings at equal entropy, and those at T = 1
NOT_BRACKETED: Json = {"relation": "not bracketed", "value": None, "low": None, "high": None}
Place = tuple[str, str, int]  # model, plan, steps


class Point(NamedTuple):
    steps: int
    nfe: float
    n: int  # texts
    distance_D: Tensor
    temperature: float | None = None  # at which the yardstick's entropy is met, where that was sought


def matches(results: Results, seed: int) -> list[Json]:
    """One entry for every score, model and plan; empty without a teacher."""
    place = yardstick(results)
    return [*_by_cells(results, place, seed), *_by_bounds(results, place, seed)] if place else []


def yardstick(results: Results) -> Place | None:
    """The teacher's most forwards on a plan of iid order; on the base plan where none was run."""
    teacher, base = results.analysis.get("teacher"), results.analysis.get("base_plan")
    cells = results.where(model=teacher, temperature=results.temperature)
    entries: list[Cell | Bound] = [*cells, *(bound for bound in results.bounds if bound.model == teacher)]
    of_chance = [entry for entry in entries if entry.steps and entry.plan in IID_ORDER]
    rivals = of_chance or [entry for entry in entries if entry.steps and entry.plan == base]
    most = max(rivals, key=lambda entry: entry.nfe or entry.steps or 0, default=None)
    return (most.model, most.plan or "", most.steps or 0) if most else None


def _place(entry: Cell | Bound) -> tuple[str, str | None, int | None]:
    return entry.model, entry.plan, entry.steps


def _yardstick_json(results: Results, place: Place, nfe: float | None, n: int) -> Json:
    """`length` tells one token a step from many."""
    model, plan, steps = place
    return {"model": model, "plan": plan, "steps": steps, "nfe": nfe, "n": n, "length": results.settings["length"]}


def _entry(score: str, model: str, plan: str, of: Json, points: Sequence[Point]) -> Json:
    """A curve, and the NFE at which it is as good as the yardstick."""
    points = sorted(points, key=lambda point: point.nfe)
    log_nfe_N = torch.tensor([math.log(point.nfe) for point in points], dtype=torch.float64)
    distance_ND = torch.stack([point.distance_D for point in points])
    reach = first_reach(log_nfe_N, falling(distance_ND), torch.zeros_like(distance_ND[0]))
    found, needs = float(reach.log_n_D[0]), NOT_BRACKETED
    if not math.isnan(found):
        relation = ">" if found == math.inf else "<" if found == -math.inf else "="
        edge = {">": float(reach.least_D[0]), "<": float(reach.most_D[0]), "=": found}[relation]
        low, high = between(reach.least_D[1:].exp(), reach.most_D[1:].exp())
        needs = {"relation": relation, "value": math.exp(edge), "low": low or None, "high": high}
    curve = [_point_json(point) for point in points]
    return {"score": score, "model": model, "plan": plan, "yardstick": of, "needs": needs, "curve": curve}


def _point_json(point: Point) -> Json:
    said: Json = {"steps": point.steps, "nfe": point.nfe, "n": point.n}
    said |= {} if point.temperature is None else {"temperature": point.temperature}
    return said | {"distance": _triple(Interval.of(point.distance_D))}


def _triple(interval: Interval) -> list[float | None]:
    return [interval.value, interval.low, interval.high]


# --- by samples ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Path:
    """The cells of one (model, plan, steps), hottest first."""

    model: str
    plan: str | None
    steps: int | None
    cells: list[Cell]

    @classmethod
    def all_of(cls, cells: Iterable[Cell]) -> list[Path]:
        found: dict[tuple[str, str | None, int | None], list[Cell]] = {}
        for cell in sorted(cells, key=lambda cell: -(cell.temperature or 0)):
            found.setdefault(_place(cell), []).append(cell)
        return [cls(model, plan, steps, mine) for (model, plan, steps), mine in found.items()]


class Reader:
    """Reads cells, and paths of cells, against the yardstick's cell."""

    def __init__(self, most: Cell, own: Path, seed: int) -> None:
        self.most, self.own = most, own
        self.drawn: Callable[[Cell], Drawn] = cache(partial(draw_cell, seed=seed))
        self.gap_D: Callable[[Cell], Tensor] = cache(partial(_with_value, seed=seed))

    def log_ppl_D(self, cell: Cell) -> Tensor:
        return self.drawn(cell).log_ppl_D

    def gen_ppl(self, cell: Cell) -> Point:
        """Against the yardstick heated or cooled to the cell's entropy."""
        path = [self.drawn(other) for other in self.own.cells]
        at_D = self.log_ppl_D(cell) if cell is self.most else at_entropy(path, self.drawn(cell).entropy_D)
        return Point(cell.steps or 0, cell.nfe or 0.0, cell.n, self.log_ppl_D(cell) - at_D)

    def path_gap(self, cell: Cell) -> Point:
        return Point(cell.steps or 0, cell.nfe or 0.0, cell.n, self.gap_D(cell) - self.gap_D(self.most))

    def gen_ppl_cooled(self, path: Path) -> Point | None:
        return self._cooled(path, self.log_ppl_D)

    def path_gap_cooled(self, path: Path) -> Point | None:
        return self._cooled(path, self.gap_D)

    def _cooled(self, path: Path, score_D: Callable[[Cell], Tensor]) -> Point | None:
        """A score where a path has the yardstick's entropy, less the yardstick's; None where it never has."""
        target_D = self.drawn(self.most).entropy_D
        cells = [self.most] * 2 if path is self.own else path.cells  # it meets itself at its own temperature
        entropy_PD = torch.stack([self.drawn(cell).entropy_D for cell in cells])
        score_PD = torch.stack([score_D(cell) for cell in cells])
        temperature_P1 = torch.tensor([[cell.temperature or 0.0] for cell in cells], dtype=torch.float64)
        found_D = first_crossing(entropy_PD, score_PD, target_D)
        temperature_D = first_crossing(entropy_PD, temperature_P1.expand_as(entropy_PD), target_D)
        if found_D[0].isnan():
            return None
        nfe, at = mean(cell.nfe or 0.0 for cell in cells), float(temperature_D[0])
        hotter = min((c for c in cells if (c.temperature or 0.0) >= at), key=lambda c: c.temperature or 0.0)
        cooler = max((c for c in cells if (c.temperature or 0.0) <= at), key=lambda c: c.temperature or 0.0)
        return Point(path.steps or 0, nfe, min(hotter.n, cooler.n), found_D - score_D(self.most), at)


def _by_cells(results: Results, place: Place, seed: int) -> list[Json]:
    """By Gen PPL and path gap, as they are and at equal entropy."""
    judged = [cell for cell in results.cells if cell.judged and cell.steps and cell.nfe]
    hot = [cell for cell in judged if cell.temperature == results.temperature]
    most = next((cell for cell in hot if _place(cell) == place), None)
    if most is None:
        return []
    paths = Path.all_of(judged)
    own = next(path for path in paths if most in path.cells)
    reader, of = Reader(most, own, seed), _yardstick_json(results, place, most.nfe, most.n)
    readings: list[tuple[Callable[[Any], Point | None], Sequence[Any]]] = [(reader.gen_ppl, hot)]
    readings += [(reader.path_gap, hot)] if _have_gap(hot) else []
    if any(reader.gen_ppl_cooled(path) for path in paths if path is not own):
        readings += [(reader.gen_ppl_cooled, paths)]
        readings += [(reader.path_gap_cooled, paths)] if _have_gap(judged) else []
    found = []
    for read, entries in readings:
        for key, mine in _curves(results, entries).items():
            points = [point for point in map(read, mine) if point is not None]
            found += [_entry(read.__name__, *key, of, points)] if points else []
    return found


def _have_gap(cells: Sequence[Cell]) -> bool:
    return all("gap" in cell.ratios for cell in cells)


def first_crossing(entropy_PD: Tensor, value_PD: Tensor, target_D: Tensor) -> Tensor:
    """What goes along with entropy on a path, where from the hottest on it first has the target's; NaN where never.

    Linear between two temperatures. `at_entropy` reads log PPL alike where entropy falls all the way; where noise makes
    it rise it takes the best piece, but this one takes the first, so that all scores are read at one temperature.
    """
    if len(entropy_PD) < 2:
        return torch.full_like(target_D, torch.nan)
    above_PD, below_PD = entropy_PD[:-1], entropy_PD[1:]
    on_it_PD = (torch.minimum(above_PD, below_PD) <= target_D) & (target_D <= torch.maximum(above_PD, below_PD))
    way_PD = torch.where(above_PD == below_PD, 0, (target_D - above_PD) / (below_PD - above_PD))
    read_PD = value_PD[:-1] + way_PD * (value_PD[1:] - value_PD[:-1])
    first_1D = on_it_PD.int().argmax(0, keepdim=True)
    return torch.where(on_it_PD.any(0), read_PD.gather(0, first_1D)[0], torch.nan)


# --- by likelihood ---------------------------------------------------------------------------------------------------


def _by_bounds(results: Results, place: Place, seed: int) -> list[Json]:
    """By N-step NELBO, paired over texts."""
    most = next((bound for bound in results.bounds if _place(bound) == place), None)
    if most is None:
        return []
    same = [bound for bound in results.bounds if bound.steps and bound.pairs_with(most)]

    def point(bound: Bound) -> Point:
        nfe, n = float(bound.nfe or bound.steps or 0), len(bound.ratio)
        return Point(bound.steps or 0, nfe, n, _paired(bound.ratio, most.ratio, seed))

    of = _yardstick_json(results, place, most.nfe, len(most.ratio))
    return [_entry("nelbo", *key, of, [point(b) for b in bounds]) for key, bounds in _curves(results, same).items()]


def _curves(results: Results, entries: Sequence[Cell | Bound | Path]) -> dict[tuple[str, str], list[Any]]:
    """The teacher's and every student's entries by (model, plan)."""
    wanted = {results.analysis["teacher"], *contenders(results)}
    curves: dict[tuple[str, str], list[Any]] = {}
    for entry in entries:
        if entry.model in wanted and entry.plan:
            curves.setdefault((entry.model, entry.plan), []).append(entry)
    return curves


def _with_value(cell: Cell, seed: int) -> Tensor:
    """A cell's path gap, then its draws: they go with those of its entropy and Gen PPL, but with no other cell's."""
    gap = cell.ratios["gap"]
    return torch.cat(
        [torch.tensor([gap.value], dtype=torch.float64), independent([gap], cell_name(cell), seed=seed)[:, 0]]
    )


def _paired(a: Ratio, b: Ratio, seed: int) -> Tensor:
    return torch.cat([torch.tensor([a.value - b.value], dtype=torch.float64), paired_draws(a, b, seed=seed)])


# --- arms of several training seeds ----------------------------------------------------------------------------------


def by_arm(entries: Sequence[Json]) -> list[Json]:
    """Entries of `matches` with the training seeds of an arm (ARM-sSEED) as one: the worst seed's n*, and at every
    point the mean over seeds, every seed, and the ends of an interval that holds those of all seeds.

    A reading at equal entropy has every point that was run at T = 1: what is not bracketed for all seeds is None.
    """
    models: dict[str, set[str]] = {}
    for entry in entries:
        models.setdefault(_arm(entry["model"]), set()).add(entry["model"])
    return [
        _of_arm(score, readings, models[arm])
        for score in dict.fromkeys(entry["score"] for entry in entries)
        for (arm, _), readings in _groups(entries, score).items()
    ]


def _of_arm(score: str, readings: Sequence[Json], models: set[str]) -> Json:
    """Seeds of one arm on one plan. `readings` are theirs of this score and, at equal entropy, also those at T = 1."""
    first, told = readings[0], [entry for entry in readings if entry["score"] == score]
    needs = sorted((entry["needs"] for entry in told), key=_demand)
    if len(told) < len({entry["model"] for entry in readings}):  # a seed that is nowhere bracketed
        needs = [NOT_BRACKETED]
    said = {"model": _arm(first["model"]) if len(models) > 1 else first["model"], "seeds": len(models)}
    said |= {"needs": needs[-1], "best": needs[0], "curve": _over_seeds(told, readings)}
    return {**first, "score": score, **said}


def _arm(model: str) -> str:
    return model if parse(model).seed is None else model.rsplit("-s", 1)[0]


def _groups(entries: Sequence[Json], score: str) -> dict[tuple[str, str], list[Json]]:
    """Entries by arm and plan that have this score, or would have it if they were bracketed."""
    found: dict[tuple[str, str], list[Json]] = {}
    for entry in entries:
        if entry["score"] in (score, COOLED.get(score)):
            found.setdefault((_arm(entry["model"]), entry["plan"]), []).append(entry)
    return found


def _demand(needs: Json) -> tuple[bool, bool, float]:
    """Sorts by how many forwards are needed: never known, not reached, then by number."""
    return needs["value"] is None, needs["relation"] == ">", needs["value"] or 0.0


def _over_seeds(told: Sequence[Json], readings: Sequence[Json]) -> list[Json]:
    """A curve over seeds, with every number of steps that a seed was run with."""
    ran: dict[int, dict[str, Json]] = {}
    for entry in readings:
        for point in entry["curve"]:
            ran.setdefault(point["steps"], {})[entry["model"]] = point
    curve = []
    for steps, points in ran.items():
        mine = [point for entry in told for point in entry["curve"] if point["steps"] == steps]
        each = sorted(point["distance"][0] for point in mine if point["distance"][0] is not None)
        facts = {"steps": steps, "nfe": mean(point["nfe"] for point in points.values()), "seeds": len(points)}
        sizes = {"n": min(point["n"] for point in points.values())} if all("n" in p for p in points.values()) else {}
        warm = sorted(point["temperature"] for point in mine if "temperature" in point)
        distance = _hull(mine) if len(each) == len(points) else [None, None, None]
        curve.append({**facts, **sizes, "distance": distance, "each": each, "temperatures": warm})
    return sorted(curve, key=lambda point: point["nfe"])


def _hull(points: Sequence[Json]) -> list[float | None]:
    """The mean of several values, and what holds all their intervals."""
    values, lows, highs = zip(*(point["distance"] for point in points), strict=True)
    return [mean(values), None if None in lows else min(lows), None if None in highs else max(highs)]


def against(results: Results, seed: int) -> list[Json]:
    """NELBO and R of every arm less the first one's, where models are named ARM-sSEED: the mean over training seeds.

    NELBO is paired over texts; the samples of two models have nothing in common, so R is not. The interval is over
    texts; the values of single seeds say how much the training's own chance matters.
    """

    def gap(a: Cell, b: Cell) -> Tensor:
        return _with_value(a, seed) - _with_value(b, seed)

    hot = [c for c in results.cells if c.temperature == results.temperature and "gap" in c.ratios]
    return [
        *_differences("nelbo", results.bounds, lambda a, b: _paired(a.ratio, b.ratio, seed), Bound.pairs_with),
        *_differences("path_gap", hot, gap),
    ]


def _differences(
    score: str,
    entries: Sequence[Any],
    difference: Callable[[Any, Any], Tensor],
    comparable: Callable[[Any, Any], bool] = lambda a, b: True,
) -> list[Json]:
    """Of every arm to the first in the alphabet, at every plan and number of steps that both were run with."""
    by_key: dict[tuple[str, str | None, int | None, int], Any] = {}
    for entry in entries:
        if (named := parse(entry.model)).seed is not None:
            by_key[named.arm, entry.plan, entry.steps, named.seed] = entry
    first = min((key[0] for key in by_key), default="")
    found = []
    for arm, plan, steps in dict.fromkeys(key[:3] for key in by_key if key[0] != first):
        both = sorted(s for *place, s in by_key if place == [arm, plan, steps] and (first, plan, steps, s) in by_key)
        found_of = {s: (by_key[arm, plan, steps, s], by_key[first, plan, steps, s]) for s in both}
        pairs = {s: pair for s, pair in found_of.items() if comparable(*pair)}
        if not pairs:
            continue
        difference_SD = torch.stack([difference(a, b) for a, b in pairs.values()])
        place = {"score": score, "arm": arm, "to": first, "plan": plan, "steps": steps, "seeds": list(pairs)}
        mean = _triple(Interval.of(difference_SD.mean(0)))
        found.append({**place, "difference": mean, "each": difference_SD[:, 0].tolist()})
    return found
