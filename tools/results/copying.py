"""`python -m tools.results.copying --out FILE`: how often plans copy 12 digits at each lag, with an exact denoiser.

A text is 256 random digits; 12 of them, at a random place, have a copy d places on. Copies do not overlap: d digits
are followed by their copies, then come the next. An exact denoiser knows all that, so a text is right unless a step
draws a digit and its copy at once, as if they were independent: then they agree with chance 1/10. So the chance that a
text comes out right follows from its steps alone; it is averaged over all places and many draws of the plan.

`run` is the same where copies do overlap: 12 + d digits with period d, a run of 13 equal ones at d = 1. Any plan that
gives each step its share of neighbours then draws several copies before one is seen.

Shapes: B texts, L positions, P places, C copies of one digit.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from tools.results.runs import FORMAT, VERSION
from tools.results.slim import MACHINE, lines
from torch import Tensor

from unmask.core.files import write_text
from unmask.core.plugins import load_plugins
from unmask.core.provenance import record
from unmask.core.streams import stream
from unmask.plans.grids import make_grid
from unmask.plans.plan import make_plan
from unmask.processes.schedule import LogLinear

DIGITS, LENGTH, COPIED = 10, 256, 12
LAGS, STEPS = range(1, 65), (4, 8, 16, 32)
PLANS = ("iid", "permutation", "golden", "van_der_corput", "stride", "dilated", "rotation", "comb")


def pairs(lag: int, copied: int = COPIED) -> list[range]:
    """The places of each digit and its copy, counted from the first."""
    return [range(i, i + lag + 1, lag) for i in range(2 * copied * lag) if i % (2 * lag) < lag][:copied]


def run(lag: int, copied: int = COPIED) -> list[range]:
    """The places of one digit in a text of period `lag`."""
    return [range(first, copied + lag, lag) for first in range(min(lag, copied))]


def right(step_BL: Tensor, copies: Sequence[range]) -> Tensor:
    """The chance that each text is right, its place anywhere: copies that share the first step of a digit have to agree
    by chance; all later ones see it."""
    B, L = step_BL.shape
    places = L - max(places[-1] for places in copies)
    guessed_BP = torch.zeros(B, places, dtype=torch.int8)
    for digit in copies:
        step_CBP = torch.stack([step_BL[:, start : start + places] for start in digit])
        guessed_BP += (step_CBP == step_CBP.amin(0)).sum(0, dtype=torch.int8) - 1
    return (float(DIGITS) ** -torch.arange(COPIED + 1, dtype=torch.float64))[guessed_BP.int()].mean(1)


def measure(plan: str, steps: int, texts: int, seed: int, grid: str = "uniform") -> dict[str, object]:
    """The share of texts right at every lag, and its standard error."""
    blank_BL = torch.ones(texts, LENGTH, dtype=torch.bool)
    generators = [stream(seed, "copy", i) for i in range(texts)]
    step_BL = make_plan(plan).assign(blank_BL, make_grid(grid, steps), LogLinear(), generators).step_BL.to(torch.int8)
    found_BD = torch.stack([right(step_BL, pairs(lag)) for lag in LAGS], 1)
    runs_BD = torch.stack([right(step_BL, run(lag)) for lag in range(1, COPIED)], 1)
    scores = {"right": found_BD.mean(0), "stderr": found_BD.std(0) / texts**0.5}
    scores |= {"run": runs_BD.mean(0), "run_stderr": runs_BD.std(0) / texts**0.5}
    rounded = {name: [round(x, 5) for x in of_D.tolist()] for name, of_D in scores.items()}
    return {"plan": plan, "steps": steps, **rounded}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.results.copying", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the .json file to write")
    parser.add_argument("--plans", nargs="+", default=PLANS)
    parser.add_argument("--plugin", nargs="*", default=[], help="files that register plans")
    parser.add_argument("--texts", type=int, default=1024, help="draws of a plan")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(words)
    load_plugins(given.plugin)
    made = record(torch.device("cpu"))
    cells = [measure(plan, steps, given.texts, given.seed) for plan in given.plans for steps in STEPS]
    about = {"digits": DIGITS, "length": LENGTH, "copied": COPIED, "lags": [LAGS[0], LAGS[-1]], "grid": "uniform"}
    machine = {name: made[name] for name in MACHINE if name in made}
    facts = {"texts": given.texts, "seed": given.seed, "machine": machine}
    write_text(given.out, lines({"format": FORMAT, "version": VERSION, **about, **facts, "cells": cells}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
