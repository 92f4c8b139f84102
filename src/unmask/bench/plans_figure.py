"""The figure of `unmask bench plans`: error against forwards, a panel a source, a line a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.core.show import FADED, STYLE, save_figure

if TYPE_CHECKING:
    from unmask.bench.plans import Row


@dataclass(frozen=True)
class Look:
    """How a plan's line is drawn: spread plans solid and coloured, the published law black, adaptive ones dashed."""

    color: str
    marker: str
    style: str = "-"
    width: float = 1.5
    label: str = ""  # in the legend, where the plan's name does not do


LOOKS = {
    "comb": Look("#d55e00", "o", width=2.8, label="comb (the default)"),
    "rotation": Look("#e69f00", "P"),
    "golden": Look("#e8b87a", "o"),
    "van der Corput": Look("#0072b2", "s"),
    "stride": Look("#56b4e9", "D"),
    "dilated": Look("#009e73", "^"),
    "iid, uniform": Look("#000000", "o", width=2.2, label="iid, uniform grid (published)"),
    "permutation": Look("#8c8c8c", "v", label="random order, equal counts"),
    "blocks of golden": Look("#b07aa1", "h", label="4 blocks of golden"),
    "left to right": Look("#7a5c3e", ">", ":"),
    "confidence": Look("#cc3399", "X", "--", label="confidence, surest first"),
    "entropy": Look("#7b4bb7", "*", "--", label="entropy, lowest first"),
    "threshold": Look("#cc3399", "x", ":", label="confidence with a threshold"),
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
        _legend(axes["legend"], rows)
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
        thick = look.width > 2
        axis.plot(
            forwards, error, color=look.color, marker=look.marker, linestyle=look.style, linewidth=look.width,
            markersize=6.5 if thick else 5, zorder=4 if thick else 3, clip_on=False,
        )  # fmt: skip
        if not toy:
            spread = [row.standard_error or 0.0 for row in line]
            axis.errorbar(forwards, error, yerr=spread, fmt="none", ecolor=look.color, elinewidth=1, alpha=0.6)
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


def _legend(axis: Any, rows: Sequence[Row]) -> None:
    """Along the foot, of what is drawn."""
    from matplotlib.lines import Line2D

    axis.axis("off")
    handles = [
        Line2D([], [], color=a.color, marker=a.marker, linestyle=a.style, linewidth=a.width, label=a.label or plan)
        for plan, a in LOOKS.items()
        if any(row.plan.startswith(plan) for row in rows)
    ]
    axis.legend(handles=handles, loc="center", ncols=4, fontsize=10.5, handlelength=3, columnspacing=2.5)
