"""Draws docs/figures/nelbo.svg, what few steps lose by likelihood, and choosing.svg, which plan to take.

The same data give the same bytes.
"""

from __future__ import annotations

import io
import re
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from tools.results.runs import TEACHERS, Runs
from tools.results.tables import COUNTS, POCKET, RACES, best_order, one_token_a_step, rival_above, worst

INK, SOFT, RULE, PAPER = "#1d2126", "#5c6470", "#e4e2db", "#fffffe"
LINES = {  # plan: colour, marker
    "iid": (INK, "o"), "golden": ("#d55e00", "s"), "stride": ("#0f8b8d", "D"),
}  # fmt: skip
COMB = ("#a1338f", "P")
CHOICES = {**LINES, "van_der_corput": ("#8a6d3b", "v"), "rotation": ("#0072b2", "^"), "comb": COMB}
DARK = {
    INK: "#f0ede6", SOFT: "#a9b0bb", RULE: "#30363f", PAPER: "#15181d", "#d55e00": "#ff9142", "#0f8b8d": "#4fd0d0",
    "#8a6d3b": "#c9a66b", "#0072b2": "#58b4f0", "#a1338f": "#e47bd2", "#2e7d32": "#6fce74", "#c2185b": "#ff79a8",
}  # fmt: skip
STYLE = {
    "font.family": "DejaVu Sans", "font.size": 8.5, "axes.spines.top": False, "axes.spines.right": False,
    "axes.titlelocation": "left", "axes.titlesize": 9.5, "text.color": INK, "axes.labelcolor": SOFT,
    "axes.edgecolor": SOFT, "xtick.color": SOFT, "ytick.color": SOFT, "axes.grid": True, "grid.color": RULE,
    "axes.facecolor": PAPER, "figure.facecolor": PAPER, "savefig.facecolor": PAPER, "legend.frameon": False,
    "svg.hashsalt": "unmask", "svg.fonttype": "path",
}  # fmt: skip
PANELS = {
    "pocket, 6.3M, L = 256": POCKET,
    "24M, L = 1024": "24M, L = 1024",
    "DiT small, 169M, L = 1024": "DiT small, L = 1024, seed 0",
}


def nelbo(runs: Runs) -> bytes:
    """A panel a teacher: the bundled one, the 24M one once it was run, and the large one of seed 0."""
    with rc_context(STYLE):
        every = {title: RACES.get(teacher, TEACHERS[teacher][0]) for title, teacher in PANELS.items()}
        panels = {title: name for title, name in every.items() if name in runs}
        figure: Any = Figure(figsize=(3.65 * len(panels), 3.2), layout="constrained")
        axes = figure.subplots(1, len(panels), sharey=True)
        for axis, (title, name) in zip(axes, panels.items(), strict=True):
            run = runs[name]
            level, _ = one_token_a_step(run)
            for plan, (color, marker) in {**LINES, "comb": COMB}.items():
                points = [(steps, run.nats("teacher", plan, steps)) for steps in (4, 8, 16, 32, 64)]
                known = [(steps, nats - level) for steps, nats in points if nats is not None]
                look = {"color": color, "marker": marker, "markersize": 4.5}
                if known:
                    axis.plot(*zip(*known, strict=True), label="iid (published)" if plan == "iid" else plan, **look)
            axis.axhline(0, color=SOFT, linewidth=1, linestyle=(0, (4, 3)))
            if best := best_order(run):
                axis.axhline(best[1][0], color=COMB[0], linewidth=1, linestyle=(0, (4, 3)))
            if title == next(iter(panels)) and (rival := rival_above(runs)):
                axis.axhline(rival[1], color=INK, linewidth=1, linestyle=":", label="causal rival (exact)")
            axis.set_xscale("log", base=2)
            axis.set_xticks([4, 8, 16, 32, 64], ["4", "8", "16", "32", "64"])
            axis.set_xlabel("steps")
            axis.set_title(title)
        axes[0].set_ylabel("nats a token lost")
        axes[0].legend()
        return svg(figure)


def choosing(runs: Runs) -> bytes:
    with rc_context(STYLE):
        figure: Any = Figure(figsize=(7.3, 3.2), layout="constrained")
        lost, lags = figure.subplots(1, 2)
        for plan, (color, marker) in CHOICES.items():
            look = {"color": color, "marker": marker, "markersize": 4.5, "label": plan}
            above = [runs["plans-prose"].above("teacher", plan, steps) for steps in COUNTS]
            lost.plot(COUNTS, [value[0] if value else float("nan") for value in above], **look)
            lags.plot(COUNTS, [worst(runs, plan, steps)[0] for steps in COUNTS], **look)
        lost.axhline(0, color=SOFT, linewidth=1, linestyle=(0, (4, 3)))
        lost.set_ylim(-0.05, 0.36)
        lost.set_title("nats a token lost (held-out books)")
        lags.set_title("texts copied right at the worst lag")
        for axis in (lost, lags):
            axis.set_xscale("log", base=2)
            axis.set_xticks(COUNTS, [str(n) for n in COUNTS])
            axis.set_xlabel("steps")
        lags.legend(loc="upper left")
        return svg(figure)


def svg(figure: Any) -> bytes:
    """With no date in it, and with colours for a dark page."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    pairs = [(kind, *colours) for colours in DARK.items() for kind in ("fill", "stroke")]
    rules = "".join(f'[style*="{kind}: {light}"]{{{kind}:{dark}!important}}' for kind, light, dark in pairs)
    style = f"<style>@media(prefers-color-scheme:dark){{{rules}}}</style>"
    return re.sub(r"(<svg [^>]*>)", lambda m: m[1] + "\n " + style, buffer.getvalue().decode(), count=1).encode()
