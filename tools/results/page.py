"""Fills pages: between `<!-- begin NAME -->` and `<!-- end NAME -->` goes a table made from committed runs.

The tables are the functions of some modules that take runs and give a Table: `few_steps` is few-steps. Before its run a
table is empty. `<!-- begin open -->` names the tables of its page that are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tools.results import chain, predictions, shadows, tables, tasks, teacher, trained
from tools.results.runs import Runs, Table

from unmask.core.errors import UserError, os_errors, unknown
from unmask.core.files import write_text

_MARK = re.compile(r"<!-- begin (?P<name>[\w-]+) -->\n(?P<old>.*?)<!-- end (?P=name) -->", re.DOTALL)
_BEGIN = re.compile(r"<!-- begin ([\w-]+) -->")
OPEN = "open"
EVERY = {
    name.replace("_", "-"): made
    for module in (tables, trained, tasks, chain, shadows, teacher, predictions)
    for name, made in vars(module).items()
    if getattr(made, "__annotations__", None) == {"runs": "Runs", "return": "Table"}
} | {name: partial(tasks.task, name) for name in tasks.TASKS}


def _open(tables: Sequence[Table]) -> str:
    """What was not measured yet, in one sentence; nothing, if all was."""
    waiting = dict.fromkeys(table.note for table in tables if not table.rows)
    return f"Not measured yet: {'; '.join(waiting)}." if waiting else ""


def fill(page: Path, runs: Runs) -> bool:
    """Write a page's marked parts anew; whether anything changed. The rest is never touched."""
    with os_errors("read", page):
        text = page.read_text(encoding="utf-8")
    unclosed = set(_BEGIN.findall(text)) - {found["name"] for found in _MARK.finditer(text)}
    if unclosed:
        name = min(unclosed)
        raise UserError(f"{page} has `<!-- begin {name} -->` without its end: write `<!-- end {name} -->`")

    names = [found["name"] for found in _MARK.finditer(text) if found["name"] != OPEN]
    for name in names:
        if name not in EVERY:
            raise unknown(f"mark in {page}", name, [*EVERY, OPEN])
    tables = {name: EVERY[name](runs) for name in names}
    parts = {name: table.markdown() for name, table in tables.items()} | {OPEN: _open([*tables.values()])}

    def new(found: re.Match[str]) -> str:
        name = found["name"]
        return "\n".join([f"<!-- begin {name} -->", *filter(None, [parts[name]]), f"<!-- end {name} -->"])

    filled = _MARK.sub(new, text)
    if filled != text:
        write_text(page, filled)
    return filled != text
