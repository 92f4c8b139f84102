"""What the cells of an evaluation say together: speed-ups, gaps, the least path gap, equal wall-clock.

Which plan is best, which temperature and which number of steps the headline is read at are settled without looking at
any student: the plan by the teacher alone, the highest temperature, the fewest steps. Shapes: D draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from statistics import fmean

import torch

from unmask.metrics.score import DRAWS, Ratio, bootstrap, choose_least, difference
from unmask.studies.frontier import Drawn, Interval, alike, at_entropy, draw_cell
from unmask.studies.results import Bound, Cell, Json, Results
from unmask.studies.speedup import gap_at, speed_up


def analyse(results: Results, *, seed: int = 0, draws: int = DRAWS) -> Results:
    """The same results with their analysis."""
    teacher = next(iter(results.named("teacher")), None)
    best = best_plan(results, teacher)
    found: Json = {
        "teacher": teacher,
        "temperature": results.temperature,
        "best_plan": best,
        "base_plan": "iid" if "iid" in results.plans else next(iter(results.plans), None),
        "draws": draws,
        "least_gap": least_gaps(results, seed, draws),
        "likelihood": likelihood_differences(results, teacher, seed, draws),
        "plan_likelihood": plan_differences(results, seed, draws),
        "wall_clock": wall_clock(results, best),
        "caught": {cell.name: list(cell.suspicions) for cell in results.cells if cell.suspicions},
    }
    found["comparisons"] = _comparisons(results, teacher, seed, draws) if teacher else []
    found["headline"] = headline(results, found)
    return replace(results, analysis=found)


def contenders(results: Results) -> list[str]:
    """Masked models that are compared with the teacher."""
    return results.named("student") + results.named("elbo")


def best_plan(results: Results, teacher: str | None) -> str | None:
    """The plan on which the control alone does best: by NELBO, else by R, else by its entropy-blind log PPL.

    Plans are compared at the steps that all of them ran, those that ran in the fewest steps: one that stands in merged
    results for its many steps alone has nothing in common with the others.
    """
    model = teacher or next(iter(contenders(results)), None)

    def by_bounds(plan: str) -> dict[int | None, float]:
        bounds = [bound for bound in results.bounds if (bound.model, bound.plan) == (model, plan)]
        return {bound.steps: bound.scores["per_token"]["value"] for bound in bounds}

    def by_cells(score: str, plan: str) -> dict[int | None, float]:
        cells = results.where(model=model, plan=plan, temperature=results.temperature)
        known = {cell.steps: cell.value(score) for cell in cells if cell.steps in results.steps}
        return {steps: value for steps, value in known.items() if value is not None}

    def ran_few(plan: str) -> bool:
        fewest = results.steps[0]
        return fewest in by_bounds(plan) or bool(results.where(model=model, plan=plan, steps=fewest))

    kinds = (by_bounds, partial(by_cells, "path_gap"), partial(by_cells, "gen_ppl"))
    plans = [plan for plan in results.plans if ran_few(plan)]
    tables = [{plan: kind(plan) for plan in plans} for kind in kinds]
    shared = [set.intersection(*map(set, table.values())) if table else set() for table in tables]

    def worth(plan: str) -> list[float]:
        return [sum(table[plan][steps] for steps in common) for table, common in zip(tables, shared, strict=True)]

    return min(plans, key=worth, default=None)


def _comparisons(results: Results, teacher: str, seed: int, draws: int) -> list[Json]:
    """Every student at the headline's temperature against the teacher on the same plan."""

    @cache
    def drawn(cell: Cell) -> Drawn:
        return draw_cell(cell, seed=seed, draws=draws)

    def path(model: str, plan: str, steps: int) -> list[Cell]:
        cells = [cell for cell in results.where(model=model, plan=plan, steps=steps) if cell.judged]
        return sorted(cells, key=lambda cell: -(cell.temperature or 0))

    real = next((cell for cell in results.cells if results.models[cell.model]["role"] == "real"), None)
    found = []
    for plan in results.plans:
        teacher_steps = sorted({cell.steps for cell in results.where(model=teacher, plan=plan) if cell.steps})
        cells_by_steps = {steps: path(teacher, plan, steps) for steps in teacher_steps}
        known = [cells for cells in cells_by_steps.values() if cells]
        paths = {fmean(float(c.nfe or 0) for c in cells): [drawn(c) for c in cells] for cells in known}
        if not paths:
            continue
        for cell in _headline_cells(results, plan):
            student, nfe = drawn(cell), float(cell.nfe or 0)
            entry: Json = {
                **{"model": cell.model, "plan": plan, "steps": cell.steps, "temperature": cell.temperature, "nfe": nfe},
                "log_ppl": float(student.log_ppl_D[0]),
                "entropy": float(student.entropy_D[0]),
                "speed_up": speed_up(student, nfe, paths).to_json(),
                "gap": asdict(gap_at(student.log_ppl_D, nfe, paths, student.entropy_D)),
                "gap_at_real": None,
                "alike": alike(cell, cells_by_steps.get(cell.steps or 0, [])),
            }
            if real is not None and real.judged:
                entropy_D = drawn(real).entropy_D
                own_D = at_entropy([drawn(c) for c in path(cell.model, plan, cell.steps or 0)], entropy_D)
                entry["gap_at_real"] = asdict(gap_at(own_D, nfe, paths, entropy_D))
            found.append(entry)
    return found


def _headline_cells(results: Results, plan: str) -> list[Cell]:
    """The cells of the students on a plan that are compared: at the headline's temperature, judged."""
    at = {"plan": plan, "temperature": results.temperature}
    cells = [cell for name in contenders(results) for cell in results.where(model=name, **at)]
    return sorted((cell for cell in cells if cell.judged and cell.steps in results.steps), key=lambda c: c.steps or 0)


def least_gaps(results: Results, seed: int, draws: int) -> list[Json]:
    """R of every (model, plan, steps) at its best temperature: half of the texts choose it, the other half score it."""
    groups: dict[tuple[str, str | None, int | None], list[Cell]] = {}
    for cell in results.cells:
        if "gap" in cell.ratios:
            groups.setdefault((cell.model, cell.plan, cell.steps), []).append(cell)
    found = []
    for (model, plan, steps), cells in groups.items():
        chosen, unseen = choose_least([cell.ratios["gap"] for cell in cells])
        about: Json = {"model": model, "plan": plan, "steps": steps, "temperature": cells[chosen].temperature}
        about |= {"least_of": [cell.temperature for cell in cells], "count": len(unseen)}
        found.append({**about, **asdict(_interval(unseen, seed, draws))})
    return found


def _interval(ratio: Ratio, seed: int, draws: int) -> Interval:
    """A statistic with its interval, which has no ends where a single text cannot say how texts vary."""
    value_D = bootstrap([ratio], seed=seed, draws=draws)[:, 0]
    if len(ratio) < 2:
        value_D = torch.full_like(value_D, torch.nan)
    return Interval.of(torch.cat([torch.tensor([ratio.value], dtype=torch.float64), value_D]))


def likelihood_differences(results: Results, teacher: str | None, seed: int, draws: int) -> list[Json]:
    """NELBO of each student less the teacher's at the same plan and steps, paired over texts and plans."""
    by_key = {(bound.model, bound.plan, bound.steps): bound for bound in results.bounds}
    found = []
    for bound in (bound for name in contenders(results) for bound in results.bounds if bound.model == name):
        other = by_key.get((teacher or "", bound.plan, bound.steps))
        if other is not None and bound.pairs_with(other):
            found.append(_less(bound, other, seed, draws))
    return found


def plan_differences(results: Results, seed: int, draws: int) -> list[Json]:
    """NELBO of each plan less that of the first one, of the same model in as many steps, paired over texts."""
    by_key = {(bound.model, bound.plan, bound.steps): bound for bound in results.bounds if bound.plan}
    found = []
    for (model, _, steps), bound in by_key.items():
        other = by_key.get((model, results.plans[0], steps))
        if other is not None and other is not bound and bound.pairs_with(other):
            found.append({**_less(bound, other, seed, draws), "to": other.plan})
    return found


def _less(bound: Bound, other: Bound, seed: int, draws: int) -> Json:
    score = difference(bound.ratio, other.ratio, "nats/token", {}, seed=seed, draws=draws)
    return {"model": bound.model, "plan": bound.plan, "steps": bound.steps, **score.plain()}


def wall_clock(results: Results, plan: str | None) -> list[Json]:
    """Each causal model against each student on the best plan, where the student takes as long to write a text."""
    found = []
    for ar in (cell for name in results.named("ar") for cell in results.where(model=name) if cell.seconds):
        for name in contenders(results):
            cells = results.where(model=name, plan=plan, temperature=results.temperature)
            seconds = (ar.seconds or 0) / ar.n
            pair: Json = {"ar": ar.model, "temperature": ar.temperature, "model": name, "plan": plan}
            pair |= {"seconds": seconds, "ar_ppl": ar.value("gen_ppl"), "ar_entropy": ar.value("entropy")}
            found.append({**pair, **_at_seconds(cells, seconds)})
    return found


def _at_seconds(cells: Sequence[Cell], seconds: float) -> Json:
    """PPL and entropy read off linearly in log seconds between two cells; beyond them only a word."""
    order = sorted((cell for cell in cells if cell.seconds), key=lambda cell: (cell.seconds or 0) / cell.n)
    times = [(cell.seconds or 0) / cell.n for cell in order]
    if not order or seconds < times[0]:
        why = "every student cell took longer" if order else "no student cell was timed"
        return {"found": why, "ppl": None, "entropy": None, "nfe": None}
    if seconds > times[-1]:
        return {"found": "the student was done before", **_of(order[-1])}
    above = next(i for i, time in enumerate(times) if time >= seconds)
    below = max(above - 1, 0)
    share = 0.0 if above == below else math.log(seconds / times[below]) / math.log(times[above] / times[below])
    low, high = _of(order[below]), _of(order[above])

    def mix(name: str, log: bool) -> float | None:
        if low[name] is None or high[name] is None:
            return None
        if log:
            return math.exp((1 - share) * math.log(low[name]) + share * math.log(high[name]))
        return float((1 - share) * low[name] + share * high[name])

    return {"found": "=", "ppl": mix("ppl", True), "entropy": mix("entropy", False), "nfe": mix("nfe", True)}


def _of(cell: Cell) -> Json:
    return {"ppl": cell.value("gen_ppl"), "entropy": cell.value("entropy"), "nfe": cell.nfe}


def headline(results: Results, found: Json) -> Json | None:
    """The comparison that is quoted: the entry `student`, else the last student, on the best plan in fewest steps."""
    students = results.named("student")
    name = "student" if "student" in students else next(reversed(students), None)
    mine = [c for c in found["comparisons"] if c["model"] == name and c["plan"] == found["best_plan"]]
    return min(mine, key=lambda entry: entry["steps"], default=None)
