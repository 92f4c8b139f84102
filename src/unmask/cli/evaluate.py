"""What `unmask evaluate` shows: progress, a table of the scores, what they mean, and where the report is."""

from __future__ import annotations

from json import dumps
from pathlib import Path

import rich.table
from rich.console import Console
from rich.markup import escape

from unmask.cli.parser import Call
from unmask.core import show as shown_as
from unmask.core.progress import Progress, note
from unmask.core.ranks import is_first
from unmask.metrics.built_in import of_plug_ins
from unmask.studies.report import write_report
from unmask.studies.report.tables import Table, halved, head_of, interval, likelihood, main_table, questions
from unmask.studies.report.words import meaning
from unmask.studies.results import Results


def present(call: Call, *, out: Path = Path("evaluation"), json: bool = False) -> None:
    """Run an evaluation, write its report and show the table.

    Args:
        out: the folder that keeps finished cells, results.json, report.html, report.md and figures/
        json: print the analysis as one JSON object instead of a table
    """
    shown = is_first()
    with Progress(shown=shown, transient=True) as bar:
        begun = False

        def report(what: str, done: int, total: int) -> None:
            nonlocal begun
            if not begun:  # the first call says how much there is to do
                note(what, shown)
            begun = True
            bar(what, done, total)

        results = call(out=out, progress=report)
    if shown:
        show(results, out, json)


def show(results: Results, out: Path, as_json: bool) -> None:
    """Write the report, print what a person or a program wants to know."""
    write_report(results, out)
    if as_json:
        names = ("settings", "judge", "analysis", "notes", "provenance")
        asked = [{name: said for name, said in row.items() if name != "answers"} for row in results.questions]
        print(dumps({**{name: getattr(results, name) for name in names}, "questions": asked}, indent=2))
        return
    console = Console(highlight=False)
    tables = [main_table(results), _other_scores(results)] if results.cells else [likelihood(results), _plans(results)]
    tables.append(questions(results))
    for table in tables if results.plans else tables[1:]:  # texts alone: the one with every score
        if table.rows:
            console.print(_rich(table))
    for sentence in meaning(results):
        console.print(f"- {sentence}", soft_wrap=True, markup=False)
    console.print(f"report: {out / 'report.html'}", soft_wrap=True, markup=False)


def _rich(grid: Table) -> rich.table.Table:
    """A table of the report for a terminal. Names of models and plans may look like rich's markup, and are not."""
    rows = [[escape(cell.replace("\n", " / ")) for cell in row] for row in grid.rows]
    return shown_as.table(escape(grid.title), list(map(escape, grid.head)), rows)


def _other_scores(results: Results) -> Table:
    """Scores of plug-ins; and of texts from files every score, since there is no other table for those."""
    if results.named("texts") and not results.plans:
        cells = [cell for cell in results.cells if cell.plan is None]
        names = list(dict.fromkeys(name for cell in cells for name in cell.scores))
        rows = [[name, *(halved(cell.scores.get(name)) for cell in cells)] for name in names]
        return Table("Every score, ± half the 95% interval", ["", *(cell.model for cell in cells)], rows)
    names = of_plug_ins({name for cell in results.cells for name in cell.scores})
    cells = [cell for cell in results.cells if cell.temperature in (None, results.temperature) and names]
    where = [f"{cell.model}\n{cell.plan}, {cell.steps} steps" if cell.steps else cell.model for cell in cells]
    rows = [[at, *(halved(cell.scores.get(name)) for name in names)] for at, cell in zip(where, cells, strict=True)]
    return Table("Other scores, ± half the 95% interval", ["", *names], rows)


def _plans(results: Results) -> Table:
    """Every plan's NELBO less that of the first one; empty where there is one plan."""
    less = {(one["model"], one["plan"], one["steps"]): one for one in results.analysis["plan_likelihood"]}
    rows = [
        [f"{model}\n{plan}", *(interval(less.get((model, plan, steps)), signed=True) for steps in results.steps)]
        for model, plan in dict.fromkeys((model, plan) for model, plan, _ in less)
    ]
    title = f"NELBO less that of {next(iter(results.plans), None)}, nats/token, paired over texts"
    return Table(title, head_of(results, ""), rows)
