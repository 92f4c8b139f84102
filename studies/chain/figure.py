"""What a head is worth at equal seconds: NELBO against seconds a text, without it, with it, and of a causal model.

python studies/chain/figure.py runs/chain --bench runs/chain/bench.json --rival runs/rival-found/bounds
    reads the bounds of studies/chain/run.sh and the JSON of `unmask bench chain`; draws runs/chain/cost.svg and prints
    the table. The causal model has its time from the bench, and its likelihood, which is exact, from --rival: an
    evaluation in which it is called `ar`. Without that its time is shown alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from table import bounds_in, half

from unmask.bench.chain import at_seconds
from unmask.core.show import FADED, STYLE, save_figure
from unmask.metrics.score import Ratio, difference
from unmask.studies.results import Bound, read_results

COLORS = {"no head": "#1f6fa8", "head": "#c8571b"}
Point = tuple[float, Bound]  # seconds a text, and its bound


@dataclass(frozen=True)
class Costs:
    """Of one batch: by number of steps the points without and with the head, and the causal model's seconds."""

    batch: int
    lines: dict[str, dict[int, Point]]
    causal: float | None

    def at(self, seconds: float) -> Ratio | None:
        """The NELBO without a head at so many seconds, between its numbers of steps; None beyond them."""
        return at_seconds(((t, bound.ratio) for t, bound in self.lines["no head"].values()), seconds)


def costs_of(bench: dict[str, Any], bounds: dict[tuple[str, str, int], Bound], head: str) -> list[Costs]:
    """Times and bounds put together, batch by batch."""
    plan, found = bench["record"]["plan"], []
    for batch in dict.fromkeys(row["batch"] for row in bench["lines"]):
        rows = [row for row in bench["lines"] if row["batch"] == batch]
        lines: dict[str, dict[int, Point]] = {"no head": {}, "head": {}}
        for name, timed, model in (("no head", "no head", "teacher"), ("head", "head, gumbel", head)):
            for row in rows:
                if row["name"] == timed and (model, plan, row["steps"]) in bounds:
                    lines[name][row["steps"]] = row["ms_per_text"] / 1e3, bounds[model, plan, row["steps"]]
        causal = next((row["ms_per_text"] / 1e3 for row in rows if row["name"].startswith("causal")), None)
        if all(lines.values()):
            found.append(Costs(batch, lines, causal))
    return found


def table(found: list[Costs], rival: Bound | None) -> Iterator[str]:
    """A row a batch and number of steps."""
    yield ("| batch | N | seconds a text, no head | with it | nats/token, no head | with it | less no head at equal "
           "seconds | x the causal model's speed | less it, nats/byte |")  # fmt: skip
    yield "|" + " ---: |" * 9
    for one in found:
        for N, (seconds, bound) in one.lines["head"].items():
            if N not in one.lines["no head"]:
                continue
            alone, y = one.lines["no head"][N], bound.ratio.value
            equal = one.at(seconds)
            cells = [f"{one.batch}", f"{N}", f"{alone[0]:.4g}", f"{seconds:.4g}", f"{alone[1].ratio.value:.3f}"]
            cells += [f"{y:.3f}", "" if equal is None else half(difference(bound.ratio, equal, "nats/token", {}))]
            cells += [f"{one.causal / seconds:.1f}" if one.causal else "", _beside(bound, rival)]
            yield f"| {' | '.join(cells)} |"


def _beside(bound: Bound, rival: Bound | None) -> str:
    mine, theirs = bound.per_byte, rival.per_byte if rival else None
    return "" if mine is None or theirs is None else f"{mine.value - theirs.value:+.3f}"


def acceptance(bench: dict[str, Any]) -> str:
    """How many times as long speculative acceptance takes as the fixed point by Gumbel noise."""
    took = {(row["name"], row["batch"], row["steps"]): row["seconds"] for row in bench["lines"]}
    said = [f"batch {batch}, N = {N}: {seconds / took['head, gumbel', batch, N]:.2f}"
            for (name, batch, N), seconds in took.items() if name == "head, acceptance"]  # fmt: skip
    wanted = [("head, acceptance", batch, N) for batch in (1, 64) for N in (4, 8)]
    longer = all(took[place] > took["head, gumbel", *place[1:]] for place in wanted if place in took)
    outcome = "not measured" if not took.keys() >= set(wanted) else "held" if longer else "failed"
    return (f"Time of speculative acceptance over that of the fixed point: {'; '.join(said)}.\n"
            f"- (3) it takes longer at batch 1 and 64 in 4 and 8 steps: {outcome}")  # fmt: skip


def draw(found: list[Costs], rival: Bound | None, path: Path) -> None:
    with rc_context(STYLE):
        figure: Any = Figure(figsize=(5.2 * len(found), 3.6), layout="constrained")
        axes = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
        for axis, one in zip(axes, found, strict=True):
            for name, points in one.lines.items():
                x, y = zip(*((t, bound.ratio.value) for t, bound in points.values()), strict=True)
                axis.plot(x, y, "o-", color=COLORS[name], label=name)
                for N, (t, bound) in points.items():
                    axis.annotate(f"{N}", (t, bound.ratio.value), (4, 4), textcoords="offset points", color=FADED)
            _causal(axis, one, rival)
            axis.set(xscale="log", xlabel="seconds a text", title=f"batch {one.batch}")
        axes[0].set_ylabel("NELBO, nats a token")
        axes[0].legend()
        save_figure(figure, path)


def _causal(axis: Any, one: Costs, rival: Bound | None) -> None:
    if one.causal and rival:
        axis.plot([one.causal], [rival.ratio.value], "s", color=FADED, label="causal, cached (exact)")
    elif one.causal:
        axis.axvline(one.causal, color=FADED, linestyle=":", label="causal, cached (time alone)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--bench", type=Path, required=True)
    parser.add_argument("--head", default="small-muon")
    parser.add_argument("--rival", type=Path)
    said = parser.parse_args()
    rival = None
    if said.rival:
        rival = next((one for one in read_results(said.rival / "results.json").bounds if one.model == "ar"), None)
    bench = json.loads(said.bench.read_text())
    found = costs_of(bench, bounds_in(said.run), said.head)
    if not found:
        raise SystemExit(f"{said.run} has no bounds of {said.head} and of the model alone on the plan that was timed")
    print("", *table(found, rival), "", acceptance(bench), sep="\n")
    draw(found, rival, said.run / "cost.svg")


if __name__ == "__main__":
    main()
