"""The report as Markdown, for a terminal or a repository: the same words and tables, figures as linked SVG files."""

from __future__ import annotations

from unmask.studies.report.figures import Figure
from unmask.studies.report.tables import Table, tables
from unmask.studies.report.words import headline, meaning
from unmask.studies.results import Results


def markdown(results: Results, figures: list[Figure]) -> str:
    """The whole text."""
    said = headline(results)
    lines = ["# unmask evaluation", "", f"**{said.words}** · {said.ends}", "", said.about, "", "## What this means", ""]
    lines += [f"- {sentence}" for sentence in meaning(results)]
    for figure in figures:
        lines += ["", f"## {figure.title}", "", f"![{figure.title}](figures/{figure.name}.svg)", "", figure.caption]
    for table in tables(results):
        lines += ["", *_table(table)]
    lines += [
        "",
        "## Provenance",
        "",
        *(
            f"- {name}: {about['role']}, weights {str(about['sha256'] or '–')[:16]}"
            for name, about in results.models.items()
        ),
    ]
    lines += [
        f"- {name}: {results.provenance[name]}"
        for name in ("unmask", "revision", "torch", "device", "time")
        if name in results.provenance
    ]
    return "\n".join(lines) + "\n"


def _table(table: Table) -> list[str]:
    def row(texts: list[str]) -> str:
        return "| " + " | ".join(text.replace("|", "\\|").replace("\n", "<br>") for text in texts) + " |"

    lines = [f"## {table.title}", ""]
    lines += [table.note, ""] if table.note else []
    return [*lines, row(table.head), row(["---", *("---:" for _ in table.head[1:])]), *map(row, table.rows)]
