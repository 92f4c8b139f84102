"""What it takes to match the teacher's many-step sampling, and differences that are paired over texts.

The yardstick is the teacher on the base plan (iid) in the most steps that were run, at the headline's temperature; a
score that was not taken there says nothing. Three
scores say how far a (model, plan, NFE) is from it: log Gen PPL at equal entropy, read off the yardstick's temperature
path; path gap R; N-step NELBO on the same texts. Over NFE each distance is made to fall, and n* is where it first is
nought, linear in log NFE. Everything is done again in every draw of the bootstrap.

Refuses to know files and pages. Shapes: D draws (the first is the value), N step counts of a curve, S seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from tools.results.names import parse
from torch import Tensor

from unmask.evaluation.analysis import contenders
from unmask.evaluation.frontier import Drawn, Interval, at_entropy, between, cell_name, draw_cell
from unmask.evaluation.results import Bound, Cell, Json, Results
from unmask.evaluation.score import Ratio, bootstrap, independent
from unmask.evaluation.speedup import falling, first_reach

Point = tuple[int, float, Tensor]  # steps, NFE, distance_D


def matches(results: Results, seed: int) -> list[Json]:
    """One entry for every score, model and plan; empty without a teacher."""
    teacher, base = results.analysis.get("teacher"), results.analysis.get("base_plan")
    if teacher is None:
        return []
    entries: list[Cell | Bound] = [*results.cells, *results.bounds]
    most = max((entry.steps or 0 for entry in entries if (entry.model, entry.plan) == (teacher, base)), default=0)
    return [*_by_cells(results, teacher, base, most, seed), *_by_bounds(results, teacher, base, most, seed)]


def _entry(score: str, model: str, plan: str, yardstick: Json, points: Sequence[Point]) -> Json:
    """A curve, and the NFE at which it is as good as the yardstick."""
    points = sorted(points, key=lambda point: point[1])
    log_nfe_N = torch.tensor([math.log(nfe) for _, nfe, _ in points], dtype=torch.float64)
    distance_ND = torch.stack([distance_D for _, _, distance_D in points])
    reach = first_reach(log_nfe_N, falling(distance_ND), torch.zeros_like(distance_ND[0]))
    found = float(reach.log_n_D[0])
    needs: Json = {"relation": "not bracketed", "value": None, "low": None, "high": None}
    if not math.isnan(found):
        relation = ">" if found == math.inf else "<" if found == -math.inf else "="
        edge = {">": float(reach.least_D[0]), "<": float(reach.most_D[0]), "=": found}[relation]
        low, high = between(reach.least_D[1:].exp(), reach.most_D[1:].exp())
        needs = {"relation": relation, "value": math.exp(edge), "low": low or None, "high": high}
    curve = [
        {"steps": steps, "nfe": nfe, "distance": _triple(Interval.of(distance_D))} for steps, nfe, distance_D in points
    ]
    return {"score": score, "model": model, "plan": plan, "yardstick": yardstick, "needs": needs, "curve": curve}


def _triple(interval: Interval) -> list[float | None]:
    return [interval.value, interval.low, interval.high]


def _by_cells(results: Results, teacher: str, base: str | None, steps: int, seed: int) -> list[Json]:
    """By Gen PPL at equal entropy, and by path gap."""
    judged = [cell for cell in results.cells if cell.judged and cell.steps and cell.nfe]
    hot = [cell for cell in judged if cell.temperature == results.temperature]
    most = next((cell for cell in hot if (cell.model, cell.plan, cell.steps) == (teacher, base, steps)), None)
    if most is None:
        return []
    path_cells = [cell for cell in judged if (cell.model, cell.plan, cell.steps) == (teacher, base, most.steps)]

    @cache
    def drawn(cell: Cell) -> Drawn:
        return draw_cell(cell, seed=seed)

    @cache
    def gap_D(cell: Cell) -> Tensor:
        return _with_value(cell, seed)

    path = [drawn(cell) for cell in sorted(path_cells, key=lambda cell: -(cell.temperature or 0))]

    def by_ppl(cell: Cell) -> Tensor:
        at_D = drawn(most).log_ppl_D if cell is most else at_entropy(path, drawn(cell).entropy_D)
        return drawn(cell).log_ppl_D - at_D

    def by_gap(cell: Cell) -> Tensor:
        return gap_D(cell) - gap_D(most)

    distances: dict[str, Callable[[Cell], Tensor]] = {"gen_ppl": by_ppl}
    if all("gap" in cell.ratios for cell in hot):
        distances["path_gap"] = by_gap
    yardstick = {"model": teacher, "plan": base, "steps": most.steps, "nfe": most.nfe, "n": most.n}
    return [
        _entry(score, *key, yardstick, [(c.steps or 0, c.nfe or 0.0, distance(c)) for c in cells])
        for score, distance in distances.items()
        for key, cells in _curves(results, teacher, hot).items()
    ]


def _by_bounds(results: Results, teacher: str, base: str | None, steps: int, seed: int) -> list[Json]:
    """By N-step NELBO, paired over texts."""
    most = next((b for b in results.bounds if (b.model, b.plan, b.steps) == (teacher, base, steps)), None)
    if most is None:
        return []
    same = [bound for bound in results.bounds if bound.steps and len(bound.ratio) == len(most.ratio)]

    def distance(bound: Bound) -> Tensor:
        return _paired(bound.ratio, most.ratio, seed)

    yardstick = {"model": teacher, "plan": base, "steps": most.steps, "nfe": most.nfe, "n": len(most.ratio)}
    return [
        _entry("nelbo", *key, yardstick, [(b.steps or 0, float(b.nfe or b.steps or 0), distance(b)) for b in bounds])
        for key, bounds in _curves(results, teacher, same).items()
    ]


def _curves(results: Results, teacher: str, entries: Sequence[Cell | Bound]) -> dict[tuple[str, str], list[Any]]:
    """The teacher's and every student's entries by (model, plan)."""
    wanted = {teacher, *contenders(results)}
    curves: dict[tuple[str, str], list[Any]] = {}
    for entry in entries:
        if entry.model in wanted and entry.plan:
            curves.setdefault((entry.model, entry.plan), []).append(entry)
    return curves


def _with_value(cell: Cell, seed: int) -> Tensor:
    """A cell's path gap, then its draws, which go together with no other cell's."""
    gap = cell.ratios["gap"]
    return torch.cat(
        [torch.tensor([gap.value], dtype=torch.float64), independent([gap], cell_name(cell), seed=seed)[:, 0]]
    )


def _paired(a: Ratio, b: Ratio, seed: int) -> Tensor:
    value_DR = bootstrap([a, b], seed=seed)
    return torch.cat([torch.tensor([a.value - b.value], dtype=torch.float64), value_DR[:, 0] - value_DR[:, 1]])


def against(results: Results, seed: int) -> list[Json]:
    """NELBO and R of every arm less the first one's, where models are named ARM-sSEED: the mean over training seeds.

    NELBO is paired over texts; the samples of two models have nothing in common, so R is not. The interval is over
    texts; the values of single seeds say how much the training's own chance matters.
    """

    def gap(a: Cell, b: Cell) -> Tensor:
        return _with_value(a, seed) - _with_value(b, seed)

    hot = [c for c in results.cells if c.temperature == results.temperature and "gap" in c.ratios]
    return [
        *_differences("nelbo", results.bounds, lambda a, b: _paired(a.ratio, b.ratio, seed)),
        *_differences("path_gap", hot, gap),
    ]


def _differences(score: str, entries: Sequence[Any], difference: Callable[[Any, Any], Tensor]) -> list[Json]:
    """Of every arm to the first in the alphabet, at every plan and number of steps that both were run with."""
    by_key: dict[tuple[str, str | None, int | None, int], Any] = {}
    for entry in entries:
        if (named := parse(entry.model)).seed is not None:
            by_key[named.arm, entry.plan, entry.steps, named.seed] = entry
    first = min((key[0] for key in by_key), default="")
    found = []
    for arm, plan, steps in dict.fromkeys(key[:3] for key in by_key if key[0] != first):
        seeds = sorted(s for *place, s in by_key if place == [arm, plan, steps] and (first, plan, steps, s) in by_key)
        if not seeds:
            continue
        pairs = [(by_key[arm, plan, steps, s], by_key[first, plan, steps, s]) for s in seeds]
        difference_SD = torch.stack([difference(a, b) for a, b in pairs])
        place = {"score": score, "arm": arm, "to": first, "plan": plan, "steps": steps, "seeds": seeds}
        mean = _triple(Interval.of(difference_SD.mean(0)))
        found.append({**place, "difference": mean, "each": difference_SD[:, 0].tolist()})
    return found
