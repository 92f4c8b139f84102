"""What committed runs say of predictions (docs/predictions.md), row by row: `python -m tools.results outcomes`.

A row is printed once its run is in docs/results; what of it was not measured is said. The outcome column takes these
lines, so nobody types a number. Of the uniform process, all rows are a table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from tools.results.check import bounds_of
from tools.results.runs import Json, Run, Runs, Table, half, not_yet, ppl
from tools.results.shadows import SAMPLING, STUDY, TEXT, TRAINING
from tools.results.slim import single_file
from tools.results.tasks import LARGE, cell, right, share
from tools.results.teacher import AIM, LEAST, LESS, MOST, change, gains, gate_of, there

from unmask.metrics.score import paired_draws
from unmask.studies.results import unpack

Outcome = tuple[str, str, bool | None]  # a criterion, what was measured, whether it held; None: not all of it was
ABSENT = "not measured"
ADAPTIVE = ("confidence",)  # every other plan of the tasks knows its steps beforehand


def word(held: bool | None) -> str:
    return ABSENT if held is None else "held" if held else "failed"


def the_gate(runs: Runs) -> Iterator[Outcome]:
    found = gate_of(runs["teacher-24m-gate"])
    value, low, high = found.less
    yield "(1)", f"{found.whole:.4f} nats a byte over all bytes (most {MOST}; aim {AIM})", found.whole <= MOST
    yield "(2)", f"{value:+.4f} ± {(high - low) / 2:.4f} to pocket, paired by book", value <= -LESS
    yield "(3)", f"the least block has {min(found.attention):.2f} nats", min(found.attention) >= LEAST


def the_race(runs: Runs) -> Iterator[Outcome]:
    run = runs["teacher-24m"]
    found = {
        (n, plan): above for plan in ("comb", "rotation", "stride", "golden") for n in (2, 4, 8, 16, 32, 64)
        if (above := run.above("teacher", plan, n))
    }  # fmt: skip
    best = {n: min((above, plan) for (m, plan), above in found.items() if m == n) for n in {n for n, _ in found}}
    enough = min((n for n, (above, _) in best.items() if above[0] <= 0), default=None)
    yield "(1)", f"{enough or 'none of the'} forwards are enough", (enough or 17) <= 16 if best else None
    yield _best(best.get(8), 0.02)


def _best(one: tuple[list[float], str] | None, most: float) -> Outcome:
    if one is None:
        return "(2)", "8 steps", None
    (value, low, high), plan = one
    return "(2)", f"{value:+.4f} ± {(high - low) / 2:.4f} nats a token in 8 steps ({plan})", value <= most


def records(runs: Runs) -> Iterator[Outcome]:
    run = runs["tasks-records"]
    one, comb, iid = (cell(run, "plain", *at) for at in (("permutation", 128), ("comb", 16), ("iid", 16)))
    head = cell(run, "chain", "comb", 16)
    yield "(1)", f"one token a step {right(one)}%", _each(lambda: _of(one) >= 0.9, one)
    held = _each(lambda: _of(iid) + 0.1 <= _of(comb) <= _of(one) - 0.05, one, comb, iid)
    yield "(2)", f"comb in 16 {right(comb)}%, iid {right(iid)}%", held
    yield "(3)", f"with the chain {right(head)}%", _each(lambda: abs(_of(head) - _of(one)) <= 0.01, one, head)
    yield _own(run, "(4)", 0.999)


def _own(run: Run, which: str, least: float) -> Outcome:
    """Whether the right texts of every cell of a plan with known steps differ from each other."""
    cells = [c for c in run.said["cells"] if c["plan"] not in ADAPTIVE and c["whole"]]
    if not cells:
        return which, "no right text", None
    worst = min(cells, key=lambda c: c["different"] / c["whole"])
    said = f"{worst['different']:,} of {worst['whole']:,} differ in the worst of {len(cells)} cells ({worst['plan']})"
    return which, said, all(c["different"] >= least * c["whole"] for c in cells)


def sudoku9(runs: Runs) -> Iterator[Outcome]:
    run = runs["tasks-sudoku9"]
    one, sure = (cell(run, "plain", plan, 82) for plan in ("permutation", "confidence"))
    ten = [c for c in run.said["cells"] if (c["model"], c["steps"]) == ("plain", 10) and c["plan"] not in ADAPTIVE]
    yield "(1)", f"one token a step {right(one)}%", _each(lambda: _of(one) >= 0.3, one)
    best = max(ten, key=share, default=None)
    held = _each(lambda: _of(best) <= _of(one) / 3, one, best)
    yield "(2)", f"the best of {len(ten)} locked plans in 10 steps {right(best)}%", held
    yield _own(run, "(3)", 1.0)
    entropies = [f"{c['entropy']:.2f}" if c else ABSENT for c in (sure, one)]
    held = _each(lambda: _of(sure) > _of(one) and _of(sure, "entropy") < _of(one, "entropy"), one, sure)
    yield "(4)", f"confidence {right(sure)}%, own entropy {' against '.join(entropies)} nats a grid", held
    yield _control(run.said["control"].get("plain") or [])


def _control(rows: list[Json]) -> Outcome:
    by_steps: dict[int, dict[str, float]] = {}
    for row in rows:
        by_steps.setdefault(row["steps"], {})[row["plan"]] = row["solved"]
    both = {n: found for n, found in sorted(by_steps.items()) if "confidence" in found and len(found) > 1}
    others = {n: max((v, plan) for plan, v in found.items() if plan != "confidence") for n, found in both.items()}
    sure = {n: found["confidence"] for n, found in both.items()}
    said = "; ".join(f"{n} steps: {sure[n]:.1%} against {v:.1%} ({plan})" for n, (v, plan) in others.items())
    held = all(sure[n] > v for n, (v, _) in others.items()) if others else None
    return "(5)", said or "puzzles", held


def equations(runs: Runs) -> Iterator[Outcome]:
    run = runs["tasks-equations"]
    one, comb = cell(run, "plain", "permutation", 336), cell(run, "plain", "comb", 42)
    head = cell(run, "chain", "comb", 42)
    yield "(1)", f"one token a step {right(one)}% of lines", _each(lambda: _of(one) >= 0.7, one)
    held = _each(lambda: _of(head) >= _of(comb) + 0.05 and abs(_of(head) - _of(one)) <= 0.05, one, comb, head)
    yield "(2)", f"comb in 42 {right(comb)}%, with the chain {right(head)}%", held


def rival(runs: Runs) -> Iterator[Outcome]:
    found = runs["rival"].bound("ar", None, None)
    nats = math.nan if found is None else found["per_token"][0]
    yield "(1)", f"{nats:.3f} nats a token", _each(lambda: 3.65 <= nats <= 3.9, found)
    tried = runs["rival-search"].said["search"] if "rival-search" in runs else {}
    by = {kind: [v for name, v in tried.items() if kind in name] for kind in ("muon", "adamw")}
    said = ", ".join(f"{kind} {min(v):.4f} to {max(v):.4f}" for kind, v in by.items() if v) or ABSENT
    yield "(2)", said, max(by["muon"]) < min(by["adamw"]) if all(by.values()) else None
    cells = runs["rival-drawn"].said["cells"] if "rival-drawn" in runs else []
    one = [c["timed"]["1"] for c in cells if "1" in c.get("timed", {}) and c["model"] == "ar"]
    few = [c["timed"]["1"] for c in cells if "1" in c.get("timed", {}) and (c["model"], c["steps"]) == ("teacher", 8)]
    if one and few:
        yield "(3)", f"{one[0]:.3f} s a text against {few[0]:.3f}", one[0] >= 10 * few[0]
    else:
        yield "(3)", "seconds a text", None


def rival_24m(runs: Runs) -> Iterator[Outcome]:
    found = [runs["rival-24m"].bound(model, None, None) for model in ("ar", "teacher")]
    exact, elbo = (math.nan if one is None else one["per_byte"][0] for one in found)
    said = f"{exact:.4f} nats a byte (exact) against an ELBO of {elbo:.4f}"
    yield "(1)", said, _each(lambda: 0.05 <= elbo - exact <= 0.15, *found)


def students(runs: Runs) -> Iterator[Outcome]:
    for name in there(runs):
        found = [gain for plan in ("comb", "iid") for n in (8, 16) for gain in gains(runs, name, plan, n)]
        known = [gain for gain in found if gain]
        said = ", ".join(f"{value:+.4f} ± {(high - low) / 2:.4f}" for value, low, high in known) or ABSENT
        held = all(high < 0 for _, _, high in known) if len(known) == len(found) else None
        yield "(1)", f"{name}, judge's nats a byte less the teacher's curves: {said}", held
        nelbo = change(runs, name, "comb", 8)
        said = "" if nelbo is None else f" {nelbo:+.4f} nats a token to the teacher's"
        yield "(2)", f"{name}, NELBO in 8 of comb{said}", None if nelbo is None else nelbo <= 0.01


def _of(one: Json | None, what: str = "") -> float:
    """The share of right texts of a cell, or another number of it; of no cell there is none."""
    return math.nan if one is None else float(one[what]) if what else share(one)


def _each(ask: Callable[[], Any], *needed: Any) -> bool | None:
    return None if any(one is None for one in needed) else bool(ask())


OUTCOMES: dict[str, tuple[str, Callable[[Runs], Iterator[Outcome]]]] = {  # row: the run it needs, what it says
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
            yield from [row, *(f"  {which} {word(held)}: {said}" for which, said, held in ask(runs))]
        else:
            yield f"{row}: {ABSENT} (docs/results/{needed}.json is not there)"


def shadows_predictions(runs: Runs) -> Table:
    """A difference of bounds is paired over texts; by its value alone it holds or fails."""
    rows = [[said, measured, word(held)] for said, measured, held in _outcomes(runs)]
    if not rows:
        return not_yet(TEXT)
    note = "A difference of bounds is in nats a token, paired over texts, ± half of the 95% interval."
    return Table(note, ["predicted", "measured", "outcome"], rows)


def _outcomes(runs: Runs) -> Iterator[Outcome]:
    if STUDY in runs and (place := runs[STUDY].path) is not None:
        yield from _of_text(runs[STUDY], _Paired(runs[STUDY], unpack(single_file(place))[0]))
    if LARGE in runs:
        yield _of_grids(runs[LARGE], 4, "iid", True)
        yield _of_grids(runs[LARGE], 16, "permutation", False)
    if SAMPLING in runs:
        yield _of_sampling(runs[SAMPLING])
    if TRAINING in runs:
        yield _of_training(runs[TRAINING])


class _Paired:
    """Bounds of the study with what single texts gave."""

    def __init__(self, run: Run, single: Json) -> None:
        self.seed = int(run.said["settings"]["seed"])
        self.found = {(b.model, b.plan, b.steps): b for b in bounds_of(run, single)}

    def less(self, one: tuple[Any, ...], other: tuple[Any, ...]) -> list[float] | None:
        """One bound less another, [value, low, high]."""
        if one not in self.found or other not in self.found:
            return None
        a, b = self.found[one], self.found[other]
        assert a.pairs_with(b), f"{one} and {other} are of other texts"
        ends = paired_draws(a.ratio, b.ratio, seed=self.seed).quantile(torch.tensor([0.025, 0.975]).double())
        return [a.ratio.value - b.ratio.value, *ends.tolist()]


def _of_text(run: Run, bounds: _Paired) -> Iterator[Outcome]:
    whole, near = (bounds.less((name, None, None), ("mdlm", None, None)) for name in ("duo", "curriculum"))
    held = None if whole is None or near is None else 0.05 <= whole[0] <= 0.4 and near[0] < whole[0]
    said = f"{_signed(whole)}; with the curriculum {_signed(near)}"
    yield "(1) Duo's continuous NELBO is 0.05 to 0.4 above MDLM's, with the curriculum nearer", said, held
    above = {f"N = {N}": bounds.less(("duo", "ancestral", N), ("mdlm", "comb", N)) for N in (4, 8, 16, 32, 64)}
    above["N = 4, `iid`"] = bounds.less(("duo", "ancestral", 4), ("mdlm", "iid", 4))
    found = [one[0] for one in above.values() if one]
    said = ", ".join(f"{_signed(one)} ({where})" for where, one in above.items())
    held = None if len(found) < len(above) else min(found) > 0
    yield "(2) its N-step NELBO is above MDLM's on `comb` at N = 4 to 64, at N = 4 above `iid`'s too", said, held
    tail, comb = run.cell("duo", "greedy_tail", 8), run.cell("mdlm", "comb", 8)
    said, held = "", None
    if tail and comb:
        said = f"{ppl(tail)} against {ppl(comb)}; entropy {tail['entropy'][0]:.3f} against {comb['entropy'][0]:.3f}"
        held = all(tail[score][0] < comb[score][0] for score in ("gen_ppl", "entropy"))
    predicted = "(3) in 8 steps `greedy_tail` has a lower Gen PPL than MDLM on `comb`, and a lower unigram entropy"
    yield predicted, said, held
    teacher = "curriculum" if run.cell("curriculum", "ancestral", 8) else "duo"
    yield _of_rounds(run, bounds, "dcd", teacher, "ancestral")
    yield _of_rounds(run, bounds, "mcd", "mdlm", "comb")


def _of_rounds(run: Run, bounds: _Paired, student: str, teacher: str, plan: str) -> Outcome:
    predicted = f"(4) {student.upper()}: Gen PPL of `{plan}` in 8 steps falls by at least 15%, the N = 8 bound rises"
    after, before = run.cell(student, plan, 8), run.cell(teacher, plan, 8)
    worse = bounds.less((student, plan, 8), (teacher, plan, 8))
    if after is None or before is None or worse is None:
        return predicted, "", None
    fell = after["gen_ppl"][0] / before["gen_ppl"][0] - 1
    said = f"{fell:+.0%} ({ppl(before)} to {ppl(after)})".replace("-", "−")
    return predicted, f"{said}; {_signed(worse)}", fell <= -0.15 and worse[0] > 0


def _of_grids(run: Run, steps: int, plan: str, more: bool) -> Outcome:
    kind = "more" if more else "fewer"
    predicted = f"(5) in {steps} steps Duo's `ancestral` has {kind} valid grids than masked `{plan}`"
    one, other = run.cell("uniform", "ancestral", steps), run.cell("masked", plan, steps)
    if one is None or other is None:
        return predicted, "", None
    shares = one["check_valid"][0], other["check_valid"][0]
    return predicted, f"{shares[0]:.1%} against {shares[1]:.1%}", (shares[0] > shares[1]) == more


def _of_sampling(run: Run) -> Outcome:
    predicted = "a sampling step: 3 times as fast as the plain eager one in 32 steps, 2 times in 8, half its memory"
    ratios = {one["steps"]: one for one in run.said["ratios"]}
    faster = [ratios.get(steps, {}).get("faster than plain, eager body") for steps in (32, 8)]
    memory = max((one.get("memory of plain, eager body", 0) for one in ratios.values()), default=0)
    said = ", ".join(f"{one:.1f}" for one in faster if one) + (f"; {memory:.0%} of the memory" if memory else "")
    held = None if None in faster or not memory else faster[0] >= 3 and faster[1] >= 2 and memory <= 0.5
    return predicted, said, held


def _of_training(run: Run) -> Outcome:
    predicted = "a training step: the NELBO 1.5 times as fast as plain, the curriculum 2 times, each in half the memory"
    ratios = run.said["ratios"]
    speed, memory = ([ratios[name].get(key) for name in ("nelbo", "curriculum")] for key in ("speed", "memory"))
    said = ", ".join(f"{one:.2f}" for one in speed)
    if None in memory:
        return predicted, said, None
    said += "; " + ", ".join(f"{one:.0%}" for one in memory) + " of the memory"
    return predicted, said, speed[0] >= 1.5 and speed[1] >= 2 and max(memory) <= 0.5


def _signed(score: Sequence[float] | None) -> str:
    return half(score, sign=True)
