"""The figure of `unmask bench plans`: error against forwards, a panel a source, a line a plan."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.core.show import FADED, STYLE, save_figure

if TYPE_CHECKING:
    from unmask.bench.plans import Row


LOOKS: dict[str, dict[str, Any]] = {  # spread plans solid and coloured, the published law black, adaptive ones dashed
    "comb": {"color": "#d55e00", "marker": "o", "linewidth": 2.8, "label": "comb (the default)"},
    "rotation": {"color": "#e69f00", "marker": "P"},
    "golden": {"color": "#e8b87a", "marker": "o"},
    "van der Corput": {"color": "#0072b2", "marker": "s"},
    "stride": {"color": "#56b4e9", "marker": "D"},
    "dilated": {"color": "#009e73", "marker": "^"},
    "iid, uniform": {"color": "#000000", "marker": "o", "linewidth": 2.2, "label": "iid, uniform grid (published)"},
    "permutation": {"color": "#8c8c8c", "marker": "v", "label": "random order, equal counts"},
    "blocks of golden": {"color": "#b07aa1", "marker": "h", "label": "4 blocks of golden"},
    "left to right": {"color": "#7a5c3e", "marker": ">", "linestyle": ":"},
    "confidence": {"color": "#cc3399", "marker": "X", "linestyle": "--", "label": "confidence, surest first"},
    "entropy": {"color": "#7b4bb7", "marker": "*", "linestyle": "--", "label": "entropy, lowest first"},
    "threshold": {"color": "#cc3399", "marker": "x", "linestyle": ":", "label": "confidence with a threshold"},
}
PANELS = {
    "books": ("Books", "characters of four books, a mixture of trigrams"),
    "sticky": ("Sticky chain", "neighbours depend most"),
    "copy": ("Copy at lag 4", "powers of two meet the lag"),
    "order2": ("Order 2, two topics", "near and far dependence"),
    "topic": ("Exchangeable topic", "distance plays no part"),
}
PLACES = [["books", "sticky", "copy"], ["books", "order2", "topic"], ["legend", "legend", "legend"]]


def draw_figure(path: Path, rows: Sequence[Row], length: int) -> None:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure: Any = Figure(figsize=(13, 8.6), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)
        axes = figure.subplot_mosaic(PLACES, width_ratios=[1.45, 1, 1], height_ratios=[1, 1, 0.22])
        for source in PANELS:
            _panel(axes[source], [row for row in rows if row.source == source], source, length)
        axes["legend"].axis("off")
        look = {"loc": "center", "ncols": 4, "fontsize": 10.5, "handlelength": 3, "columnspacing": 2.5}
        axes["legend"].legend(*axes["books"].get_legend_handles_labels(), **look)
        title = "How far the samples are from the law of the source, when the denoiser is exact"
        figure.suptitle(title, x=0.012, ha="left", fontsize=15)
        save_figure(figure, path, dpi=150)


def _panel(axis: Any, rows: Sequence[Row], source: str, length: int) -> None:
    """One source. Plans whose error is nought (or too small to show) stand on the foot."""
    toy = source != "books"
    floor = 1e-3 if toy else 1e-4
    for plan, look in LOOKS.items():
        line = sorted((row for row in rows if row.plan.startswith(plan)), key=lambda row: row.nfe)
        if not line:
            continue
        forwards, error = [row.nfe for row in line], [max(row.error, floor) for row in line]
        size, order = (6.5, 4) if "linewidth" in look else (5, 3)
        axis.plot(forwards, error, **{"label": plan, **look}, markersize=size, zorder=order, clip_on=False)
        if not toy:
            spread = [row.standard_error or 0.0 for row in line]
            axis.errorbar(forwards, error, yerr=spread, fmt="none", ecolor=look["color"], elinewidth=1, alpha=0.6)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    ticks = [1, 2, 3, 4, 5, 6, 8] if toy else [2, 4, 8, 16, 32, 64]
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    levels = [level for level in (1e-4, 1e-3, 1e-2, 1e-1, 1) if level >= floor]
    axis.set_yticks(levels, ["exact" if toy and level == floor else f"{level:g}" for level in levels])
    axis.set_xlim(*((0.92, 8.7) if toy else (1.7, 75)))
    axis.set_ylim(floor, 6 if toy else 1.6)
    axis.minorticks_off()
    axis.grid(True, color="#ececec", linewidth=0.8)
    axis.set_axisbelow(True)
    title, note = PANELS[source]
    axis.set_title(title, pad=22)
    note = note if toy else f"{note}, lines of {length}"
    axis.text(0, 1.015, note, transform=axis.transAxes, color=FADED, va="bottom")
    axis.set_xlabel("forwards a line (NFE)")
    axis.set_ylabel("KL(p ‖ Q), nats a line" if toy else "KL given the plan, nats a character")
