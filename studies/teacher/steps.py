"""How few steps of a plan have the likelihood of one token a step, from the bounds of studies/teacher/run.sh.

python studies/teacher/steps.py runs/teacher
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from unmask.metrics.score import Score, difference
from unmask.studies.results import Bound, read_results

PLANS = ("comb", "rotation", "stride", "golden")  # of which the best is asked
MOST, EIGHT = 16, 0.02


def losses(run: Path) -> dict[tuple[str, int], Score]:
    """Nats a token more than one token a step in random order, by plan and steps, paired text by text."""
    one = next((bound for bound in bounds(run / "one-token") if bound.plan == "permutation"), None)
    if one is None:
        raise SystemExit("one token a step was not measured: there is nothing to put the plans beside")
    raced = [bound for folder in sorted(run.glob("race*/")) for bound in bounds(folder)]
    found = [bound for bound in raced if one.pairs_with(bound)]
    return {
        (str(bound.plan), int(bound.steps or 0)): difference(bound.ratio, one.ratio, "nats/token", {})
        for bound in found
    }


def bounds(folder: Path) -> list[Bound]:
    path = folder / "results.json"  # not there where time ran out
    return [bound for bound in read_results(path).bounds if bound.plan] if path.exists() else []


def told(found: dict[tuple[str, int], Score]) -> Iterator[str]:
    """A row a plan; then the prediction."""
    counts = sorted({steps for _, steps in found})
    yield f"| plan | {' | '.join(f'N = {steps}' for steps in counts)} |"
    yield "| --- |" + " ---: |" * len(counts)
    for plan in dict.fromkeys(plan for plan, _ in found):
        cells = [found.get((plan, steps)) for steps in counts]
        yield f"| `{plan}` | {' | '.join('' if one is None else shown(one) for one in cells)} |"
    best = {N: min((found[plan, N].value, plan) for plan in PLANS if (plan, N) in found) for N in counts}
    enough = next((N for N in counts if best[N][0] <= 0), None)
    yield (f"- at most {MOST} forwards for the NELBO of one token a step: "
           f"{f'{enough} of {best[enough][1]}' if enough else 'none of those that were run'}, "
           f"{'held' if enough and enough <= MOST else 'failed'}")  # fmt: skip
    if 8 in best:
        value, plan = best[8]
        held = "held" if value <= EIGHT else "failed"
        yield f"- in 8 within {EIGHT} nats a token: {shown(found[plan, 8])} ({plan}), {held}"


def shown(one: Score) -> str:
    return f"{one.value:+.4f} ± {(one.high - one.low) / 2:.4f}"


if __name__ == "__main__":
    print("Nats a token more than one token a step in random order.\n", *told(losses(Path(sys.argv[1]))), sep="\n")
