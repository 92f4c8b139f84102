"""How the figures of the studies look: colours, a look for every plan, sheets, axes, legends, the SVG they become.

The same drawing gives the same bytes. A figure follows the reader's light or dark scheme and brings its own ground, so
that it can be read on any page; where a viewer knows no style sheets it is the light one. Refuses to know records of
studies, but for the Gen PPL that an axis is laid out for.
"""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Sequence
from typing import Any

from tools.results.names import plan_order
from tools.results.pivot import Record

from unmask.bench.plans_figure import Look

WIDTH = 700 / 96  # inches: 700 px on a page
INK, SOFT, RULE, PAPER = "#1d2126", "#5c6470", "#e4e2db", "#fffffe"
DARK = {
    INK: "#f0ede6", SOFT: "#a9b0bb", RULE: "#30363f", PAPER: "#15181d",
    "#d55e00": "#ff9142", "#2a6fbb": "#6fb1f5", "#0f8b8d": "#4fd0d0", "#2e8b57": "#6fd39b", "#8b8f98": "#8b929d",
    "#7b4fb5": "#bd98f0", "#c05fa0": "#f08fcf", "#a67c00": "#e0b94a",
}  # fmt: skip
STYLE = {
    "font.family": "DejaVu Sans", "font.size": 8.5, "axes.spines.top": False, "axes.spines.right": False,
    "axes.titlelocation": "left", "axes.titlesize": 9.5, "axes.titleweight": "bold", "axes.titlecolor": INK,
    "axes.edgecolor": SOFT, "axes.labelcolor": SOFT, "text.color": INK, "xtick.color": SOFT, "ytick.color": SOFT,
    "axes.grid": True, "grid.color": RULE, "grid.linewidth": 0.7, "axes.axisbelow": True, "legend.frameon": False,
    "axes.facecolor": PAPER, "figure.facecolor": PAPER, "savefig.facecolor": PAPER, "svg.hashsalt": "unmask",
    "svg.fonttype": "path", "xtick.minor.size": 0, "ytick.minor.size": 0, "lines.markeredgecolor": PAPER,
    "lines.markeredgewidth": 0.7,
}  # fmt: skip


LOOKS = {
    "iid": Look(INK, "o", width=2.1),
    "golden": Look("#d55e00", "o", width=2.4),
    "van_der_corput": Look("#2a6fbb", "s"),
    "stride": Look("#0f8b8d", "D"),
    "dilated": Look("#2e8b57", "^"),
    "permutation": Look("#8b8f98", "v"),
    "confidence": Look("#c05fa0", "X", "--"),
}
OTHERS = (Look("#7b4fb5", "P", "--"), Look("#a67c00", "*", "--"), Look("#c05fa0", "<", ":"), Look("#0f8b8d", ">", ":"))
STUDENT = Look("#2a6fbb", "s", width=2.4)
STUDENTS = tuple(
    Look(color, marker)
    for color, marker in zip(
        ("#d55e00", "#a67c00", "#8b8f98", "#2a6fbb", "#0f8b8d", "#2e8b57", "#7b4fb5", "#c05fa0"),
        "sDXo^vP<",
        strict=True,
    )
)
CHARACTER, KEY = 0.068, 0.57  # inches of a legend: a character of 8.5 points, a line before it with what parts them


def looks(plans: Sequence[str]) -> dict[str, Look]:
    """A look for every plan; plans on a grid of their own take the free ones in order."""
    spare = iter(OTHERS * 8)
    return {plan: LOOKS[plan] if plan in LOOKS else next(spare) for plan in sorted(plans, key=plan_order)}


def sheet(panels: int, height: float, **shared: bool) -> tuple[Any, Sequence[Any]]:
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(WIDTH, height), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.09, wspace=0.04)
    return figure, figure.subplots(1, panels, squeeze=False, **shared)[0]


def times_axis(axis: Any) -> None:
    """Ratios around 1, with as many ticks as there is room for."""
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    wide = (0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 20)
    _plain_ticks(
        axis, [t for t in (wide if high / low > 2.2 else (0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.5)) if low < t < high]
    )


def steps_axis(axis: Any, steps: Sequence[float], name: str) -> None:
    axis.set_xscale("log", base=2)
    ticks = [2**k for k in range(12) if min(steps, default=2) / 1.5 < 2**k < max(steps, default=2) * 1.5]
    ticks = ticks[1::2] if len(ticks) > 7 else ticks  # no room for more beside each other
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.set_xlabel(name)
    axis.minorticks_off()


def ppl_axis(axis: Any, records: Sequence[Record]) -> None:
    axis.set_yscale("log")
    values = [r["gen_ppl"][0] for r in records]
    ticks = [
        t * 10**k for k in range(6) for t in (1, 1.5, 2, 3, 5, 7) if min(values) / 1.2 < t * 10**k < max(values) * 1.2
    ]
    _plain_ticks(axis, ticks)


def _plain_ticks(axis: Any, ticks: Sequence[float]) -> None:
    axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()


def legend(figure: Any, *axes: Any) -> None:
    """Along the foot, in the order of the lines, what is in several panels once; as many columns as there is room."""
    found = [pair for axis in axes for pair in zip(*axis.get_legend_handles_labels(), strict=True)]
    handles = {name: handle for handle, name in reversed(found)}
    names = list(dict.fromkeys(name for _, name in found))
    figure.legend(
        [handles[name] for name in names], names, loc="outside lower center", handlelength=2.4, columnspacing=1.6,
        ncols=next((n for n in (4, 3, 2) if _legend_width(names, n) < WIDTH), 1), fontsize=8.5,
    )  # fmt: skip


def _legend_width(names: Sequence[str], columns: int) -> float:
    """Inches. Columns are filled one after the other, the first with what is over, each as wide as its longest name."""
    each, over = divmod(len(names), columns)
    ends = list(itertools.accumulate(each + (at < over) for at in range(min(columns, len(names)))))
    parts = [names[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return sum(max(map(len, part)) * CHARACTER + KEY for part in parts)


def svg(figure: Any) -> bytes:
    """As bytes that depend on nothing but what is drawn, with a dark scheme."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    rules = "".join(
        f'[style*="{kind}: {light}"]{{{kind}:{dark}!important}}'
        for light, dark in DARK.items()
        for kind in ("fill", "stroke")
    )
    style = f"<style>@media(prefers-color-scheme:dark){{{rules}}}</style>"
    text = buffer.getvalue().decode()
    return re.sub(r"(<svg [^>]*>)", lambda found: found[1] + "\n " + style, text, count=1).encode()
