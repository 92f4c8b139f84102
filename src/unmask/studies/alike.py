"""How alike texts are at equal entropy. Entropy is of the words within a text; self-BLEU looks across texts.

Two samplers of equal entropy may differ in it: then one of them won its Gen PPL by writing the same things again.
Refuses to know judges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from unmask.studies.results import Cell, Json

ENDS = ("value", "low", "high")


def alike(cell: Cell, path: Sequence[Cell]) -> Json | None:
    """Self-BLEU of a student's texts and of the teacher's where its path (hottest first) has their entropy.

    Linear in entropy between two temperatures, the hottest pair that encloses it. None where there is no self-BLEU, or
    no such pair.
    """
    target = cell.value("entropy")
    if target is None or any(one.value("self_bleu") is None for one in (cell, *path)):
        return None
    for hot, cool in pairwise(path):
        above, below = hot.scores["entropy"]["value"], cool.scores["entropy"]["value"]
        if min(above, below) <= target <= max(above, below):
            way = 0.0 if above == below else (target - above) / (below - above)
            teacher = {
                end: (1 - way) * hot.scores["self_bleu"][end] + way * cool.scores["self_bleu"][end] for end in ENDS
            }
            student = {end: cell.scores["self_bleu"][end] for end in ENDS}
            return {"student": student, "teacher": teacher, "differ": _differ(student, teacher)}
    return None


def _differ(one: Json, other: Json) -> bool:
    """Whether two values of independent texts are surely apart."""
    half = math.hypot(*((said["high"] - said["low"]) / 2 for said in (one, other)))
    return abs(one["value"] - other["value"]) > half
