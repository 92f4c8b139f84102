"""The report: one self-contained HTML page, the same in Markdown, and the figures as SVG files.

Takes finished results; refuses to know how they were made.
"""

from __future__ import annotations

from pathlib import Path

from unmask.core.files import write_text
from unmask.studies.report.figures import figures
from unmask.studies.report.html import page
from unmask.studies.report.markdown import markdown
from unmask.studies.report.style import SVG
from unmask.studies.report.svg import sheet
from unmask.studies.results import Results


def write_report(results: Results, folder: Path) -> Path:
    """report.html, report.md and figures/*.svg; returns the page's path."""
    drawn = figures(results)
    for figure in drawn:
        write_text(folder / "figures" / f"{figure.name}.svg", sheet(figure.title, figure.panels, figure.keys, SVG))
    write_text(folder / "report.md", markdown(results, drawn))
    write_text(folder / "report.html", page(results, drawn))
    return folder / "report.html"
