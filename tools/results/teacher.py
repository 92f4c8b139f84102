"""Of the 24M teacher and the causal rival (studies/teacher, studies/rival).

Books are taken as independent; an interval is 1.96 standard errors of their mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from tools.results.frontier import gap, path, temperatures
from tools.results.runs import NOTHING, PLANS, Json, Run, Runs, Table, half, not_yet, signed

GATES = ("teacher-24m-gate", "teacher-24m-s1-gate", "teacher-24m-s2-gate")
MOST, AIM, LESS, LEAST = 1.02, 0.98, 0.02, 1.0  # as registered


def by_book(said: Json) -> Json:
    """Of every block its nats are summed over its book; that is all that the criteria ask."""
    books: dict[int, list[float]] = {}
    blocks = zip(said["book"], said["bytes"], said["nats"]["teacher"], said["nats"]["other"], strict=True)
    for book, *values in blocks:
        books[book] = [a + b for a, b in zip(books.get(book, (0, 0, 0)), values, strict=True)]
    return {
        "books are": "[bytes, nats of the teacher, nats of pocket]; attention is the median entropy of each block",
        "machine": said.get("machine", []), "books": list(books.values()), "attention": said["attention"],
        "views": said["views"], "texts": said["texts"],
    }  # fmt: skip


@dataclass(frozen=True)
class Gate:
    """Nats a byte, [value, low, high] over books; `whole` and `other` are over all bytes."""

    whole: float
    other: float
    teacher: Sequence[float]
    less: Sequence[float]
    attention: Sequence[float]


def gate_of(run: Run) -> Gate:
    books = run.said["books"]
    size, mine, theirs = (sum(column) for column in zip(*books, strict=True))
    each = [(ours / n, other / n) for n, ours, other in books]
    less = [ours - other for ours, other in each]
    return Gate(mine / size, theirs / size, _mean([ours for ours, _ in each]), _mean(less), run.said["attention"])


def _mean(values: Sequence[float]) -> list[float]:
    spread = 1.96 * stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return [mean(values), mean(values) - spread, mean(values) + spread]


def teacher_gate(runs: Runs) -> Table:
    """The teacher beside pocket on the held-out books."""
    named = {seed: runs[name] for seed, name in enumerate(GATES) if name in runs}
    if not named:
        return not_yet("the gate of a 24M teacher by `unmask train`")
    said = next(iter(named.values())).said
    note = (
        f"ELBO in nats a byte on {len(said['books'])} held-out books, the same tokens, {said['views']} views a block; "
        "± is half of the 95% interval over books. Attention: the least median entropy of a block, in nats."
    )
    rows = []
    for seed, found in ((seed, gate_of(run)) for seed, run in named.items()):
        rows.append([
            f"24M, seed {seed}", f"{found.whole:.4f}", half(found.teacher, 4), f"{found.other:.4f}",
            half(found.less, 4, sign=True), f"{min(found.attention):.2f}",
        ])  # fmt: skip
    head = ["teacher", "all bytes", "mean over books", "`pocket`, all bytes", "less `pocket`, by book", "attention"]
    return Table(note, head, rows)


RACED = ("comb", "rotation", "stride", "golden", "iid")


def teacher_plans(runs: Runs) -> Table:
    """Plans on the 24M teacher by likelihood."""
    counts, rows, levels = (2, 4, 8, 16, 32, 64, 1024), [], []
    for seed, name in enumerate(("teacher-24m", "teacher-24m-s1", "teacher-24m-s2")):
        one = runs[name].bound("teacher", "permutation", 1024) if name in runs else None
        if one is not None:
            levels.append(f"seed {seed} has {one['per_token'][0]:.4f} nats a token on {one['n']} blocks")
            for plan in RACED:
                above = [runs[name].above("teacher", plan, n) for n in counts]
                rows.append([f"{PLANS[plan]}, seed {seed}", *(half(one, sign=True) for one in above)])
    if not rows:
        return not_yet("plans on it")
    note = (
        "Held-out books: N-step NELBO less that of one token a step in random order, ± half of the paired 95% "
        f"interval. One token a step, {'; '.join(levels)}."
    )
    return Table(note, ["plan \\ steps", *map(str, counts)], rows)


def rival(runs: Runs) -> Table:
    """The causal rival beside pocket: likelihood, and seconds a text."""
    if "rival" not in runs:
        return not_yet("the causal rival of `pocket`")
    run, drawn = runs["rival"], runs["rival-drawn"].said["cells"] if "rival-drawn" in runs else []
    rows = []
    for name, model, plan, steps in (
        ("causal, exact", "ar", None, None), ("`pocket`, `comb` in 8", "teacher", "comb", 8),
        ("`pocket`, `comb` in 16", "teacher", "comb", 16),
    ):  # fmt: skip
        bound = run.bound(model, plan, steps)
        place = (model, plan or "causal", steps, 1.0)
        cells = [c for c in drawn if (c["model"], c["plan"], c["steps"], c["temperature"]) == place]
        timed = cells[0].get("timed", {}) if cells else {}
        seconds = [f"{timed[batch]:.4f}" if batch in timed else NOTHING for batch in ("1", "64")]
        nats = [half(bound[unit], 4) if bound else NOTHING for unit in ("per_token", "per_byte")]
        rows.append([name, *nats, *seconds])
    note = (
        "Held-out books; the causal model's likelihood is exact, `pocket`'s a bound; ± half of the 95% interval over "
        "books. Seconds a text of 256 tokens, one at a time and 64 at a time, the causal model with a cache."
    )
    return Table(note, ["model", "nats a token", "nats a byte", "s a text, batch 1", "batch 64"], rows)


TEACHER = "students-teacher"
NAMES = (
    *(f"{method}-s{seed}" for method in ("mcd", "sdtt") for seed in range(3)),
    "curriculum-s0", "comb-s0", "cd4lm-s0", "elbo-s0",
)  # fmt: skip


def there(runs: Runs) -> list[str]:
    """The students that were measured, once the teacher's curves are."""
    return [name for name in NAMES if f"students-{name}" in runs] if TEACHER in runs else []


def curves(run: Run, plan: str, steps: int) -> tuple[list[Json], list[Json]]:
    """The teacher's cells by temperature, and by top-p."""
    every = path(run, "teacher", plan, steps)
    hottest = max((c["temperature"] for c in every if "top_p" in c), default=1.0)
    return temperatures(run, "teacher", plan, steps), [c for c in every if "top_p" in c or c["temperature"] == hottest]


def gains(runs: Runs, name: str, plan: str, steps: int) -> list[list[float] | None]:
    """The judge's nats a byte of a student less those of either curve at its own entropy; None: not enclosed."""
    teacher = runs[TEACHER]
    one = runs[f"students-{name}"].cell(name, plan, steps)
    return [gap(teacher, one, curve) for curve in curves(teacher, plan, steps)]


def change(runs: Runs, name: str, plan: str, steps: int) -> float | None:
    """N-step NELBO less the teacher's, both of the same texts."""
    mine, theirs = (runs[f"students-{name}"].nats(model, plan, steps) for model in (name, "teacher"))
    return None if mine is None or theirs is None else mine - theirs


def students_24m(runs: Runs) -> Table:
    """Every student on both plans in 8 and 16 steps."""
    rows = []
    for name in there(runs):
        for plan in ("comb", "iid"):
            for steps in (8, 16):
                by, less = gains(runs, name, plan, steps), signed(change(runs, name, plan, steps), 4)
                rows.append([f"`{name}`, {PLANS[plan]}, {steps}", *(half(one, 4, sign=True) for one in by), less])
    if not rows:
        return not_yet("students of the 24M teacher, with top-p as a second control")
    note = (
        f"The judge's nats a byte ({runs[TEACHER].judge}) less those of the teacher in as many steps at equal own "
        "entropy, by temperature and by top-p (below 0 is better, – not enclosed), ± half of the 95% interval, texts "
        "not paired; and the N-step NELBO less the teacher's, nats a token."
    )
    return Table(note, ["student, plan, steps", "to its temperatures", "to its top-p", "NELBO"], rows)


def student(runs: Runs) -> Table:
    """`pocket-mcd` beside both controls of `pocket`, to two judges."""
    judged = [runs[name] for name in ("student-pocket-judge", "student-smollm2") if name in runs]
    if not judged:
        return not_yet("`pocket-mcd` beside its teacher's top-p")
    rows = []
    for plan in ("golden", "comb"):
        for steps in (4, 8):
            found = [(run, run.cell("mcd", plan, steps)) for run in judged]
            gaps = [half(gap(run, one, curve), sign=True) if one else NOTHING
                    for run, one in found for curve in curves(run, plan, steps)]  # fmt: skip
            first, bounds = found[0][1], [judged[0].nats(model, plan, steps) for model in ("mcd", "teacher")]
            less = None if None in bounds else bounds[0] - bounds[1]  # type: ignore[operator]
            rows.append([f"{PLANS[plan]}, {steps}", half((first or {}).get("sampler_entropy")), *gaps, signed(less)])
    note = (
        "`pocket-mcd` at T = 1, 192 texts: own entropy, nats a byte; the judge's nats a byte less those of the teacher "
        "in as many steps at equal own entropy, by its temperature and by its top-p (below 0 is better; – not run), "
        "± half of the 95% interval, texts not paired; N-step NELBO less the teacher's, nats a token."
    )
    head = ["plan, steps", "own entropy"]
    head += [f"{run.judge}, {control}" for run in judged for control in ("temperature", "top-p")]
    return Table(note, [*head, "NELBO"], rows)
