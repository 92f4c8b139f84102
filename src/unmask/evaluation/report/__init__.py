"""The report: one self-contained HTML page, the same in Markdown, and the figures as SVG files.

Takes finished results; refuses to know how they were made.
"""

from __future__ import annotations

from pathlib import Path

from unmask.base.files import write_text
from unmask.evaluation.report.figures import figures
from unmask.evaluation.report.html import page
from unmask.evaluation.report.markdown import markdown
from unmask.evaluation.report.style import SVG
from unmask.evaluation.report.svg import sheet
from unmask.evaluation.results import Results


def write_report(results: Results, folder: Path) -> Path:
    """report.html, report.md and figures/*.svg; returns the page's path."""
    drawn = figures(results)
    for figure in drawn:
        write_text(folder / "figures" / f"{figure.name}.svg", sheet(figure.title, figure.panels, figure.keys, SVG))
    write_text(folder / "report.md", markdown(results, drawn))
    write_text(folder / "report.html", page(results, drawn))
    return folder / "report.html"
