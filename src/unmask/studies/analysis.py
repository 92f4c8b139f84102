"""What the cells of an evaluation say together: speed-ups, gaps, the least path gap, one token a step, time.

Which plan is best, which temperature and which number of steps the headline is read at are settled without looking at
any student: the plan by the teacher alone, the highest temperature, the fewest steps. Shapes: D draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from statistics import fmean

import numpy as np
import torch

from unmask.metrics.score import DRAWS, Ratio, bootstrap, choose_least, difference
from unmask.studies.frontier import Interval, Resampled, at_equal_entropy, draw_cell, gap_at, speed_up
from unmask.studies.results import Bound, Cell, Json, Results

SAMENESS = ("self_bleu", "repeated_4")  # what equal entropy leaves out: compared with the teacher's beside the gap
RANDOM_ORDER = ("permutation", "iid")


def analyse(results: Results, *, seed: int = 0, draws: int = DRAWS) -> Results:
    """The same results with their analysis."""
    teacher = next(iter(results.named("teacher")), None)
    best = best_plan(results, teacher)
    analysis: Json = {
        "teacher": teacher,
        "temperature": results.temperature,
        "best_plan": best,
        "base_plan": "iid" if "iid" in results.plans else next(iter(results.plans), None),
        "draws": draws,
        "least_gap": least_gaps(results, seed, draws),
        "likelihood": likelihood_differences(results, teacher, seed, draws),
        "plan_likelihood": plan_differences(results, seed, draws),
        "one_token_a_step": one_token_a_step(results, seed, draws),
        "wall_clock": wall_clock(results, best),
        "caught": {cell.name: list(cell.suspicions.values()) for cell in results.cells if cell.suspicions},
    }
    analysis["comparisons"] = _comparisons(results, teacher, seed, draws) if teacher else []
    analysis["headline"] = headline(results, analysis)
    return replace(results, analysis=analysis)


def contenders(results: Results) -> list[str]:
    """Masked models that are compared with the teacher."""
    return results.named("student") + results.named("elbo")


def best_plan(results: Results, teacher: str | None) -> str | None:
    """The plan on which the control alone does best: by NELBO, else by R, else by the judge's nats.

    Plans are compared at the steps that all of them ran, those that ran in the fewest steps: one that stands in merged
    results for its many steps alone has nothing in common with the others.
    """
    model = teacher or next(iter(contenders(results)), None)

    def by_bounds(plan: str) -> dict[int | None, float]:
        bounds = [bound for bound in results.bounds if bound.key[:2] == (model, plan)]
        return {bound.steps: bound.scores["per_token"]["value"] for bound in bounds}

    def by_cells(score: str, plan: str) -> dict[int | None, float]:
        cells = results.where(model=model, plan=plan, temperature=results.temperature)
        known = {cell.steps: cell.value(score) for cell in cells if cell.steps in results.steps}
        return {steps: value for steps, value in known.items() if value is not None}

    def ran_few(plan: str) -> bool:
        fewest = results.steps[0]
        return fewest in by_bounds(plan) or bool(results.where(model=model, plan=plan, steps=fewest))

    kinds = (by_bounds, partial(by_cells, "path_gap"), partial(by_cells, "judge_nll"))
    plans = [plan for plan in results.plans if ran_few(plan)]
    tables = [{plan: kind(plan) for plan in plans} for kind in kinds]
    shared = [set.intersection(*map(set, table.values())) if table else set() for table in tables]

    def worth(plan: str) -> list[float]:
        return [sum(table[plan][steps] for steps in common) for table, common in zip(tables, shared, strict=True)]

    return min(plans, key=worth, default=None)


def _comparisons(results: Results, teacher: str, seed: int, draws: int) -> list[Json]:
    """Every student at the headline's temperature against the teacher on the same plan."""

    @cache
    def drawn(cell: Cell) -> Resampled:
        return draw_cell(cell, seed=seed, draws=draws)

    comparisons = []
    for plan in results.plans:
        steps = sorted({cell.steps for cell in results.where(model=teacher, plan=plan) if cell.steps})
        controls = {n: _controls(results, teacher, plan, n) for n in steps}
        nfe_of = {n: fmean(float(cell.nfe or 0) for cell in several["temperature"]) for n, several in controls.items()
                  if several["temperature"]}  # fmt: skip
        if not nfe_of:
            continue
        by_kind = {
            kind: {nfe: [list(map(drawn, controls[n][kind]))] for n, nfe in nfe_of.items()}
            for kind in ("temperature", "top_p") if any(len(several[kind]) > 1 for several in controls.values())
        }  # fmt: skip
        both = {nfe: [path for kind in by_kind.values() for path in kind[nfe]] for nfe in nfe_of.values()}
        for cell in _headline_cells(results, plan):
            student, nfe = drawn(cell), float(cell.nfe or 0)
            paths = controls.get(cell.steps or 0, {}).get("temperature", [])
            where = {"model": cell.model, "plan": plan, "steps": cell.steps, "temperature": cell.temperature}
            of_teacher = results.one(**{**where, "model": teacher})
            excused = of_teacher.suspicions if of_teacher else {}  # in what the teacher looks wrong too
            comparisons.append({
                **where,
                "nfe": nfe,
                "nats": float(student.nats_D[0]),
                "entropy": float(student.entropy_D[0]),
                "speed_up": speed_up(student, nfe, both).to_json(),
                "gap": asdict(gap_at(student, nfe, both)),
                "gap_to": {kind: asdict(gap_at(student, nfe, paths)) for kind, paths in by_kind.items()},
                "alike": {score: at_equal_entropy(cell, paths, score) for score in SAMENESS},
                "suspicions": [words for score, words in cell.suspicions.items() if score not in excused],
            })  # fmt: skip
    return comparisons


def _controls(results: Results, teacher: str, plan: str, steps: int) -> dict[str, list[Cell]]:
    """The teacher's paths in so many steps, the highest entropy first: by temperature, and by top-p at the
    headline's."""
    at = {"model": teacher, "plan": plan, "steps": steps}
    cells = [cell for cell in results.cells if cell.comparable and all(getattr(cell, k) == v for k, v in at.items())]
    heated = sorted((cell for cell in cells if cell.top_p == 1), key=lambda cell: -(cell.temperature or 0))
    cut = sorted((cell for cell in cells if cell.temperature == results.temperature), key=lambda cell: -cell.top_p)
    return {"temperature": heated, "top_p": cut}


def _headline_cells(results: Results, plan: str) -> list[Cell]:
    """The cells of the students on a plan that are compared: at the headline's temperature, judged."""
    at = {"plan": plan, "temperature": results.temperature}
    cells = [cell for name in contenders(results) for cell in results.where(model=name, **at)]
    return sorted((cell for cell in cells if cell.comparable and cell.steps in results.steps),
                  key=lambda c: c.steps or 0)  # fmt: skip


def credited(entry: Json) -> bool:
    """Whether 'x faster' may be said: beyond the interval, of texts that look no more wrong than the teacher's."""
    return bool(entry["speed_up"]["faster"] and not entry["suspicions"])


def least_gaps(results: Results, seed: int, draws: int) -> list[Json]:
    """R of every (model, plan, steps) at its best temperature: half of the texts choose it, the other half score it."""
    groups: dict[tuple[str, str | None, int | None], list[Cell]] = {}
    for cell in results.cells:
        if "path_gap" in cell.ratios and cell.top_p == 1:
            groups.setdefault((cell.model, cell.plan, cell.steps), []).append(cell)
    gaps = []
    for (model, plan, steps), cells in groups.items():
        chosen, unseen = choose_least([cell.ratios["path_gap"] for cell in cells])
        about: Json = {"model": model, "plan": plan, "steps": steps, "temperature": cells[chosen].temperature}
        about |= {"least_of": [cell.temperature for cell in cells], "count": len(unseen)}
        gaps.append({**about, **asdict(_interval(unseen, seed, draws))})
    return gaps


def _interval(ratio: Ratio, seed: int, draws: int) -> Interval:
    """A statistic with its interval, which has no ends where a single text cannot say how texts vary."""
    value_D = bootstrap([ratio], seed=seed, draws=draws)[:, 0]
    if len(ratio) < 2:
        value_D = torch.full_like(value_D, torch.nan)
    return Interval.of(torch.cat([torch.tensor([ratio.value], dtype=torch.float64), value_D]))


def likelihood_differences(results: Results, teacher: str | None, seed: int, draws: int) -> list[Json]:
    """NELBO of each student less the teacher's at the same plan and steps, paired over texts and plans."""
    mine = [bound for name in contenders(results) for bound in results.bounds if bound.model == name]
    pairs = [(bound, results.bound(teacher, bound.plan, bound.steps)) for bound in mine]
    return [_difference(bound, other, seed, draws) for bound, other in pairs if other and bound.pairs_with(other)]


def plan_differences(results: Results, seed: int, draws: int) -> list[Json]:
    """NELBO of each plan less that of the first one, of the same model in as many steps, paired over texts."""
    differences = []
    for bound in (bound for bound in results.bounds if bound.plan):
        other = results.bound(bound.model, results.plans[0], bound.steps)
        if other is not None and other is not bound and bound.pairs_with(other):
            differences.append({**_difference(bound, other, seed, draws), "to": other.plan})
    return differences


def one_token_a_step(results: Results, seed: int, draws: int) -> list[Json]:
    """NELBO of one token a step, where a model ran in so many steps: in random order, and in its best order.

    With each NELBO of the model in fewer steps less either, paired over texts.
    """
    length = int(results.settings["length"])
    rows = []
    for model in dict.fromkeys(bound.model for bound in results.bounds):
        mine = [bound for bound in results.bounds if bound.model == model and bound.plan]
        whole = {str(bound.plan): bound for bound in mine if bound.steps == length}
        usual = next((whole[plan] for plan in RANDOM_ORDER if plan in whole), None)
        if usual is None:
            continue
        best = min(whole.values(), key=lambda bound: bound.ratio.value)
        for order, one in (("random", usual), ("best", best)):
            less = [
                _difference(bound, one, seed, draws) for bound in mine if bound is not one and bound.pairs_with(one)
            ]
            nats = one.scores["per_token"]["value"]
            rows.append({"model": model, "order": order, "plan": one.plan, "nats": nats, "less": less})
    return rows


def _difference(bound: Bound, other: Bound, seed: int, draws: int) -> Json:
    score = difference(bound.ratio, other.ratio, "nats/token", {}, seed=seed, draws=draws)
    return {"model": bound.model, "plan": bound.plan, "steps": bound.steps, **score.plain()}


def wall_clock(results: Results, plan: str | None) -> list[Json]:
    """Each causal model against each student on the best plan, where the student takes as long to write a text."""
    pairs = []
    for ar in (cell for name in results.named("ar") for cell in results.where(model=name) if cell.seconds):
        for name in contenders(results):
            cells = results.where(model=name, plan=plan, temperature=results.temperature)
            seconds = (ar.seconds or 0) / ar.n
            pair: Json = {"ar": ar.model, "temperature": ar.temperature, "model": name, "plan": plan}
            pair |= {"seconds": seconds, "ar_nats": ar.value("judge_nll"), "ar_entropy": ar.value("sampler_entropy")}
            pairs.append({**pair, **_at_seconds(cells, seconds)})
    return pairs


def _at_seconds(cells: Sequence[Cell], seconds: float) -> Json:
    """The judge's nats and the own entropy, linear in log seconds between two cells; beyond them only a word."""
    timed = sorted(((cell.seconds / cell.n, cell) for cell in cells if cell.seconds), key=lambda one: one[0])
    if not timed or seconds < timed[0][0]:
        why = "every student cell took longer" if timed else "no student cell was timed"
        return {"found": why, "nats": None, "entropy": None, "nfe": None}
    times, order = zip(*timed, strict=True)

    def read(values: Sequence[float | None]) -> float | None:
        known = [math.nan if value is None else value for value in values]
        value = float(np.interp(math.log(seconds), np.log(times), known))
        return None if math.isnan(value) else value

    nats, entropy = (read([cell.value(score) for cell in order]) for score in ("judge_nll", "sampler_entropy"))
    log_nfe = read([cell.nfe and math.log(cell.nfe) for cell in order])
    nfe = None if log_nfe is None else math.exp(log_nfe)
    word = "=" if seconds <= times[-1] else "the student was done before"
    return {"found": word, "nats": nats, "entropy": entropy, "nfe": nfe}


def headline(results: Results, analysis: Json) -> Json | None:
    """The comparison that is quoted: the entry `student`, else the last student, on the best plan in fewest steps."""
    students = results.named("student")
    name = "student" if "student" in students else next(reversed(students), None)
    mine = [c for c in analysis["comparisons"] if c["model"] == name and c["plan"] == analysis["best_plan"]]
    return min(mine, key=lambda entry: entry["steps"], default=None)
