"""What committed runs say of predictions (docs/predictions.md), row by row: `python -m tools.results outcomes`.

A row is printed once its run is in docs/results; what of it was not measured is said. The outcome column takes these
lines, so nobody types a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tools.results.gate import AIM, LEAST, LESS, MOST, gate_of
from tools.results.runs import Json, Run
from tools.results.students import change, gains, there
from tools.results.tasks import cell, right, share

Runs = Mapping[str, Run]
ABSENT = "not measured"
ADAPTIVE = ("confidence",)  # every other plan of the tasks knows its steps beforehand


def verdict(number: int, said: str, held: bool | None) -> str:
    """A criterion of a row, what was found, and whether it held; None: something was not measured."""
    return f"({number}) {ABSENT if held is None else ('held' if held else 'failed')}: {said}"


def the_gate(runs: Runs) -> Iterator[str]:
    found = gate_of(runs["teacher-24m-gate"])
    value, low, high = found.less
    yield verdict(1, f"{found.whole:.4f} nats a byte over all bytes (most {MOST}; aim {AIM})", found.whole <= MOST)
    yield verdict(2, f"{value:+.4f} ± {(high - low) / 2:.4f} to pocket, paired by book", value <= -LESS)
    yield verdict(3, f"the least block has {min(found.attention):.2f} nats", min(found.attention) >= LEAST)


def the_race(runs: Runs) -> Iterator[str]:
    run = runs["teacher-24m"]
    found = {
        (n, plan): above for plan in ("comb", "rotation", "stride", "golden") for n in (2, 4, 8, 16, 32, 64)
        if (above := run.above("teacher", plan, n))
    }  # fmt: skip
    best = {n: min((above, plan) for (m, plan), above in found.items() if m == n) for n in {n for n, _ in found}}
    enough = min((n for n, (above, _) in best.items() if above[0] <= 0), default=None)
    yield verdict(1, f"{enough or 'none of the'} forwards are enough", (enough or 17) <= 16 if best else None)
    yield _best(2, best.get(8), 0.02)


def _best(number: int, one: tuple[list[float], str] | None, most: float) -> str:
    if one is None:
        return verdict(number, "8 steps", None)
    (value, low, high), plan = one
    return verdict(number, f"{value:+.4f} ± {(high - low) / 2:.4f} nats a token in 8 steps ({plan})", value <= most)


def records(runs: Runs) -> Iterator[str]:
    run = runs["tasks-records"]
    one, comb, iid = (cell(run, "plain", *at) for at in (("permutation", 128), ("comb", 16), ("iid", 16)))
    head = cell(run, "chain", "comb", 16)
    yield verdict(1, f"one token a step {right(one)}%", _each(lambda: _of(one) >= 0.9, one))
    held = _each(lambda: _of(iid) + 0.1 <= _of(comb) <= _of(one) - 0.05, one, comb, iid)
    yield verdict(2, f"comb in 16 {right(comb)}%, iid {right(iid)}%", held)
    yield verdict(3, f"with the chain {right(head)}%", _each(lambda: abs(_of(head) - _of(one)) <= 0.01, one, head))
    yield _own(run, 4, 0.999)


def _own(run: Run, number: int, least: float) -> str:
    """Whether the right texts of every cell of a plan with known steps differ from each other."""
    cells = [c for c in run.said["cells"] if c["plan"] not in ADAPTIVE and c["whole"]]
    if not cells:
        return verdict(number, "no right text", None)
    worst = min(cells, key=lambda c: c["different"] / c["whole"])
    said = f"{worst['different']:,} of {worst['whole']:,} differ in the worst of {len(cells)} cells ({worst['plan']})"
    return verdict(number, said, all(c["different"] >= least * c["whole"] for c in cells))


def sudoku9(runs: Runs) -> Iterator[str]:
    run = runs["tasks-sudoku9"]
    one, sure = (cell(run, "plain", plan, 82) for plan in ("permutation", "confidence"))
    ten = [c for c in run.said["cells"] if (c["model"], c["steps"]) == ("plain", 10) and c["plan"] not in ADAPTIVE]
    yield verdict(1, f"one token a step {right(one)}%", _each(lambda: _of(one) >= 0.3, one))
    best = max(ten, key=share, default=None)
    held = _each(lambda: _of(best) <= _of(one) / 3, one, best)
    yield verdict(2, f"the best of {len(ten)} locked plans in 10 steps {right(best)}%", held)
    yield _own(run, 3, 1.0)
    entropies = [f"{c['entropy']:.2f}" if c else ABSENT for c in (sure, one)]
    held = _each(lambda: _of(sure) > _of(one) and _of(sure, "entropy") < _of(one, "entropy"), one, sure)
    yield verdict(4, f"confidence {right(sure)}%, own entropy {' against '.join(entropies)} nats a grid", held)
    yield _control(run.said["control"].get("plain") or [])


def _control(rows: list[Json]) -> str:
    by_steps: dict[int, dict[str, float]] = {}
    for row in rows:
        by_steps.setdefault(row["steps"], {})[row["plan"]] = row["solved"]
    both = {n: found for n, found in sorted(by_steps.items()) if "confidence" in found and len(found) > 1}
    others = {n: max((v, plan) for plan, v in found.items() if plan != "confidence") for n, found in both.items()}
    said = "; ".join(
        f"{n} steps: {both[n]['confidence']:.1%} against {v:.1%} ({plan})" for n, (v, plan) in others.items()
    )
    held = all(both[n]["confidence"] > v for n, (v, _) in others.items()) if others else None
    return verdict(5, said or "puzzles", held)


def equations(runs: Runs) -> Iterator[str]:
    run = runs["tasks-equations"]
    one, comb = cell(run, "plain", "permutation", 336), cell(run, "plain", "comb", 42)
    head = cell(run, "chain", "comb", 42)
    yield verdict(1, f"one token a step {right(one)}% of lines", _each(lambda: _of(one) >= 0.7, one))
    held = _each(
        lambda: _of(head) >= _of(comb) + 0.05 and abs(_of(head) - _of(one)) <= 0.05, one, comb, head
    )  # fmt: skip
    yield verdict(2, f"comb in 42 {right(comb)}%, with the chain {right(head)}%", held)


def rival(runs: Runs) -> Iterator[str]:
    found = runs["rival"].bound("ar", None, None)
    nats = math.nan if found is None else found["per_token"][0]
    yield verdict(1, f"{nats:.3f} nats a token", _each(lambda: 3.65 <= nats <= 3.9, found))
    tried = runs["rival-search"].said["search"] if "rival-search" in runs else {}
    by = {kind: [v for name, v in tried.items() if kind in name] for kind in ("muon", "adamw")}
    said = ", ".join(f"{kind} {min(v):.4f} to {max(v):.4f}" for kind, v in by.items() if v) or ABSENT
    yield verdict(2, said, max(by["muon"]) < min(by["adamw"]) if all(by.values()) else None)
    cells = runs["rival-drawn"].said["cells"] if "rival-drawn" in runs else []
    one = [c["timed"]["1"] for c in cells if "1" in c.get("timed", {}) and c["model"] == "ar"]
    few = [c["timed"]["1"] for c in cells if "1" in c.get("timed", {}) and (c["model"], c["steps"]) == ("teacher", 8)]
    if one and few:
        yield verdict(3, f"{one[0]:.3f} s a text against {few[0]:.3f}", one[0] >= 10 * few[0])
    else:
        yield verdict(3, "seconds a text", None)


def rival_24m(runs: Runs) -> Iterator[str]:
    found = [runs["rival-24m"].bound(model, None, None) for model in ("ar", "teacher")]
    exact, elbo = (math.nan if one is None else one["per_byte"][0] for one in found)
    said = f"{exact:.4f} nats a byte (exact) against an ELBO of {elbo:.4f}"
    yield verdict(1, said, _each(lambda: 0.05 <= elbo - exact <= 0.15, *found))


def students(runs: Runs) -> Iterator[str]:
    for name in there(runs):
        found = [gain for plan in ("comb", "iid") for n in (8, 16) for gain in gains(runs, name, plan, n)]
        known = [gain for gain in found if gain]
        said = ", ".join(f"{value:+.4f} ± {(high - low) / 2:.4f}" for value, low, high in known) or ABSENT
        held = all(high < 0 for _, _, high in known) if len(known) == len(found) else None
        yield verdict(1, f"{name}, judge's nats a byte less the teacher's curves: {said}", held)
        nelbo = change(runs, name, "comb", 8)
        if nelbo is None:
            yield verdict(2, f"{name}, NELBO in 8 of comb", None)
        else:
            yield verdict(2, f"{name}, NELBO in 8 of comb {nelbo:+.4f} nats a token to the teacher's", nelbo <= 0.01)


def _of(one: Json | None, what: str = "") -> float:
    """The share of right texts of a cell, or another number of it; of no cell there is none."""
    return math.nan if one is None else float(one[what]) if what else share(one)


def _each(ask: Callable[[], Any], *needed: Any) -> bool | None:
    return None if any(one is None for one in needed) else bool(ask())


OUTCOMES: dict[str, tuple[str, Callable[[Runs], Iterator[str]]]] = {  # row: the run it needs, what it says
    "2026-11-18, 17:52, the 24M teacher passes the gate": ("teacher-24m-gate", the_gate),
    "2026-11-18, 17:52, few forwards on that teacher": ("teacher-24m", the_race),
    "2026-11-19, 02:35, records": ("tasks-records", records),
    "2026-11-18, 23:29, 9 x 9 Sudoku": ("tasks-sudoku9", sudoku9),
    "2026-11-18, 23:29, sums": ("tasks-equations", equations),
    "2026-11-18, 23:29, a causal model of pocket's shape": ("rival", rival),
    "2026-11-18, 17:52, a causal model of the 24M teacher's size": ("rival-24m", rival_24m),
    "2026-11-19, 13:20, students of the 24M teacher": ("students-teacher", students),
}


def told(runs: Runs) -> Iterator[str]:
    """Every row whose run is there."""
    for row, (needed, ask) in OUTCOMES.items():
        if needed in runs:
            yield from [row, *(f"  {line}" for line in ask(runs))]
        else:
            yield f"{row}: {ABSENT} (docs/results/{needed}.json is not there)"
