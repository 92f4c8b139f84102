"""The tables of studies/chain/run.sh, and each registered prediction beside what was measured.

python studies/chain/table.py runs/chain
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Nats = dict[tuple[str, str, int], float]  # (model, plan, steps) -> nats a token


def nats_of(*folders: Path) -> Nats:
    """Every N-step NELBO of these evaluations, as far as they were made."""
    found: Nats = {}
    for file in (folder / "results.json" for folder in folders):
        said = json.loads(file.read_text(encoding="utf-8"))["likelihood"] if file.is_file() else []
        found |= {
            (one["model"], one["plan"], one["steps"]): one["scores"]["per_token"]["value"]
            for one in said
            if one["plan"]
        }
    return found


def table(found: Nats, least: float) -> Iterator[str]:
    """Rows of model and plan, columns of steps: nats a token less those of one token a step in random order."""
    counts = sorted({steps for *_, steps in found})
    yield f"| model | plan | {' | '.join(f'N = {steps}' for steps in counts)} |"
    yield "| --- | --- |" + " ---: |" * len(counts)
    for model, plan in sorted({(model, plan) for model, plan, _ in found}):
        cells = [f"{found[model, plan, N] - least:+.4f}" if (model, plan, N) in found else "" for N in counts]
        yield f"| {model} | `{plan}` | {' | '.join(cells)} |"


def predictions(plans: Nats, orders: Nats, least: float) -> Iterator[str]:
    """The five of 2026-11-18, each with what came of it."""

    def loss(model: str, steps: int, plan: str | None = None) -> float:
        """Of the best plan, unless one is named."""
        return (
            min(nats for (one, p, N), nats in plans.items() if (one, N) == (model, steps) and plan in (None, p)) - least
        )

    def kept(N: int) -> float:
        """How much of the gain the blind head does not have."""
        return 1 - (loss("teacher", N) - loss("blind", N)) / (loss("teacher", N) - loss("chain", N))

    def first() -> str:
        means = {name: sum(nats for (one, *_), nats in orders.items() if one == name) for name, *_ in orders}
        return min(means, key=means.__getitem__)

    yield told("(1) N = 4, best plan, at most +0.06", lambda: loss("chain", 4), lambda x: x <= 0.06)
    yield told("(2) N = 2, best plan, at most +0.11", lambda: loss("chain", 2), lambda x: x <= 0.11)
    yield told("(3) N = 8 on comb, at most 0", lambda: loss("chain", 8, "comb"), lambda x: x <= 0)
    yield told(
        "(4) the blind head lacks at least 75% of the gain at N = 2 and 4",
        lambda: min(kept(2), kept(4)),
        lambda x: x >= 0.75,
    )
    yield told("(5) left to right is the best order", first, lambda name: name == "left_to_right")


def told(words: str, measured: Callable[[], Any], holds: Callable[[Any], bool]) -> str:
    """A prediction and what came of it, if it was measured."""
    try:
        found = measured()
    except (KeyError, ValueError):
        return f"{words}: not measured"
    return (
        f"{words}: {found if isinstance(found, str) else format(found, '+.4f')}, {'held' if holds(found) else 'failed'}"
    )


def main(folder: Path) -> None:
    one = nats_of(folder / "one-token-a-step")
    least = next(iter(one.values()), 0.0)
    plans = nats_of(*(folder / name for name in ("teacher", "chain-plans", "blind-plans", "large-plans")))
    orders = nats_of(folder / "orders")
    print(f"One token a step in random order: {least:.4f} nats a token. Below, nats a token more than that.\n")
    for found in filter(None, (plans, orders)):
        print(*table(found, least), "", sep="\n")
    print(*(f"- {line}" for line in predictions(plans, orders, least)), sep="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
