"""The report: one self-contained HTML page, the same in Markdown, and the figures as SVG files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from unmask.core.files import write_text
from unmask.studies.report import plots, tables
from unmask.studies.report.figures import figures
from unmask.studies.report.words import facts, headline, meaning
from unmask.studies.results import Cell, Results


def write_report(results: Results, folder: Path) -> Path:
    """report.html, report.md and figures/*.svg; returns the page's path."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    drawn = figures(results)
    for figure in drawn:
        write_text(folder / "figures" / f"{figure.name}.svg", plots.file_svg(figure))
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=lambda name: name == "report.html.j2",
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined,
    )  # fmt: skip
    used = {name: getattr(results, name) for name in ("provenance", "settings", "judge", "models")}
    content: dict[str, Any] = {
        "results": results,
        "headline": headline(results),
        "facts": facts(results),
        "meaning": meaning(results),
        "figures": drawn,
        "panels": {figure.name: plots.page_svgs(figure) for figure in drawn},
        "markers": plots.MARKERS,
        "palettes": (plots.LIGHT, plots.DARK),
        "tables": _tables(results),
        "samples": _samples(results),
        "models": tables.models(results),
        "used": json.dumps(used, indent=2, ensure_ascii=False, default=str),
    }
    for name in ("report.md", "report.html"):
        write_text(folder / name, environment.get_template(f"{name}.j2").render(content))
    return folder / "report.html"


def _tables(results: Results) -> list[tables.Table]:
    makers = (
        tables.main_table, tables.rival, tables.questions, tables.speed_ups, tables.two_by_two, tables.likelihood,
        tables.one_token_a_step, tables.path_gaps, tables.diversity, tables.wall_clock, tables.speed,
    )  # fmt: skip
    return [table for table in (make(results) for make in makers) if table.rows]


def _samples(results: Results) -> dict[str, list[Cell]]:
    """Cells whose texts are shown, under their headings: every model on the chosen plan at equal steps, then others."""
    plan, temperature = results.analysis["best_plan"], results.temperature
    cells_under = {f"{n} steps": results.where(plan=plan, steps=n, temperature=temperature) for n in results.steps}
    given = [cell for cell in results.cells if not cell.steps and results.models[cell.model]["role"] != "control"]
    cells_under["real text and other texts"] = given[:3]
    with_texts = {heading: [cell for cell in cells if cell.samples] for heading, cells in cells_under.items()}
    return {heading: cells for heading, cells in with_texts.items() if cells}
