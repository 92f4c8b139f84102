"""How things are called: models on the command line of a study, plans and scores on the page."""

from __future__ import annotations

import re
from dataclasses import dataclass

_MODEL = re.compile(r"(?P<arm>.+?)(-r(?P<round>\d+))?(-s(?P<seed>\d+))?")
PLANS = {
    "iid": "iid (published)",
    "permutation": "permutation, equal counts",
    "golden": "golden",
    "van_der_corput": "van der Corput",
    "stride": "stride",
    "dilated": "dilated",
    "confidence": "confidence",
    "confidence_left": "confidence, ties to the left",
}
SUPERSEDED = ("confidence_left",)  # in tables alone: confidence before chance decided between equally sure positions


@dataclass(frozen=True)
class Name:
    """ARM-rROUND-sSEED: what was done, after which round, with which training seed. Round and seed may be left out."""

    arm: str
    round: int | None
    seed: int | None


def parse(model: str) -> Name:
    found = _MODEL.fullmatch(model)
    if found is None:  # a name with a line break in it
        return Name(model, None, None)
    round_, seed = (None if found[part] is None else int(found[part]) for part in ("round", "seed"))
    return Name(found["arm"], round_, seed)


def plan_name(plan: str) -> str:
    """A plan for people, with its grid where the command named one: PLAN@GRID."""
    base, _, grid = plan.partition("@")
    name = PLANS.get(base, base.replace("_", " "))
    grid = grid.rsplit("/", 1)[-1].removesuffix(".json")
    return f"{name.removesuffix(' (published)')}, grid {grid}" if grid else name


def plan_order(plan: str) -> tuple[int, str]:
    """Plans as the study lists them, each followed by itself on other grids."""
    base = plan.partition("@")[0]
    known = list(PLANS)
    return (known.index(base) if base in known else len(known)), plan
