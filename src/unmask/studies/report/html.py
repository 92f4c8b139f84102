"""The report as one HTML file that needs nothing else: styles and figures inside, light and dark, wide and narrow.

Refuses to know where numbers come from.
"""

from __future__ import annotations

import json
from html import escape

from unmask.studies.report.figures import Figure
from unmask.studies.report.style import PAGE
from unmask.studies.report.tables import Table, interval, tables
from unmask.studies.report.words import headline, meaning
from unmask.studies.results import Cell, Results

_CUT = 900  # characters of a sample that are shown


def page(results: Results, figures: list[Figure]) -> str:
    """The whole document."""
    main, *rest = tables(results)
    body = [
        _hero(results),
        "<h2>What this means</h2>",
        f'<ul class="meaning">{"".join(f"<li>{escape(sentence)}</li>" for sentence in meaning(results))}</ul>',
        *(_figure(figure) for figure in figures),
        _table(main),
        *(_table(table) for table in rest if table.title != "Speed"),
        _samples(results),
        *(_table(table) for table in rest if table.title == "Speed"),
        _provenance(results),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>unmask evaluation</title>'
        f'<link rel="icon" href="data:,"><style>{PAGE}</style></head><body><main>{"".join(body)}</main></body></html>\n'
    )


def _hero(results: Results) -> str:
    said = headline(results)
    facts = "".join(
        f'<div class="fact"><b>{value}</b><span>{escape(what)}</span></div>' for value, what in _facts(results)
    )
    judge = f"judge {results.judge['name']}, protocol {results.settings['protocol']}" if results.judge else "no judge"
    return (
        f'<h1>unmask evaluation</h1><p class="sub">{escape(judge)} · {results.settings["n"]} texts a cell · '
        f"{results.settings['length']} tokens each · {len(results.cells)} cells</p>"
        f'<section class="hero"><div class="big{" good" if said.good else ""}">{escape(said.words)}</div>'
        f'<div class="ends">{escape(said.ends)}</div><p class="sub">{escape(said.about)}</p>'
        f'<div class="facts">{facts}</div></section>'
    )


def _facts(results: Results) -> list[tuple[str, str]]:
    entry, found = results.analysis["headline"], []
    if entry is not None:
        for name, what in (
            ("gap", "log PPL to the teacher at equal NFE and entropy"),
            ("gap_at_real", "the same at real text's entropy"),
        ):
            text = interval(entry[name], signed=True)
            found.append(("not bracketed" if text == "–" else _small(text), what))
        for less in results.analysis["likelihood"]:
            if all(less[name] == entry[name] for name in ("model", "plan", "steps")):
                found.append(
                    (_small(interval(less, signed=True)), "nats a token of NELBO to the teacher, on held-out text")
                )
    if results.analysis["best_plan"]:
        found.append((escape(results.analysis["best_plan"]), "best plan, by the teacher alone"))
    return found


def _small(text: str) -> str:
    """What stands beneath goes into small print."""
    first, *rest = text.split("\n")
    return escape(first) + "".join(f"<small>{escape(line)}</small>" for line in rest)


def _figure(figure: Figure) -> str:
    keys = "".join(
        f'<span><svg viewBox="0 0 30 14">{key.swatch()}</svg>{escape(key.name)}</span>' for key in figure.keys
    )
    panels = "".join(f'<div class="panel">{panel.text()}</div>' for panel in figure.panels)
    return (
        f'<h2>{escape(figure.title)}</h2><p class="note">{escape(figure.caption)}</p>'
        f'<div class="legend">{keys}</div><div class="panels">{panels}</div>'
    )


def _table(table: Table) -> str:
    head = "".join(
        f"<th{' class=words' if column in table.wordy else ''}>{escape(name)}</th>"
        for column, name in enumerate(table.head)
    )
    rows = []
    for i, row in enumerate(table.rows):
        cells = "".join(
            f"<td{' class=words' if column in table.wordy else ''}>{_small(text)}</td>"
            for column, text in enumerate(row)
        )
        rows.append(f"<tr{' class=control' if i in table.controls else ''}>{cells}</tr>")
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return (
        f'<h2>{escape(table.title)}</h2>{note}<div class="wide" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _samples(results: Results) -> str:
    """Side by side at equal NFE: every model on the best plan, the fewest steps open, the others folded."""
    blocks = []
    for i, steps in enumerate(results.steps):
        cells = [
            cell
            for cell in results.where(plan=results.analysis["best_plan"], steps=steps, temperature=results.temperature)
            if cell.samples
        ]
        if cells:
            shown = f'<div class="samples">{"".join(map(_sample, cells))}</div>'
            blocks.append(f"<details{' open' if i == 0 else ''}><summary>{steps} steps</summary>{shown}</details>")
    given = [cell for cell in results.cells if results.models[cell.model]["role"] in ("real", "ar") and cell.samples]
    if given:
        shown = f'<div class="samples">{"".join(map(_sample, given[:3]))}</div>'
        blocks.append(f"<details><summary>real text and causal models</summary>{shown}</details>")
    note = "The first texts of each cell, not chosen."
    return f'<h2>Samples at equal NFE</h2><p class="note">{note}</p>{"".join(blocks)}' if blocks else ""


def _sample(cell: Cell) -> str:
    about = [f"entropy {cell.value('entropy'):.3f}"]
    if "gen_ppl" in cell.scores:
        about.insert(0, f"Gen PPL {cell.value('gen_ppl'):.1f}")
    if cell.nfe:
        about.append(f"NFE {cell.nfe:.0f}")
    texts = "".join(f"<p>{escape(_cut(text))}</p>" for text in cell.samples[:2])
    return f'<div class="sample"><h3>{escape(cell.model)}</h3><div class="sub">{" · ".join(about)}</div>{texts}</div>'


def _cut(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _CUT else text[:_CUT].rsplit(" ", 1)[0] + " …"


def _provenance(results: Results) -> str:
    said = {
        "provenance": results.provenance,
        "settings": results.settings,
        "judge": results.judge,
        "models": results.models,
    }
    rows = [[name, about["role"], str(about["sha256"] or "–")[:16]] for name, about in results.models.items()]
    table = _table(
        Table(
            "Provenance",
            ["model", "role", "sha256 of the weights"],
            rows,
            "results.json beside this page holds every cell with its own record.",
        )
    )
    text = escape(json.dumps(said, indent=2, ensure_ascii=False, default=str))
    return f"{table}<details><summary>everything that was really used</summary><pre>{text}</pre></details>"
