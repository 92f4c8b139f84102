"""Students of the 24M teacher (studies/teacher/students.sh) beside its temperatures and top-p at equal own entropy."""

from __future__ import annotations

from tools.results.form import PLANS, Runs, Table, half, not_yet, signed
from tools.results.frontier import gap, path, temperatures
from tools.results.runs import Json, Run

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
