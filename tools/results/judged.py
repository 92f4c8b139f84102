"""The tables of docs/ about what a judge says of samples of `comb`, and of texts that no model wrote."""

from __future__ import annotations

from tools.results.form import NOTHING, PLANS, Runs, Table, half
from tools.results.frontier import between
from tools.results.runs import Json

NO_MODEL = ("real text", "parrot", "period", "mirror", "phrase bank")


def by_judge(runs: Runs) -> Table:
    """Few steps of three plans at T = 1, and less `comb` at equal own entropy."""
    run, rows = runs["judged-pocket-judge"], []
    for steps in (4, 8, 16):
        for plan in ("comb", "golden", "iid"):
            cell = run.cell("teacher", plan, steps)
            less = NOTHING if plan == "comb" else half(between(run, (plan, steps), ("comb", steps)), sign=True)
            rows.append([f"{PLANS[plan]}, {steps}", *_scores(cell), less])
    rows += [[name, *_scores(run.cell(name, None, None, None)), NOTHING] for name in NO_MODEL]
    note = (
        "`pocket`, T = 1, 192 texts a cell, `pocket-judge`: own entropy and judge's nats, both a byte; the energy "
        "distance of its features from real text (0 in the mean for real text); judge's nats less those of `comb` in "
        "as many steps, at equal own entropy (above 0 is worse). ± is half of the 95% interval, in the last column "
        "unpaired."
    )
    return Table(note, ["plan, steps", "own entropy", "judge's nats", "energy distance", "less `comb`"], rows)


def _scores(cell: Json | None) -> list[str]:
    return [half((cell or {}).get(name)) for name in ("sampler_entropy", "judge_nll", "energy_distance")]


JUDGED = {"judged": by_judge}
