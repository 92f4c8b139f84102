"""Cells of committed runs at equal own entropy: the judge's nats a byte of one less another's, from their means alone.

R is the judge's nats less the own entropy, so at equal own entropy the judge's nats differ as R does. The texts of
these runs are gone, so the two sides are taken for independent: such intervals are unpaired, and a little wide.

Of cells below T = 1 the early runs kept Gen PPL and R only. Then the judge's nats a byte are taken from Gen PPL, with
as many tokens a byte as the same model, plan and steps had at T = 1, and the own entropy is these nats less R. Two
judges must find one own entropy; they differ by 0.005 at T = 0.95 and by 0.03 at T = 0.7 (`pocket`). R hardly moves
with it: that is at most 0.001 and 0.01 of what is read off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from tools.results.runs import Json, Run


def own_entropy(run: Run, cell: Json) -> float | None:
    """In nats a byte: as it was measured, or as above."""
    if "sampler_entropy" in cell:
        return float(cell["sampler_entropy"][0])
    like = run.cell(cell["model"], cell["plan"], cell["steps"])
    if like is None or "judge_nll" not in like or "path_gap" not in cell:
        return None
    tokens_a_byte = like["judge_nll"][0] / math.log(like["gen_ppl"][0])
    return float(tokens_a_byte * math.log(cell["gen_ppl"][0]) - cell["path_gap"][0])


def path(run: Run, model: str, plan: str, steps: int) -> list[Json]:
    """Cells of a model at all temperatures and cuts."""
    wanted = {"model": model, "plan": plan, "steps": steps}
    return [cell for cell in run.said["cells"] if all(cell[name] == value for name, value in wanted.items())]


def temperatures(run: Run, model: str, plan: str, steps: int) -> list[Json]:
    """The same without a cut of the law."""
    return [cell for cell in path(run, model, plan, steps) if "top_p" not in cell]


def read_off(run: Run, cells: Sequence[Json], entropy: float) -> tuple[float, float, float] | None:
    """R where a path has this own entropy, half of its interval, and how it moves; None beyond the path's ends."""
    found = [(own_entropy(run, cell), cell["path_gap"]) for cell in cells if "path_gap" in cell]
    points = sorted(((own, gap) for own, gap in found if own is not None), key=lambda point: -point[0])
    for (above, hot), (below, cool) in pairwise(points):
        if below <= entropy <= above:
            share = (above - entropy) / (above - below)
            half = (1 - share) * (hot[2] - hot[1]) / 2 + share * (cool[2] - cool[1]) / 2
            return hot[0] + share * (cool[0] - hot[0]), half, (hot[0] - cool[0]) / (above - below)
    return None


def gap(run: Run, one: Json | None, cells: Sequence[Json], sign: int = 1) -> list[float] | None:
    """The judge's nats a byte of a cell less those of a path at its own entropy, [value, low, high].

    With `sign` -1 of the path less the cell.
    """
    own = None if one is None else own_entropy(run, one)
    read = None if own is None else read_off(run, cells, own)
    if one is None or read is None:
        return None
    value, half, slope = read
    mine = (one["path_gap"][2] - one["path_gap"][1]) / 2
    across = (one["sampler_entropy"][2] - one["sampler_entropy"][1]) / 2 if "sampler_entropy" in one else 0.0
    spread, less = math.hypot(half, mine, slope * across), sign * (one["path_gap"][0] - value)
    return [less, less - spread, less + spread]


def between(run: Run, one: tuple[str, int], other: tuple[str, int]) -> list[float] | None:
    """The teacher on a plan in so many steps less the teacher on another, both first at T = 1."""
    mine, theirs = (run.cell("teacher", *at) for at in (one, other))
    found = gap(run, theirs, temperatures(run, "teacher", *one), sign=-1)
    return found or gap(run, mine, temperatures(run, "teacher", *other))
