"""Tables: records turned into rows and columns, and numbers into words.

A record is a flat dict: one cell or one bound with what is known of its model. Scores are [value, low, high]. Refuses
to know studies and files.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

Record = dict[str, Any]
Key = Callable[[Record], Hashable] | str
Cell = Callable[[Sequence[Record]], str]
NOTHING = "–"


@dataclass(frozen=True)
class Table:
    """What stands above a table, its head and rows. `holes` are places that were not run."""

    title: str
    note: str
    head: list[str]
    rows: list[list[str]]
    holes: int = 0

    def markdown(self) -> str:
        missing = f" {self.holes} of {len(self.rows) * (len(self.head) - 1)} not run ({NOTHING})." if self.holes else ""
        lines = [f"**{self.title}.** {self.note}{missing}".strip(), ""]
        lines += [_line(self.head), _line(["---", *["---:"] * (len(self.head) - 1)])]
        return "\n".join([*lines, *map(_line, self.rows)])


def _line(words: Sequence[str]) -> str:
    return "| " + " | ".join(words) + " |"


def pivot(
    records: Sequence[Record],
    *,
    title: str,
    rows: Key,
    columns: Key,
    cell: Cell,
    corner: str = "",
    row: Callable[[Any], str] = str,
    column: Callable[[Any], str] = str,
    note: str = "",
    order: Callable[[Any], Any] | None = None,
) -> Table | None:
    """Records by two keys (a key of None leaves a record out); None if there is nothing to show.

    Rows keep the order of the records, or that of `order`; columns are sorted. What was measured twice for one model is
    shown with the larger n; several models in one place (training seeds) go to `cell` together.
    """
    places: dict[tuple[Hashable, Hashable], dict[str, Record]] = {}
    for record in records:
        place = _key(rows, record), _key(columns, record)
        if None not in place and cell([record]):
            models = places.setdefault(place, {})
            if record["n"] > models.get(record["model"], {"n": 0})["n"]:
                models[record["model"]] = record
    if not places:
        return None
    across = sorted({place[1] for place in places})  # type: ignore[type-var]
    down = list(dict.fromkeys(place[0] for place in places))
    down = sorted(down, key=order) if order else down
    usual = Counter(record["n"] for models in places.values() for record in models.values()).most_common(1)[0][0]

    def words(place: tuple[Hashable, Hashable]) -> str:
        found = list(places.get(place, {}).values())
        sizes = sorted({record["n"] for record in found} - {usual})
        return cell(found) + "".join(f"<br>n = {size:,}" for size in sizes) if found else NOTHING

    body = [[row(one), *(words((one, other)) for other in across)] for one in down]
    holes = sum(words == NOTHING for line in body for words in line[1:])
    note = f"{note} n = {usual:,} texts in each place" + (" unless marked." if _differ(places, usual) else ".")
    return Table(title, note.strip(), [corner, *map(column, across)], body, holes)


def _differ(places: dict[Any, dict[str, Record]], usual: int) -> bool:
    return any(record["n"] != usual for models in places.values() for record in models.values())


def _key(key: Key, record: Record) -> Hashable:
    return record.get(key) if isinstance(key, str) else key(record)


# --- cells -----------------------------------------------------------------------------------------------------------


def score(name: str, digits: int | None = None, label: str = "") -> Cell:
    """A score and half its 95% interval; over training seeds the mean and the range. Without digits: a perplexity."""

    def words(records: Sequence[Record]) -> str:
        found = [record[name] for record in records if record.get(name)]
        if not found:
            return ""
        if len(found) > 1:
            values = sorted(one[0] for one in found)
            mean = sum(values) / len(values)
            return f"{label}{_number(mean, digits, mean)} ({_ends(values[0], values[-1], digits, mean)})"
        value, low, high = found[0]
        if low is None or high is None:
            return f"{label}{_number(value, digits, value)}"
        return f"{label}{_number(value, digits, value)} ± {_number((high - low) / 2, digits, value)}"

    return words


def interval(name: str, digits: int) -> Cell:
    """A score with both ends, for what is not symmetric; an open end is ∞."""

    def words(records: Sequence[Record]) -> str:
        found = [record[name] for record in records if record.get(name)]
        return "<br>".join(ends(one, digits) for one in found)

    return words


def ends(one: Sequence[float | None], digits: int, sign: bool = False) -> str:
    """value [low, high]."""
    value, low, high = one
    if value is None:
        return "not bracketed"
    mark = "+" if sign else ""
    low_word = "−∞" if low is None else f"{low:{mark}.{digits}f}"
    high_word = "∞" if high is None else f"{high:{mark}.{digits}f}"
    return f"{value:{mark}.{digits}f} [{low_word}, {high_word}]".replace("-", "−")


def marked(distance: Sequence[float | None], margin: float, digits: int, percent: bool) -> tuple[str, str]:
    """A distance and its [low, high], of logs in per cent; the former bold where all of it is below the margin."""
    shown = [None if end is None else 100 * math.expm1(end) if percent else end for end in distance]
    number, interval = ends(shown, digits, sign=True).split(" ", 1)
    bold = "**" * (distance[2] is not None and distance[2] <= margin)
    return f"{bold}{number}{'%' * percent}{bold}", interval


def beside(*cells: Cell) -> Cell:
    """Several things in one place, beneath each other."""

    def words(records: Sequence[Record]) -> str:
        return "<br>".join(word for word in (cell(records) for cell in cells) if word)

    return words


def forwards(records: Sequence[Record]) -> str:
    """The forwards really run, where they are not the nominal steps."""
    found = [record["nfe"] for record in records if record.get("nfe") and record.get("steps")]
    mean = sum(found) / len(found) if found else 0.0
    return f"NFE {mean:.1f}" if found and abs(mean - records[0]["steps"]) >= 0.05 else ""


def _number(value: float, digits: int | None, scale: float) -> str:
    """With fixed digits; else as many as a perplexity of this scale deserves."""
    places = digits if digits is not None else 0 if scale >= 300 else 1 if scale >= 30 else 2
    return f"{value:,.{places}f}".replace("-", "−")


def _ends(low: float, high: float, digits: int | None, scale: float) -> str:
    return f"{_number(low, digits, scale)} to {_number(high, digits, scale)}"
