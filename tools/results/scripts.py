"""Tables of what the scripts of studies/teacher and studies/rival found; before their runs they are empty."""

from __future__ import annotations

from collections.abc import Callable

from tools.results.form import NOTHING, PLANS, Runs, Table, half, not_yet
from tools.results.gate import teacher_gate
from tools.results.students import students_24m

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


SCRIPT_TABLES: dict[str, Callable[[Runs], Table]] = {
    table.__name__.replace("_", "-"): table for table in (teacher_gate, teacher_plans, rival, students_24m)
}
