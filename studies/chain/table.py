"""The tables of studies/chain/run.sh, and each registered prediction beside what was measured.

python studies/chain/table.py runs/chain
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

Nats = dict[tuple[str, str, int], float]  # (model, plan, steps) -> nats a token


def nats_of(folder: Path) -> Nats:
    """Every N-step NELBO of an evaluation."""
    said = json.loads((folder / "results.json").read_text(encoding="utf-8"))["likelihood"]
    return {
        (one["model"], one["plan"], one["steps"]): one["scores"]["per_token"]["value"] for one in said if one["plan"]
    }


def table(found: Nats, least: float) -> Iterator[str]:
    """Rows of model and plan, columns of steps: nats a token less those of one token a step in random order."""
    counts = sorted({steps for *_, steps in found})
    yield f"| model | plan | {' | '.join(f'N = {steps}' for steps in counts)} |"
    yield "| --- | --- |" + " ---: |" * len(counts)
    for model, plan in sorted({(model, plan) for model, plan, _ in found}):
        cells = [f"{found[model, plan, steps] - least:+.4f}" for steps in counts]
        yield f"| {model} | `{plan}` | {' | '.join(cells)} |"


def predictions(plans: Nats, orders: Nats, least: float) -> Iterator[str]:
    """The five of 2026-11-18, each with what came of it."""

    def best(model: str, steps: int) -> float:
        return min(nats for (name, _, N), nats in plans.items() if (name, N) == (model, steps))

    for number, steps, most in ((1, 4, 0.06), (2, 2, 0.11)):
        loss = best("chain", steps) - least
        yield f"({number}) N = {steps}, best plan, at most {most:+.2f}: {loss:+.4f}, {held(loss <= most)}"
    loss = plans["chain", "comb", 8] - least
    yield f"(3) N = 8 on comb, at most 0: {loss:+.4f}, {held(loss <= 0)}"
    kept = {N: 1 - (best("teacher", N) - best("blind", N)) / (best("teacher", N) - best("chain", N)) for N in (2, 4)}
    shares = ", ".join(f"{share:.0%} at N = {N}" for N, share in kept.items())
    yield f"(4) the blind head loses at least three quarters of the gain: {shares}, {held(min(kept.values()) >= 0.75)}"
    means = {name: sum(nats for (one, *_), nats in orders.items() if one == name) for name, *_ in orders}
    first = min(means, key=means.__getitem__)
    yield f"(5) left to right is the best order: {first} is, {held(first == 'left_to_right')}"


def held(is_so: bool) -> str:
    return "held" if is_so else "failed"


def main(folder: Path) -> None:
    [least] = nats_of(folder / "one-token-a-step").values()
    plans, orders = nats_of(folder / "plans"), nats_of(folder / "orders")
    print(f"One token a step in random order: {least:.4f} nats a token. Below, nats a token more than that.\n")
    print(*table(plans, least), "", *table(orders, least), "", sep="\n")
    print(*(f"- {line}" for line in predictions(plans, orders, least)), "", sep="\n")
    for row in json.loads((folder / "bench.json").read_text(encoding="utf-8"))["lines"]:
        rounds = "" if row["rounds"] is None else f", {row['rounds']:.2f} rounds a step"
        print(
            f"- {row['name']}, batch {row['batch']}, {row['steps']} steps: {row['ms_per_text']:.2f} ms a text{rounds}"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
