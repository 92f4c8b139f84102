"""Nothing cooled: how far Gen PPL at T = 1 is from the yardstick's, beside how alike the texts are among themselves.

Unigram entropy is that of the words within a text. Where it differs between two samplers, self-BLEU and the share of
different 4-grams, which look across texts, may not: then cooling one of them makes its texts more alike than the
other's. Refuses to know files, pages and other temperatures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tools.results.pivot import Cell, Record, Table, beside, marked, score
from tools.results.tables import by_plan

ALIKE = beside(score("self_bleu", 3, "self-BLEU "), score("distinct_4", 3, "distinct-4 "))


def uncooled(records: Sequence[Record], of: Record, judge: str, margin: float) -> Table | None:
    """Of the teacher's records at T = 1, against the one at the place `of`; bold where surely less than `margin`."""
    yardstick = largest(records, of["plan"], of["steps"])
    if yardstick is None:
        return None
    note = (
        f"Both at T = 1, whatever their entropy; per cent of the yardstick's Gen PPL, [95%] over texts, bold where all "
        f"of it is below {margin:.0%}. Beneath, how alike texts are: self-BLEU (less is more diverse) and different "
        "4-grams of all; they hang on the number of texts, and stand where it is the yardstick's."
    )
    title = f"Distance by Gen PPL, nothing cooled, judge {judge}"
    return by_plan(records, title=title, note=note, cell=beside(_apart(yardstick, margin), _alike(yardstick)))


def largest(records: Sequence[Record], plan: str, steps: int) -> Record | None:
    """What was drawn there, with the most texts."""
    there = (r for r in records if (r["plan"], r["steps"]) == (plan, steps))
    return max(there, key=lambda r: r["n"], default=None)


def _apart(yardstick: Record, margin: float) -> Cell:
    def words(records: Sequence[Record]) -> str:
        record = records[0]
        if record is yardstick:
            return "0: the yardstick"
        if not record.get("gen_ppl"):
            return ""
        return " ".join(marked(log_ratio(record["gen_ppl"], yardstick["gen_ppl"]), margin, 1, percent=True))

    return words


def _alike(yardstick: Record) -> Cell:
    return lambda records: ALIKE(records) if records[0]["n"] == yardstick["n"] else ""


def log_ratio(one: Sequence[float], other: Sequence[float]) -> tuple[float, float, float]:
    """log(one / other) with its interval, of two [value, low, high] of texts that have nothing in common."""
    value = math.log(one[0] / other[0])
    half = math.hypot(*(math.log(high / low) / 2 for _, low, high in (one, other)))
    return value, value - half, value + half
