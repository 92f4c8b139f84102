"""The tables of studies/chain/run.sh, and each registered prediction beside what was measured.

python studies/chain/table.py runs/chain
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from unmask.metrics.score import Ratio, Score, difference
from unmask.models.chain import ORDERS
from unmask.studies.results import Bound, read_results

ONE = "teacher", "permutation"  # one token a step
Found = dict[tuple[str, str, int], Ratio]  # (model, plan, steps) -> nats a token, text by text


def bounds_in(run: Path) -> dict[tuple[str, str, int], Bound]:
    """Every N-step NELBO that was measured."""
    found = (one for file in sorted(run.glob("*-bounds/results.json")) for one in read_results(file).bounds)
    return {(one.model, one.plan, one.steps): one for one in found if one.plan and one.steps}


def found_in(run: Path) -> Found:
    """The same in nats a token, text by text."""
    return {cell: one.ratio for cell, one in bounds_in(run).items()}


def least_of(found: Found) -> Ratio:
    """One token a step in random order, beside which all else is put."""
    return next(ratio for (*cell, _), ratio in found.items() if tuple(cell) == ONE)


def table(found: Found, models: tuple[str, ...] = ()) -> Iterator[str]:
    """Rows of model and plan, columns of steps: nats a token more than one token a step, half the 95% interval."""
    least = least_of(found)
    models = models or tuple(dict.fromkeys(model for model, *_ in found))
    found = {cell: ratio for cell, ratio in found.items() if cell[:2] != ONE}
    counts = sorted({steps for model, _, steps in found if model in models})
    yield f"| head | plan | {' | '.join(f'N = {steps}' for steps in counts)} |"
    yield "| --- | --- |" + " ---: |" * len(counts)
    for model in models:
        for plan in dict.fromkeys(plan for one, plan, _ in found if one == model):
            each = [found.get((model, plan, N)) for N in counts]
            cells = ["" if one is None else half(difference(one, least, "nats/token", {})) for one in each]
            yield f"| {'none' if model == 'teacher' else model} | `{plan}` | {' | '.join(cells)} |"


def half(score: Score) -> str:
    """A difference, and half of its 95% interval."""
    return f"{score.value:+.3f} ± {(score.high - score.low) / 2:.3f}"


class Told:
    """What came of predictions; losses are in nats a token above one token a step."""

    def __init__(self, found: Found, bench: dict[str, Any] | None = None) -> None:
        self.found, self.lines_timed = found, (bench or {}).get("lines", [])

    def loss(self, model: str, steps: int, plan: str | None = None) -> float:
        """Of the best plan, unless one is named."""
        values = [ratio.value for (one, p, N), ratio in self.found.items()
                  if (one, N) == (model, steps) and plan in (None, p)]  # fmt: skip
        return min(values) - least_of(self.found).value

    def kept(self, head: str, blind: str, steps: int) -> float:
        """How much of a head's gain the blind one does not have."""
        alone = self.loss("teacher", steps)
        return 1 - (alone - self.loss(blind, steps)) / (alone - self.loss(head, steps))

    def best_order(self) -> str:
        """By the mean of what all three were measured on."""
        cells = {name: {(plan, N) for model, plan, N in self.found if model == f"order-{name}"} for name in ORDERS}
        common = set.intersection(*cells.values())
        if not common:
            raise ValueError("an order was not measured")
        return min(ORDERS, key=lambda name: sum(self.found[f"order-{name}", *cell].value for cell in common))

    def took(self, name: str, batch: int, steps: int) -> float:
        """Seconds of a batch, by `unmask bench chain`."""
        found = [one["seconds"] for one in self.lines_timed
                 if (one["name"], one["batch"], one["steps"]) == (name, batch, steps)]  # fmt: skip
        return min(found)

    def lines(self) -> Iterator[str]:
        loss = self.loss
        yield "Registered at 20:55, of the head by AdamW:"
        yield _told("(1) N = 4, best plan, at most +0.06", lambda: loss("small-adamw", 4), lambda x: x <= 0.06)
        yield _told("(2) N = 2, best plan, at most +0.11", lambda: loss("small-adamw", 2), lambda x: x <= 0.11)
        yield _told("(3) N = 8 on comb, at most 0", lambda: loss("small-adamw", 8, "comb"), lambda x: x <= 0)
        kept = lambda head, blind: min(self.kept(head, blind, N) for N in (2, 4))  # noqa: E731
        yield _told("(4) the blind head lacks at least 75% of the gain (both by Muon)",
                    lambda: kept("small-muon", "blind-muon"), lambda x: x >= 0.75)  # fmt: skip
        yield _told("(5) left to right is the best order", self.best_order, lambda name: name == "left_to_right")
        yield "Registered at 23:29, of heads by Muon:"
        yield _told("(1) N = 4, best plan, at most +0.06", lambda: loss("small-muon", 4), lambda x: x <= 0.06)
        yield _told("(2) N = 2, best plan, at most +0.13", lambda: loss("small-muon", 2), lambda x: x <= 0.13)
        yield _told("(3) N = 8 on comb, at most 0", lambda: loss("small-muon", 8, "comb"), lambda x: x <= 0)
        yield _told("(4) Muon less AdamW at N = 2",
                    lambda: loss("small-muon", 2) - loss("small-adamw", 2), lambda x: x < 0)  # fmt: skip
        yield _told("(5) 7.4M parameters, N = 2, at most +0.11", lambda: loss("large-muon", 2), lambda x: x <= 0.11)
        yield "Registered at 01:57; the third is beneath the table of costs:"
        yield _told("(1) with the last two blocks less the head alone, N = 2 on comb, at most -0.02",
                    lambda: loss("joint-2", 2, "comb") - loss("joint-0", 2, "comb"), lambda x: x <= -0.02)  # fmt: skip
        yield _told("(2) the model's draws less the text, N = 2, at least +0.02",
                    lambda: loss("distil", 2) - loss("order-left_to_right", 2), lambda x: x >= 0.02)  # fmt: skip
        yield from self.comb_alone(kept)

    def comb_alone(self, kept: Callable[[str, str], float]) -> Iterator[str]:
        """Of the study `cpu-chain`."""
        loss = self.loss
        yield "Registered at 09:05, of a head for comb alone, on a CPU:"
        yield _told("(1) N = 4, at most +0.06", lambda: loss("comb", 4, "comb"), lambda x: x <= 0.06)
        yield _told("(2) N = 2, at most +0.15", lambda: loss("comb", 2, "comb"), lambda x: x <= 0.15)
        yield _told("(3) N = 8, at most 0", lambda: loss("comb", 8, "comb"), lambda x: x <= 0)
        yield _told("(4) the blind head lacks at least 75% of the gain",
                    lambda: kept("comb", "blind"), lambda x: x >= 0.75)  # fmt: skip
        yield _told("(5) 4 steps with it less 8 without, seconds, batch 1",
                    lambda: self.took("head, gumbel", 1, 4) - self.took("no head", 1, 8), lambda x: x < 0)  # fmt: skip
        yield _told("(5) N = 4 with it less the middle of 4 and 8 without, at most 0",
                    lambda: loss("comb", 4, "comb") - (loss("teacher", 4, "comb") + loss("teacher", 8, "comb")) / 2,
                    lambda x: x <= 0)  # fmt: skip


def _told(words: str, measured: Callable[[], Any], holds: Callable[[Any], bool]) -> str:
    """A prediction and what came of it, if it was measured."""
    try:
        value = measured()
    except ValueError:
        return f"- {words}: not measured"
    shown = value if isinstance(value, str) else format(value, "+.4f")
    return f"- {words}: {shown}, {'held' if holds(value) else 'failed'}"


def main(run: Path) -> None:
    found = found_in(run)
    if not any(cell[:2] == ONE for cell in found):
        raise SystemExit(f"{run} has no one-token-bounds yet: nothing to put the heads beside")
    print(f"One token a step in random order: {least_of(found).value:.4f} nats a token. Below, nats a token more.\n")
    print(*table(found), "", sep="\n")
    bench = run / "bench.json"
    print(*Told(found, json.loads(bench.read_text()) if bench.is_file() else None).lines(), sep="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
