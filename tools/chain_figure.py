"""The figure of docs/chain.md: `python -m tools.chain_figure` draws docs/figures/chain.svg."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from unmask.core.show import FADED, INK, STYLE, save_figure

PAGE = Path(__file__).resolve().parents[1] / "docs/figures/chain.svg"
GIVEN, DRAWN, CHANGED = "#ececec", "#cfe3f1", "#f4c9a8"
WORDS = ["she", "moved", "to", "Los", "Angeles", "in", "May"]
SLOTS = [1, 3, 4, 6]  # the positions of the step
WIDTH, HEIGHT = 0.92, 0.62


def draw_figure(path: Path) -> None:
    """Left what a step sees without and with the head; right the rounds of a parallel draw."""
    with rc_context(STYLE):
        figure: Any = Figure(figsize=(11.5, 3.5), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=[7.1, 8.5])
        _step(left)
        _rounds(right)
        save_figure(figure, path)


def _cell(axis: Any, x: float, y: float, word: str, color: str) -> None:
    style = "round,pad=0,rounding_size=0.08"
    axis.add_patch(FancyBboxPatch((x, y), WIDTH, HEIGHT, boxstyle=style, fc=color, ec="none"))
    axis.text(x + WIDTH / 2, y + HEIGHT / 2, word, ha="center", va="center", color=INK, fontsize=9.5)


def _row(axis: Any, y: float, words: list[str], colors: dict[int, str]) -> None:
    for place, word in enumerate(words):
        _cell(axis, place, y, word, colors.get(place, GIVEN))


def _frame(axis: Any, title: str, left: float) -> None:
    axis.set_title(title)
    axis.set_xlim(left, len(WORDS))
    axis.set_ylim(-0.5, 4.2)
    axis.axis("off")


def _step(axis: Any) -> None:
    """The same step twice: four positions by themselves, and each after those before it."""
    wrong = [*WORDS[:4], "York", *WORDS[5:]]
    drawn = dict.fromkeys(SLOTS, DRAWN)
    _frame(axis, "One step draws four positions (coloured)", -0.1)
    axis.text(0, 3.6, "without the head: each sees only the grey words", color=FADED)
    _row(axis, 2.75, wrong, drawn | {3: CHANGED, 4: CHANGED})
    axis.text(0, 1.75, "with it: each also sees what the step drew before it", color=FADED)
    _row(axis, 0.3, WORDS, drawn)
    for before, after in pairwise(SLOTS):
        ends = [(place + 0.46, 0.3 + HEIGHT) for place in (before, after)]
        look = {"arrowstyle": "->", "color": INK, "connectionstyle": "arc3,rad=-0.45", "shrinkA": 1, "shrinkB": 2}
        axis.annotate("", xy=ends[1], xytext=ends[0], arrowprops=look)


def _rounds(axis: Any) -> None:
    """All slots at once, with the same noise, until nothing changes."""
    _frame(axis, "Rounds: the same noise, until nothing changes", -1.5)
    drawn = dict.fromkeys(SLOTS, DRAWN)
    for number, (said, word) in enumerate([("no head", "York"), ("round 1", "Angeles"), ("round 2", "Angeles")]):
        y = 2.75 - 1.225 * number
        axis.text(-0.2, y + HEIGHT / 2, said, color=FADED, ha="right", va="center")
        _row(axis, y, [*WORDS[:4], word, *WORDS[5:]], drawn | ({4: CHANGED} if number == 1 else {}))
    axis.text(0, -0.2, "nothing changed: these are the tokens of slot after slot", color=FADED, va="center")


if __name__ == "__main__":
    draw_figure(PAGE)
