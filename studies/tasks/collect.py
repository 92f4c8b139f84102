"""What came of the texts of one task and seed: of every cell its scores, and of every text what counts.

python studies/tasks/collect.py TASK SEED RUN OUT.json     # RUN is a folder of run.sh

Texts are read from the cells of `unmask evaluate` and checked again here. `per_text` has one sign a text: how much of
it is right, 0 or 1, or 0 to g (16) in equations.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch

from unmask.core.plugins import load_file
from unmask.data.tokenizer import Tokenizer
from unmask.metrics.texts import Texts

SIGNS = "0123456789abcdefg"
MAIN = {"records": ("all", 1), "equations": ("right", 16), "sudoku4": ("valid", 1), "sudoku9": ("valid", 1)}
NAMES = {"records": "key", "equations": "first", "sudoku4": "grid", "sudoku9": "grid"}  # what texts should differ in
Cell = dict[str, Any]


def cell_at(task: str, run: Path, path: Path) -> Cell:
    """The scores of one cell in a file of `unmask evaluate`."""
    script = "sudoku" if task.startswith("sudoku") else task
    check = load_file(str(Path(__file__).with_name(f"{script}.py"))).check
    return cell_of(task, json.loads(path.read_text(encoding="utf-8")), Tokenizer.load(run / "model"), check)


def cell_of(task: str, said: dict[str, Any], tokenizer: Tokenizer, check: Callable[[str], dict[str, Any]]) -> Cell:
    """The scores of one cell of texts."""
    record, log_q = said["record"], torch.tensor(said["log_q"], dtype=torch.float64)
    found = [check(text) for text in Texts(torch.tensor(said["tokens"]), tokenizer).strings]
    (main, parts), name, n = MAIN[task], NAMES[task], len(said["tokens"])
    named = [one[name] for one in found if one[main] == 1]
    scores = {key: sum(one[key] for one in found) / n for key in found[0] if key != name}
    distilled = (record["model"].get("distillation") or {}).get("method", "plain")
    law = record["step_law"]
    head = next((kind for kind in ("blind", "places") if law.get(kind)), "chain")
    cell = {
        "model": distilled if law["name"] == "factorised" else head, "plan": record["plan"]["name"],
        "steps": record["steps"], "n": n, "nfe": sum(said["nfe"]) / n, "seconds": said["seconds"],
        "rounds": record["rounds"], "precision": record["precision"], "scores": scores, "score": main,
        "whole": len(named), "different": len(set(named)),  # of the whole ones
        "entropy": -float(log_q.mean()), "entropy_stderr": float(log_q.std()) / math.sqrt(n),
        "per_text": "".join(SIGNS[round(one[main] * parts)] for one in found),
    }  # fmt: skip
    return cell | ({"chi_square": chi_square(named, 288)} if task == "sudoku4" and named else {})


def chi_square(drawn: list[str], kinds: int) -> dict[str, float]:
    """Against the uniform law on so many kinds: the statistic, its mean under that law, and the probability of more."""
    each = len(drawn) / kinds
    counts = list(Counter(drawn).values())
    statistic = sum((count - each) ** 2 for count in counts) / each + (kinds - len(counts)) * each
    more = torch.special.gammaincc(torch.tensor((kinds - 1) / 2.0).double(), torch.tensor(statistic / 2).double())
    return {"statistic": statistic, "freedom": kinds - 1, "p": float(more)}


def main(task: str, seed: int, run: Path, out: Path) -> None:
    with ProcessPoolExecutor(4) as pool:
        found = list(pool.map(partial(cell_at, task, run), sorted(run.glob("cells/*.samples.json"))))
    controls = {
        path.stem[8:]: json.loads(path.read_text(encoding="utf-8")) for path in sorted(run.glob("control-*.json"))
    }
    about = json.loads((run / "model/checkpoint/provenance.json").read_text(encoding="utf-8"))
    result = {"task": task, "seed": seed, "cells": found, "control": controls, "model": about}
    part = out.with_name(f".{out.name}")
    part.write_text(json.dumps(result) + "\n", encoding="utf-8")
    part.replace(out)
    for cell in sorted(found, key=lambda cell: (cell["model"], cell["plan"], cell["steps"])):
        share = cell["scores"][cell["score"]]
        print(f"{task} {cell['model']} {cell['plan']} {cell['steps']}: {share:.4f} of {cell['n']}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]))
