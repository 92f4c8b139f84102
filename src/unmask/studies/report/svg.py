"""Small plots as SVG text: axes, lines, markers. Colours are CSS variables, so that a plot follows light and dark.

Refuses to know what is plotted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 340, 250
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 26, 38
MARKERS = ("circle", "square", "triangle", "diamond")


@dataclass(frozen=True)
class Axis:
    """A range of numbers along one side."""

    label: str
    low: float
    high: float
    log: bool = False

    @classmethod
    def around(cls, label: str, numbers: Sequence[float], log: bool = False) -> Axis:
        """A little wider than the numbers."""
        known = [number for number in numbers if math.isfinite(number) and (not log or number > 0)] or [1.0]
        low, high = min(known), max(known)
        if log:
            room = (high / low) ** 0.06 if high > low else 1.3
            return cls(label, low / room, high * room, True)
        room = 0.06 * (high - low) if high > low else max(abs(high) * 0.1, 0.1)
        return cls(label, low - room, high + room)

    def share(self, number: float) -> float:
        """Where a number lies, 0 to 1."""
        if self.log:
            return math.log(number / self.low) / math.log(self.high / self.low)
        return (number - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """About five round numbers."""
        if not self.log:
            return _linear_ticks(self.low, self.high)
        for digits in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7)):
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            found = [digit * 10.0**power for power in powers for digit in digits]
            found = [tick for tick in found if self.low <= tick <= self.high]
            if len(found) >= 3:
                return found
        return _linear_ticks(self.low, self.high)


def _linear_ticks(low: float, high: float) -> list[float]:
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = min((digit * power for digit in (1, 2, 2.5, 5, 10)), key=lambda size: abs(size - rough))
    first = math.ceil(low / step)
    return [round(step * k, 10) for k in range(first, math.floor(high / step) + 1)]


def short(number: float) -> str:
    """A tick's label."""
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.4g}"


@dataclass
class Plot:
    """One panel. Draw into it, then take its text."""

    title: str
    x: Axis
    y: Axis
    x_ticks: Sequence[float] | None = None
    _parts: list[str] = field(default_factory=list)

    def at(self, x: float, y: float) -> tuple[float, float]:
        across, up = self.x.share(x), self.y.share(y)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    def line(self, points: Sequence[tuple[float, float]], colour: int, dashed: bool = False) -> None:
        if len(points) > 1:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (self.at(*point) for point in points))
            self._parts.append(f'<polyline class="l c{colour}{" dash" if dashed else ""}" points="{path}"/>')

    def bar(self, x: float, low: float, high: float, colour: int) -> None:
        """An interval."""
        (left, bottom), (_, top) = self.at(x, low), self.at(x, high)
        self._parts.append(
            f'<line class="e c{colour}" x1="{left:.1f}" x2="{left:.1f}" y1="{bottom:.1f}" y2="{top:.1f}"/>'
        )

    def point(self, x: float, y: float, colour: int, marker: str, says: str) -> None:
        left, top = self.at(x, y)
        self._parts.append(
            f'<g class="m c{colour}" transform="translate({left:.1f},{top:.1f})">'
            f"{shape(marker)}<title>{escape(says)}</title></g>"
        )

    def vertical(self, x: float, says: str) -> None:
        """A line at one x, named at its top."""
        left, _ = self.at(x, self.y.low)
        if LEFT <= left <= WIDTH - RIGHT:
            self._parts.append(
                f'<line class="rule" x1="{left:.1f}" x2="{left:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}">'
                f"<title>{escape(says)}</title></line>"
            )

    def text(self) -> str:
        """The panel as an <svg> element without a style of its own."""
        return (
            f'<svg class="plot" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
            f'aria-label="{escape(self.title)}">{self._frame()}{"".join(self._parts)}</svg>'
        )

    def _frame(self) -> str:
        right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
        parts = [f'<text class="title" x="{LEFT}" y="15">{escape(self.title)}</text>']
        for tick in self.x_ticks or self.x.ticks():
            left, _ = self.at(tick, self.y.low)
            if LEFT - 1 <= left <= right + 1:
                parts.append(f'<text x="{left:.1f}" y="{bottom + 15}" text-anchor="middle">{short(tick)}</text>')
        for tick in self.y.ticks():
            _, top = self.at(self.x.low, tick)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{top:.1f}" y2="{top:.1f}"/>')
            parts.append(f'<text x="{LEFT - 6}" y="{top + 3.5:.1f}" text-anchor="end">{short(tick)}</text>')
        parts.append(f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>')
        middle = (LEFT + right) / 2
        parts.append(f'<text x="{middle}" y="{HEIGHT - 5}" text-anchor="middle">{escape(self.x.label)}</text>')
        parts.append(f'<text class="unit" x="{right}" y="15" text-anchor="end">{escape(self.y.label)}</text>')
        return "".join(parts)


def shape(marker: str) -> str:
    """A marker around (0, 0)."""
    return {
        "circle": '<circle r="3.6"/>',
        "square": '<rect x="-3.2" y="-3.2" width="6.4" height="6.4"/>',
        "triangle": '<path d="M0 -4.4 4 3.2 -4 3.2Z"/>',
        "diamond": '<path d="M0 -4.8 4.2 0 0 4.8 -4.2 0Z"/>',
        "star": '<path d="M0 -7 1.9 -2.3 6.8 -2.1 3 1 4.2 5.8 0 3.1 -4.2 5.8 -3 1 -6.8 -2.1 -1.9 -2.3Z"/>',
        "cross": '<path class="open" d="M-4 -4 4 4M4 -4 -4 4"/>',
    }[marker]


@dataclass(frozen=True)
class Key:
    """An entry of a legend."""

    name: str
    colour: int
    marker: str
    dashed: bool = False
    lined: bool = True

    def swatch(self) -> str:
        """A short line with the marker, 30 x 14."""
        line = f'<line class="l c{self.colour}{" dash" if self.dashed else ""}" x1="1" x2="29" y1="7" y2="7"/>'
        dot = f'<g class="m c{self.colour}" transform="translate(15,7)">{shape(self.marker)}</g>'
        return line + dot if self.lined else dot


def sheet(title: str, panels: Sequence[Plot], keys: Sequence[Key], style: str) -> str:
    """Panels and their legend as one SVG file that stands alone."""
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    width = columns * WIDTH + 20
    placed = []
    for i, panel in enumerate(panels):
        left, top = 10 + (i % columns) * WIDTH, 40 + (i // columns) * HEIGHT
        placed.append(panel.text().replace("<svg ", f'<svg x="{left}" y="{top}" width="{WIDTH}" height="{HEIGHT}" ', 1))
    x, y = 10.0, 40.0 + rows * HEIGHT + 12
    for key in keys:
        room = 44 + 6.6 * len(key.name)
        if x + room > width and x > 10:
            x, y = 10.0, y + 22
        placed.append(
            f'<g transform="translate({x},{y})">{key.swatch()}<text x="34" y="11">{escape(key.name)}</text></g>'
        )
        x += room
    height = y + 30
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" width="{width}" '
        f'height="{height:.0f}">'
        f'<style>{style}</style><rect class="sheet" width="100%" height="100%"/>'
        f'<text class="title" x="14" y="26">{escape(title)}</text>{"".join(placed)}</svg>\n'
    )
