"""Fills pages: between `<!-- begin NAME -->` and `<!-- end NAME -->` goes a table made from committed runs.

Before its run a table is empty. `<!-- begin open -->` names the tables of its page that are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.results.chain import CHAIN_TABLES
from tools.results.form import Table
from tools.results.judged import JUDGED
from tools.results.outcomes import shadows_predictions
from tools.results.runs import Run
from tools.results.scripts import SCRIPT_TABLES
from tools.results.shadows import SHADOW_TABLES
from tools.results.tables import TABLES
from tools.results.tasks import TASK_TABLES

from unmask.core.errors import UserError, os_errors, unknown
from unmask.core.files import write_text

_MARK = re.compile(r"<!-- begin (?P<name>[\w-]+) -->\n(?P<old>.*?)<!-- end (?P=name) -->", re.DOTALL)
EVERY = (
    TABLES | TASK_TABLES | CHAIN_TABLES | SHADOW_TABLES | SCRIPT_TABLES | JUDGED
    | {"shadows-predictions": shadows_predictions}
)  # fmt: skip
OPEN = "open"
_BEGIN = re.compile(r"<!-- begin ([\w-]+) -->")


def _open(tables: Sequence[Table]) -> str:
    """What was not measured yet, in one sentence; nothing, if all was."""
    waiting = dict.fromkeys(table.note for table in tables if not table.rows)
    return f"Not measured yet: {'; '.join(waiting)}." if waiting else ""


def fill(page: Path, runs: Mapping[str, Run]) -> bool:
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
