"""`unmask bench plans`: the sampler's own error against the number of forwards, every plan, no training.

The denoisers are oracles, so all error comes from drawing several positions in one step as if they were independent.
On short lines the error is KL(p || Q) by enumeration, exact. On lines of text (a mixture of character trigrams fitted
to books) it is the error given the plan, E_u KL(p || q_u) a character, by teacher forcing, with its standard error.
"""

from __future__ import annotations

import json as js
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from unmask.core.errors import UserError
from unmask.core.progress import Progress
from unmask.core.provenance import record
from unmask.core.show import FADED, STYLE, check_figure, save_figure, table
from unmask.core.streams import stream
from unmask.data import corpus
from unmask.inference.ready import make_ready
from unmask.plans.plan import GOLDEN, Blocks, Confidence, Plan, choose_grid, make_plan
from unmask.processes.schedule import LogLinear
from unmask.sampling.teacher_forcing import teacher_force
from unmask.theory.exact import Views, estimate_kl, sample_law
from unmask.theory.oracle import SOURCES, Enumerated
from unmask.theory.trigram import TrigramMixture

TOY_STEPS = (1, 2, 3, 4, 5, 6, 8)
BLOCKS = 4
TOY_THRESHOLDS, TEXT_THRESHOLDS = (0.5, 0.7, 0.9), (0.25, 0.35, 0.5)
BOOKS = "books"
ON_GRIDS = {  # every plan on the grid it is best known on
    "comb": ("comb", "rank"),
    "rotation": ("rotation", "rank"),
    "golden": ("golden", "rank"),
    "van der Corput": ("van_der_corput", "rank"),
    "stride": ("stride", "rank"),
    "dilated": ("dilated", "rank"),
    "iid, uniform": ("iid", "uniform"),
    "permutation": ("permutation", "rank"),
    "left to right": ("left_to_right", "rank"),
    "confidence": ("confidence", "rank"),
    "entropy": ("entropy", "rank"),
}
TITLES = {
    "sticky": "sticky chain: neighbours depend most",
    "order2": "order 2, two topics",
    "topic": "topic: distance plays no part",
    "copy": "copy at lag 4",
    BOOKS: "books: character trigrams",
}


@dataclass(frozen=True)
class Contender:
    """A plan on a grid, as the table and the figure name it."""

    label: str
    plan: Plan
    grid: str | None  # None, and steps None too, where the plan itself sets their number
    steps: tuple[int | None, ...]


@dataclass(frozen=True)
class Row:
    """One measured point. The error is in nats: a line on the toys (exact), a character on books (estimated)."""

    source: str
    plan: str
    steps: int | None
    nfe: float
    error: float
    standard_error: float | None


def contenders(length: int, steps: Sequence[int], thresholds: Sequence[float]) -> list[Contender]:
    counts = tuple(step for step in steps if step <= length)
    found = [Contender(label, make_plan(plan), grid, counts) for label, (plan, grid) in ON_GRIDS.items()]
    blocks = Blocks(-(-length // BLOCKS), GOLDEN)  # at least a step a block
    found.append(Contender("blocks of golden", blocks, "rank", tuple(count for count in counts if count >= BLOCKS)))
    found += [Contender(f"threshold {level}", Confidence(threshold=level), None, (None,)) for level in thresholds]
    return found


def toy_rows(name: str) -> Iterator[Row]:
    """KL(p || Q) of every plan on an enumerable source."""
    oracle = Enumerated(SOURCES[name]())
    views = Views(oracle, oracle.length)
    for one in contenders(oracle.length, TOY_STEPS, TOY_THRESHOLDS):
        for steps in one.steps:
            law = sample_law(views, steps, plan=one.plan, grid=one.grid)
            yield Row(name, one.label, steps, law.nfe, max(0.0, law.kl(oracle.p)), None)


def text_rows(mixture: TrigramMixture, x_BL: Tensor, steps: Sequence[int], seed: int) -> Iterator[Row]:
    """E_u KL(p || q_u) a character on lines drawn from the mixture; the same lines for every plan."""
    L, body = x_BL.shape[1], make_ready(mixture, torch.device("cpu"))
    for one in contenders(L, steps, TEXT_THRESHOLDS):
        for count in one.steps:
            grid = choose_grid(one.plan, one.grid, count)
            forced = teacher_force(body, x_BL, one.plan, grid, LogLinear(), seed=seed, rows=len(x_BL))
            found = estimate_kl(mixture, x_BL, forced)
            yield Row(BOOKS, one.label, count, found.nfe, found.kl / L, found.standard_error / L)


def longest_books(texts: Sequence[str], count: int) -> list[str]:
    documents = [""]
    for source in (source for text in texts for source in corpus.find(text)):
        for piece in source.pieces(corpus.Reading()):
            documents[-1] += piece.text
            if piece.last:
                documents.append("")
    longest = sorted(filter(None, documents), key=len, reverse=True)[:count]
    if len(longest) < count:
        raise UserError(f"the texts hold {len(longest)} documents, fewer than the {count} books asked for")
    return longest


def plans(
    *,
    steps: list[int] = [2, 4, 8, 16, 32],  # noqa: B006  read only
    length: int = 64,
    lines: int = 128,
    texts: list[str] = ["sample"],  # noqa: B006  read only
    books: int = 4,
    seed: int = 0,
    figure: Path | None = None,
    json: bool = False,
) -> dict[str, Any]:
    """Measure every plan's own error on sources whose law is known exactly.

    Args:
        steps: numbers of steps on lines of text (the toys have 8 positions and take 1 to 8)
        length: characters in a line of text
        lines: how many lines of text to score; the standard error falls with its root
        texts: where the books come from: files, folders, or "sample" for the bundled ones
        books: how many of the longest documents the mixture is made of, a component each
        seed: names the lines and the plans
        figure: where to write the figure: a .svg, .png or .pdf
        json: print JSON instead of tables
    """
    if min(steps, default=0) < 1 or lines < 2 or books < 1 or length < 4:
        raise UserError("steps and books must be at least 1, lines at least 2 and length at least 4")
    if max(steps) > length:
        raise UserError(f"steps must be at most {length}, one a character of a line, not {max(steps)}: name fewer with "
                        "--steps, or longer lines with --length")  # fmt: skip
    check_figure(figure)
    mixture = TrigramMixture.fit(longest_books(texts, books), length, dtype=torch.float32)
    x_BL = mixture.draw(lines, stream(seed, "lines"))
    rows = _with_progress({name: toy_rows(name) for name in SOURCES} | {BOOKS: text_rows(mixture, x_BL, steps, seed)})
    report: dict[str, Any] = {
        "rows": [asdict(row) for row in rows],
        "entropy": -float(mixture.log_prob(x_BL).mean()) / length,
        "provenance": record(steps=list(steps), length=length, lines=lines, texts=list(texts), books=books, seed=seed),
    }
    if figure is not None:
        draw_figure(figure, rows, length)
    if json:
        print(js.dumps(report, indent=2))
    else:
        _print_tables(rows, figure)
    return report


def _with_progress(sources: dict[str, Iterator[Row]]) -> list[Row]:
    rows: list[Row] = []
    with Progress(transient=True) as progress:
        for done, (source, found) in enumerate(sources.items()):
            for row in found:
                rows.append(row)
                progress.show(f"{TITLES[source]}: {row.plan}, N = {row.steps or 'its own'}", done, len(sources))
    return rows


def _print_tables(rows: Sequence[Row], figure: Path | None) -> None:
    console = Console(highlight=False)
    for source in dict.fromkeys(row.source for row in rows):
        mine = [row for row in rows if row.source == source and row.steps is not None]
        unit = "KL(p‖Q) in nats, exact" if mine[0].standard_error is None else "E KL(p‖q_u) in nats a character"
        best = {N: min(row.error for row in mine if row.steps == N) for N in sorted({row.steps or 0 for row in mine})}
        found = {(row.plan, row.steps): row for row in mine}
        shown = [[plan, *(_cell(found.get((plan, steps)), least) for steps, least in best.items())]
                 for plan in dict.fromkeys(row.plan for row in mine)]  # fmt: skip
        console.print(table(f"{TITLES[source]}: {unit}", ["plan", *(f"N = {steps}" for steps in best)], shown))
        free = [row for row in rows if row.source == source and row.steps is None]
        points = "; ".join(f"{row.plan}: {row.error:.4f} at {row.nfe:.1f} forwards" for row in free)
        console.print(f"confidence with a {points}\n")
    console.print("In brackets the mean number of forwards, where it is not N: steps that draw nothing cost nothing.")
    if figure is not None:
        console.print(f"figure: {figure}", markup=False)


def _cell(row: Row | None, best: float) -> str:
    if row is None:
        return "-"
    number = f"{row.error:.4f}" + (f" ± {row.standard_error:.4f}" if row.standard_error is not None else "")
    forwards = "" if abs(row.nfe - (row.steps or 0)) < 0.005 else f" ({row.nfe:.1f})"
    return f"[bold green]{number}[/]{forwards}" if row.error <= best + 1e-9 else number + forwards


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
