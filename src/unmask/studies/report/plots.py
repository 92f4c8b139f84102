"""Panels of points and lines as SVG, drawn by matplotlib: one for each panel of the page, and one file for all of them.

On the page colours become CSS variables, so that a plot follows light and dark; a file keeps the light ones.
"""

from __future__ import annotations

import io
import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SERIES = 8  # series that have a colour of their own: c0 to c7
LIGHT = {
    "paper": "#fbfaf7", "card": "#fffffe", "ink": "#1d2126", "soft": "#5c6470", "rule": "#dfdcd3", "faint": "#eeebe3",
    "good": "#1a7f4b", "c0": "#5b6472", "c1": "#d1495b", "c2": "#2a6fbb", "c3": "#2e8b57", "c4": "#b8860b",
    "c5": "#7b4fb5", "c6": "#0f8b8d", "c7": "#c05fa0",
}  # fmt: skip
DARK = {
    "paper": "#14171b", "card": "#1c2026", "ink": "#e8e6e1", "soft": "#a2a9b4", "rule": "#353b44", "faint": "#262b32",
    "good": "#5fd39a", "c0": "#aab4c3", "c1": "#ff7f8f", "c2": "#6fb1f5", "c3": "#6fd39b", "c4": "#e6bd4f",
    "c5": "#bd98f0", "c6": "#55cfd0", "c7": "#ef9ad0",
}  # fmt: skip
# matplotlib's names, and for a legend in text
MARKERS = {"o": "●", "s": "■", "^": "▲", "D": "◆", "*": "★", "X": "✕", "P": "✚"}
STYLE = {
    "font.family": "sans-serif", "font.size": 8, "axes.titlesize": 9, "axes.titleweight": "bold",
    "axes.titlelocation": "left", "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False,
    "axes.edgecolor": LIGHT["rule"], "axes.labelcolor": LIGHT["soft"], "axes.titlecolor": LIGHT["ink"],
    "text.color": LIGHT["soft"], "xtick.color": LIGHT["soft"], "ytick.color": LIGHT["soft"], "xtick.major.size": 0,
    "ytick.major.size": 0, "axes.grid": True, "axes.grid.axis": "y", "grid.color": LIGHT["faint"],
    "axes.axisbelow": True, "legend.frameon": False, "axes.facecolor": LIGHT["card"],
    "svg.hashsalt": "unmask", "svg.fonttype": "path",
}  # fmt: skip
_SVG, _LINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"


@dataclass(frozen=True)
class Point:
    """`says` is what a pointer over it reads; `low` and `high` are the ends of its interval, where one is drawn."""

    x: float
    y: float
    says: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Series:
    """Points of one name, with a colour of LIGHT and a marker of MARKERS."""

    name: str
    colour: str
    marker: str
    points: list[Point]
    dashed: bool = False
    lined: bool = True


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    across: str
    up: str
    series: list[Series]
    log_x: bool = False


@dataclass(frozen=True)
class Figure:
    """Panels that share a legend, and where `shared` their axes; `name` is its file."""

    name: str
    title: str
    caption: str
    panels: list[Panel]
    shared: bool = False

    @property
    def legend(self) -> list[Series]:
        """One of each name, of those that are drawn."""
        return list({one.name: one for panel in self.panels for one in panel.series if one.points}.values())


def page_svgs(figure: Figure) -> list[str]:
    """Each panel as an <svg> element for the page, without ids and styles that would meet others there."""
    return [_for_page(_drawn([panel], figure), panel) for panel in figure.panels]


def file_svg(figure: Figure) -> str:
    """All panels and the legend as one file."""
    return _drawn(figure.panels, figure, alone=True)


def _drawn(panels: Sequence[Panel], figure: Figure, alone: bool = False) -> str:
    from matplotlib import rc_context
    from matplotlib.figure import Figure as Sheet
    from matplotlib.lines import Line2D

    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    with rc_context(STYLE):
        below = 0.25 * math.ceil(len(figure.legend) / 3) + 0.4 if alone else 0.0
        sheet: Any = Sheet((3.4 * columns, 2.5 * rows + below), layout="constrained", facecolor=LIGHT["card"])
        grid = sheet.subplots(rows, columns, squeeze=False).flat
        for axes, panel in zip(grid, panels, strict=False):
            _draw(axes, panel, figure.panels if figure.shared else [panel])
        for axes in list(grid)[len(panels) :]:
            axes.axis("off")
        if alone:
            sheet.suptitle(figure.title, x=0.01, ha="left", weight="bold", color=LIGHT["ink"])
            keys = [Line2D([], [], label=one.name, marker=one.marker, **_line(one)) for one in figure.legend]
            sheet.legend(handles=keys, loc="outside lower left", ncols=3)
        buffer = io.StringIO()
        sheet.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def _line(series: Series) -> dict[str, Any]:
    style = ("--" if series.dashed else "-") if series.lined else "none"
    return {"color": LIGHT[series.colour], "linestyle": style, "linewidth": 1.4}


def _draw(axes: Any, panel: Panel, scaled: Sequence[Panel]) -> None:
    """One panel on axes that hold every point of the panels in `scaled`."""
    for series in panel.series:
        axes.plot([p.x for p in series.points], [p.y for p in series.points], **_line(series))
        for point in series.points:
            if point.low is not None and point.high is not None:
                axes.vlines(point.x, point.low, point.high, LIGHT[series.colour], alpha=0.55, linewidth=1)
            axes.plot(
                point.x, point.y, series.marker, markersize=8 if series.marker == "*" else 5, zorder=3,
                color=LIGHT[series.colour], markeredgecolor=LIGHT["card"], markeredgewidth=0.6,
                gid=f"says:{point.says}",
            )  # fmt: skip
    axes.set_xscale("log" if panel.log_x else "linear")
    every = [point for one in scaled for series in one.series for point in series.points]
    axes.update_datalim([(p.x, y) for p in every for y in (p.y, p.low, p.high) if y is not None])
    axes.margins(0.06)
    _ticks(axes.xaxis, panel.log_x)
    _ticks(axes.yaxis)
    axes.set_title(panel.title)
    axes.set_xlabel(panel.across)
    axes.set_title(panel.up, loc="right", weight="normal", fontsize=8, color=LIGHT["soft"])


def _ticks(axis: Any, log: bool = False) -> None:
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

    axis.set_major_locator(LogLocator(base=2) if log else MaxNLocator(5))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(StrMethodFormatter("{x:.6g}"))


def _for_page(svg: str, panel: Panel) -> str:
    for prefix, space in (("", _SVG), ("xlink", _LINK)):
        ElementTree.register_namespace(prefix, space)
    root = ElementTree.fromstring(svg)
    for element in list(root):
        if element.tag == f"{{{_SVG}}}metadata":
            root.remove(element)
    for group in root.iter(f"{{{_SVG}}}g"):
        name = group.attrib.pop("id", "")
        if name.startswith("says:"):
            ElementTree.SubElement(group, f"{{{_SVG}}}title").text = name.removeprefix("says:")
    for definitions in root.iter(f"{{{_SVG}}}defs"):
        for style in definitions.findall(f"{{{_SVG}}}style"):
            definitions.remove(style)
    for name in ("width", "height"):
        del root.attrib[name]
    root.attrib |= {"class": "plot", "role": "img", "aria-label": panel.title}
    text = ElementTree.tostring(root, encoding="unicode")
    for name, colour in LIGHT.items():
        text = text.replace(colour, f"var(--{name})")
    return text
