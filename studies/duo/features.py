"""MAUVE in two halves: features where the GPU is, the clustering where the package mauve-text is.

python studies/duo/features.py make NAME=MODEL --data HELD --n 2048 --steps 8 32 --out features-NAME.npz
python studies/duo/features.py table features-*.npz --out mauve.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from unmask.checkpoint.io import load
from unmask.metrics.judges import load_judge
from unmask.metrics.mauve import judge_features, mauve
from unmask.metrics.texts import held_out, of_samples
from unmask.sampling.verbs import sample

PLANS = {True: ("comb", "iid"), False: ("ancestral", "greedy_tail")}  # by whether the process goes by a plan
REAL, ABOUT = "real", "about"
MACHINE = ("unmask", "revision", "torch", "python", "device", "time")


def make(told: argparse.Namespace) -> None:
    """Features of real text and of every plan and number of steps, in float16, with the mean forwards of each."""
    name, _, source = told.model.partition("=")
    checkpoint, judge = load(source), load_judge(told.judge)
    assert checkpoint.tokenizer is not None
    real = held_out(told.data, checkpoint.tokenizer, checkpoint.model.length, count=told.n)
    found = {REAL: judge_features(judge, real)}
    for plan in PLANS[checkpoint.process.by_plan]:
        for steps in told.steps:
            drawn = sample(checkpoint, told.n, steps, plan=plan, seed=told.seed)
            key = f"{name} {plan} {steps} {drawn.record['nfe']:.1f}"
            found[key] = judge_features(judge, of_samples(drawn, checkpoint.tokenizer))
    machine = {name: drawn.record.get(name) for name in MACHINE}
    about = json.dumps({"features": "MAUVE", "judge": judge.record(), "seed": told.seed, "machine": [machine]})
    np.savez_compressed(told.out, **{ABOUT: np.array(about)}, **{key: v.astype(np.float16) for key, v in found.items()})


def table(told: argparse.Namespace) -> None:
    """MAUVE of each against as many real texts as there are of both."""
    about: dict[str, Any] = {}
    cells = []
    print("| model | plan | steps | NFE | MAUVE | 95% | texts |\n| --- | --- | ---: | ---: | ---: | --- | ---: |")
    for file in told.files:
        with np.load(file) as found:
            real, about = found[REAL].astype(np.float64), json.loads(str(found[ABOUT]))
            for key in (key for key in found if key not in (REAL, ABOUT)):
                drawn = found[key].astype(np.float64)
                few = min(len(real), len(drawn))
                score = mauve(drawn[:few], real[:few], least=2)
                name, plan, steps, nfe = key.split()
                ends = {"n": few, "mauve": [score.value, score.low, score.high]}
                cells.append({"model": name, "plan": plan, "steps": int(steps), "nfe": float(nfe), **ends})
                words = [*key.split(), f"{score.value:.3f}", f"{score.low:.3f} to {score.high:.3f}", str(few)]
                print("|", " | ".join(words), "|", flush=True)
    if told.out:
        told.out.write_text(json.dumps({**about, "cells": cells}), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(required=True)
    one = verbs.add_parser("make")
    one.add_argument("model")
    one.add_argument("--data", type=Path, required=True)
    one.add_argument("--judge", default="pocket-judge")
    one.add_argument("--n", type=int, default=2048)
    one.add_argument("--steps", type=int, nargs="+", default=[8, 32])
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--out", type=Path, required=True)
    one.set_defaults(run=make)
    two = verbs.add_parser("table")
    two.add_argument("files", type=Path, nargs="+")
    two.add_argument("--out", type=Path, help="where to write the same as JSON, for python -m tools.results")
    two.set_defaults(run=table)
    told = parser.parse_args()
    told.run(told)


if __name__ == "__main__":
    main()
