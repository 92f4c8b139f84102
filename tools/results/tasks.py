"""The tasks that need no judge (studies/tasks): what is kept of a run, its tables and its figure.

A score is a share of n texts, each right or wrong, so n and the share are all that single texts would say; of equations
it is kept how many texts have so many lines right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from tools.results.figure import CHOICES, STYLE, svg
from tools.results.runs import NOTHING, PLANS, Json, Run, Runs, Table, not_yet, values

HEADS = {"plain": "", "chain": " +", "places": " *", "blind": " ×"}  # and their marks in a table
STUDENTS = {"mcd": ":", "sdtt": "-."}  # and their lines
KEPT = (
    "model", "plan", "steps", "n", "nfe", "seconds", "rounds", "precision", "scores", "score", "whole", "different",
    "entropy", "entropy_stderr", "chi_square", "texts",
)  # fmt: skip
LOOKS = {**CHOICES, "permutation": ("#5c6470", "X"), "confidence": ("#2e7d32", "h"), "left_to_right": ("#c2185b", "<")}
WAYS = {"comb 2": "`comb` in 2", "comb 4": "in 4", "comb 8": "in 8", "permutation 16": "one token a step"}
LOST = {
    "model": "no head", "model, the end given": "no head, the end given", "chain": "head",
    "chain, the end given": "head, the end given", "placed": "head that knows the place",
    "placed, the end given": "the same, the end given",
}  # fmt: skip
LARGE = "shadows-sudoku4-large"
TASKS = {  # the run, and what is right: in the figure, in a table; a run that is not there yet has neither
    "tasks-sudoku4-cpu": ("4 x 4 Sudoku, % of grids valid", "4 x 4 grids"),
    "tasks-sudoku4": ("the same, a head of 33 seconds", "4 x 4 grids"),
    "tasks-records": ("records, % right", "records"),
    "tasks-sudoku9": ("9 x 9 Sudoku, % of grids valid", "9 x 9 grids"),
    "tasks-equations": ("sums of six digits, % of lines right", "lines"),
}
SIGNS = "0123456789abcdefg"  # of a text in collect.py: so many of its 16 lines are right


def kept(said: Json) -> Json:
    """Of what studies/tasks/collect.py wrote: every cell but its single texts; of two alike the larger."""
    model = said["model"]
    machine = {name: model[name] for name in ("unmask", "revision", "torch", "python", "device", "time")}
    if said["task"] == "equations":
        said["cells"] = [c | {"texts": [c["per_text"].count(sign) for sign in SIGNS]} for c in said["cells"]]
    control = said["control"].items()
    control = {name: [{key: row[key] for key in row if key != "per_text"} for row in rows] for name, rows in control}
    largest = {(c["model"], c["plan"], c["steps"]): c for c in sorted(said["cells"], key=lambda c: c["n"])}
    cells = [{name: largest[place][name] for name in KEPT if name in largest[place]} for place in sorted(largest)]
    shape, trainer = model["config"]["model"], model["config"]["trainer"]
    scored = model["score"] if model["step"] == trainer["steps"] else None  # ended early it was last scored before
    return {
        "task": said["task"], "seed": said["seed"], "machine": [machine],
        "model": {"shape": shape, "trainer": trainer, "steps": model["step"], "held_out": scored},
        "cells": cells, "control": control,
    }  # fmt: skip


def cell(run: Run, model: str, plan: str, steps: int) -> Json | None:
    """One cell, if it was measured."""
    wanted = (model, plan, steps)
    return next((c for c in run.said["cells"] if (c["model"], c["plan"], c["steps"]) == wanted), None)


def right(one: Json | None) -> str:
    """The share of right texts in per cent, ± half of its 95% interval (Wilson's, which also serves near 0 and 1)."""
    return NOTHING if one is None else f"{100 * share(one):.1f} ± {100 * half_of(one):.1f}"


def _per_cent(one: Json | None) -> list[float] | None:
    """The same as a value with both ends of its interval."""
    return None if one is None else [100 * (share(one) + end * half_of(one)) for end in (0, -1, 1)]


def share(one: Json) -> float:
    """Of the texts of a cell that are right, or of their lines."""
    return float(one["scores"][one["score"]])


def half_of(one: Json) -> float:
    """Half of the 95% interval of a share: of right texts, or of the mean of texts that are right in parts."""
    if "texts" not in one:
        return wilson(one)
    parts = len(one["texts"]) - 1
    squares = sum(count * (i / parts - share(one)) ** 2 for i, count in enumerate(one["texts"]))
    return 1.96 * math.sqrt(squares / max(one["n"] - 1, 1) / one["n"])


def wilson(one: Json) -> float:
    """Half of the interval: z / (1 + z²/n) sqrt(p (1 - p) / n + z² / 4n²)."""
    p, n, z = share(one), one["n"], 1.96
    return z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))


def _plans(run: Run) -> list[str]:
    return [plan for plan in LOOKS if any(c["plan"] == plan for c in run.said["cells"])]


def shares(run: Run, unit: str) -> Table:
    """Right texts of every plan and number of steps, without the head and with it."""
    found = {(c["model"], c["steps"]) for c in run.said["cells"] if c["model"] in HEADS}
    heads = sorted(found, key=lambda head: (list(HEADS).index(head[0]), head[1]))
    best = {plan: max(share(c) for c in run.said["cells"] if c["plan"] == plan) for plan in _plans(run)}
    cells = {
        PLANS.get(plan, f"`{plan}`"): [_per_cent(cell(run, model, plan, n)) for model, n in heads]
        for plan in sorted(best, key=lambda plan: (-best[plan], plan))
    }
    texts = sorted({c["n"] for c in run.said["cells"]})
    kinds = [c["different"] / c["whole"] for c in run.said["cells"] if c["whole"]]
    alike = f" Of the right texts of a cell at least {min(kinds):.1%} differ." if kinds and "4 x 4" not in unit else ""
    others = {"places": ", with * one that knows the place", "blind": ", with × one that is blind to its step's tokens"}
    control = "".join(words for kind, words in others.items() if any(model == kind for model, _ in heads))
    note = (
        f"Right {unit} in per cent, {' or '.join(f'{n:,}' for n in texts)} a cell; ± is half of the 95% interval; "
        f"a number of steps with + has the head{control}. A dash was not measured.{alike}"
    )
    return Table(note, ["plan \\ steps", *(f"{n}{HEADS[model]}" for model, n in heads)], values(cells, 1, sign=False))


def task(name: str, runs: Runs) -> Table:
    """Of one task, once it was run."""
    return shares(runs[name], TASKS[name][1]) if name in runs else not_yet(TASKS[name][0].split(",")[0])


def tasks_control(runs: Runs) -> Table:
    """The puzzles that every plan solves."""
    rows = runs["tasks-sudoku9"].said["control"].get("plain", []) if "tasks-sudoku9" in runs else []
    if not rows:
        return not_yet("9 x 9 puzzles with givens")
    found = {(row["plan"], row["steps"]): f"{100 * row['solved']:.1f}" for row in rows}
    counts = sorted({steps for _, steps in found})
    plans = dict.fromkeys(plan for plan, _ in found)
    lines = [[PLANS.get(plan, f"`{plan}`"), *(found.get((plan, n), NOTHING) for n in counts)] for plan in plans]
    note = f"Puzzles of 30 givens and one solution, per cent solved of {rows[0]['n']:,}, without the head."
    return Table(note, ["plan \\ steps", *map(str, counts)], lines)


def tasks_students(runs: Runs) -> Table:
    """What distillation adds where each answer is checked."""
    rows = []
    for name, (_, unit) in TASKS.items():
        found = runs[name].said["cells"] if name in runs else []
        for plan, steps in sorted({(c["plan"], c["steps"]) for c in found if c["model"] in STUDENTS}):
            mine = [right(cell(runs[name], model, plan, steps)) for model in ("plain", *STUDENTS)]
            rows.append([f"{unit}, {PLANS[plan]}, {steps}", *mine])
    if not rows:
        return not_yet("students of these models")
    note = (
        "Right in per cent, ± half of the 95% interval: the model, and its students of three rounds by MCD and SDTT at "
        "τ = 1."
    )
    return Table(note, ["what, plan, steps", "model", "MCD", "SDTT"], rows)


def tasks_seeds(runs: Runs) -> Table:
    """Records of three training seeds."""
    names = [name for name in ("tasks-records", "tasks-records-s1", "tasks-records-s2") if name in runs]
    if len(names) < 2:
        return not_yet("other seeds of records")
    places = [("plain", "permutation", 128), ("plain", "comb", 16), ("plain", "iid", 16), ("chain", "comb", 16)]
    rows = [
        [f"{PLANS[plan]}, {N}{' with the head' if model == 'chain' else ''}",
         *(right(cell(runs[name], model, plan, N)) for name in names)]
        for model, plan, N in places
    ]  # fmt: skip
    seeds = [f"seed {runs[name].said['seed']}" for name in names]
    note = "Right records in per cent, ± half of the 95% interval, by training seed."
    return Table(note, ["plan, steps", *seeds], rows)


def tasks_uniform(runs: Runs) -> Table:
    """Whether the valid 4 x 4 grids are uniform over the 288."""
    named = [("plain", plan, 17) for plan in ("permutation", "rotation", "comb")]
    named += [("plain", plan, 8) for plan in ("permutation", "comb", "confidence", "left_to_right", "stride")]
    return _uniform(runs["tasks-sudoku4"], [*named, ("chain", "comb", 2)])


def tasks_uniform_cpu(runs: Runs) -> Table:
    """The same of the run on a CPU."""
    if "tasks-sudoku4-cpu" not in runs:
        return not_yet("whether the grids of the longer head are uniform")
    named = [("plain", plan, 17) for plan in ("permutation", "comb", "confidence")]
    named += [("plain", "permutation", 8), ("plain", "comb", 8)]
    named += [(head, "comb", n) for head in ("chain", "places") for n in (2, 4, 8)]
    return _uniform(runs["tasks-sudoku4-cpu"], named)


def _uniform(run: Run, named: Sequence[tuple[str, str, int]]) -> Table:
    rows = []
    for model, plan, steps in named:
        one = cell(run, model, plan, steps)
        assert one, (model, plan, steps)
        test = one["chi_square"]
        head = {"chain": " with the head", "places": " with one that knows the place"}.get(model, "")
        rows.append([
            f"`{plan}` in {steps}{head}", f"{one['whole']:,}", str(one["different"]), f"{test['statistic']:.0f}",
            "< 0.0001" if test["p"] < 1e-4 else f"{test['p']:.4f}",
        ])  # fmt: skip
    note = (
        "The valid ones against the uniform law on 288 grids: chi-square (287 on average under that law) and the "
        "chance of more."
    )
    return Table(note, ["plan", "valid", "different", "chi-square", "p"], rows)


def tasks_lost(runs: Runs) -> Table:
    """What 4 x 4 grids lose against the exact law, in all steps and in the first."""
    if "tasks-lost" not in runs:
        return not_yet("what each step loses")
    said = runs["tasks-lost"].said
    rows = []
    for name, one in said["models"].items():
        lost = [one["steps"][N]["lost"] for N in ("2", "4", "8")]
        right = [f"{100 * one['valid'][way]:.1f}" for way in WAYS] if one["valid"] else [NOTHING] * len(WAYS)
        rows.append([LOST[name], *(f"{sum(each):.2f} ({each[0]:.2f})" for each in lost), *right])
    note = (
        f"`comb`: nats a grid lost against the exact law of each step's tokens ({said['texts']:,} views of the 288 "
        f"grids), in brackets those of the first step; and valid grids in per cent of {said['drawn']:,}."
    )
    return Table(note, ["", "2 steps", "4", "8", *(f"valid, {words}" for words in WAYS.values())], rows)


def tasks_shadows(runs: Runs) -> Table:
    """Valid 4 x 4 grids of the masked and of the uniform model, by what `unmask evaluate` found."""
    return _shadows(runs["shadows-sudoku4"].said, "4 x 4 grids")


def tasks_shadows_large(runs: Runs) -> Table:
    """The same of larger models, once they were run."""
    if LARGE not in runs:
        return not_yet("larger models on the same grids")
    return _shadows(runs[LARGE].said, "4 x 4 grids of larger models")


def _shadows(said: Json, what: str) -> Table:
    counts = sorted({c["steps"] for c in said["cells"]})
    rows = []
    for model, plan in dict.fromkeys((c["model"], c["plan"]) for c in said["cells"]):
        mine = {c["steps"]: c for c in said["cells"] if (c["model"], c["plan"]) == (model, plan)}
        rows.append([model, f"`{plan}`", *(_shadow(mine.get(N)) for N in counts)])
    texts = " or ".join(f"{n:,}" for n in sorted({c["n"] for c in said["cells"]}))
    note = (
        f"Right {what} in per cent, {texts} a cell, ± half of the 95% interval; in brackets the forwards, where "
        "they are not the steps. A dash was not measured."
    )
    return Table(note, ["model", "plan \\ steps", *map(str, counts)], rows)


def _shadow(one: Json | None) -> str:
    if one is None:
        return NOTHING
    nfe = "" if one["nfe"] == one["steps"] else f" ({one['nfe']:.3g})"
    share = {"scores": {"valid": one["check_valid"][0]}, "score": "valid", "n": one["n"]}
    return right(share) + nfe


def tasks_figure(runs: Runs) -> bytes:
    """Right texts against forwards, a line a plan: full without the head, dashed with it."""
    with rc_context(STYLE):
        there = {name: title for name, (title, _) in TASKS.items() if name in runs}
        figure: Any = Figure(figsize=(3.9 * len(there) + 1.6, 3.4), layout="constrained")
        axes = figure.subplots(1, len(there), squeeze=False)[0]
        for axis, (name, title) in zip(axes, there.items(), strict=True):
            run = runs[name]
            for plan in _plans(run):
                for model, line in {"plain": "-", "chain": "--", "places": (0, (1, 1)), **STUDENTS}.items():
                    _line(axis, run, plan, model, line)
            counts = sorted({c["steps"] for c in run.said["cells"]})
            axis.set_xscale("log", base=2)
            axis.set_xticks(counts, [str(n) for n in counts])
            kinds = {c["model"] for c in run.said["cells"]}
            more = "; dotted: MCD, dots and dashes: SDTT" if kinds & {*STUDENTS} else ""
            places = "; dots: one that knows the place" if "places" in kinds else ""
            axis.set_xlabel(f"forwards (dashed: with the head{places}{more})")
            axis.set_ylim(-3, 103)
            axis.set_title(title)
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=7.5)
        return svg(figure)


def _line(axis: Any, run: Run, plan: str, model: str, line: Any) -> None:
    found = [c for c in run.said["cells"] if (c["plan"], c["model"]) == (plan, model)]
    color, marker = LOOKS[plan]
    look = {"color": color, "marker": marker, "markersize": 4.5, "linestyle": line, "linewidth": 1.3}
    if found:
        points = [(c["nfe"], 100 * c["scores"][c["score"]]) for c in found]
        axis.plot(*zip(*points, strict=True), **look, label=plan if model == "plain" else None)
