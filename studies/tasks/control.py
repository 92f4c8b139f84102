"""The negative control: 9 x 9 Sudoku with 30 givens and one solution, where the surest cell first should win.

python studies/tasks/control.py MODEL PUZZLES.txt OUT.json [STEPS ...]

A puzzle and its solution a line, as sudoku.py writes them. Every plan fills the blanks of all puzzles; a text is right
if it is the solution.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

import unmask

PLANS = ("confidence", "comb", "permutation", "left_to_right", "iid", "rotation", "golden", "stride")


def solved(model: Any, puzzles: list[tuple[str, str]], plan: str, steps: int) -> dict[str, Any]:
    """The puzzles that a plan solves in so many steps."""
    tokenizer = model.tokenizer
    spelled = [tokenizer.encode(puzzle) for puzzle, _ in puzzles]
    [blank] = tokenizer.encode("_")
    rows = [[-1 if token == blank else token for token in row] + [tokenizer.eos_id] for row in spelled]
    start = time.perf_counter()
    samples = unmask.sample(model, n=len(rows), infill=torch.tensor(rows), plan=plan, steps=steps)
    seconds = time.perf_counter() - start
    wrong = zip(samples.tokens[:, :-1].tolist(), puzzles, strict=True)
    right = [tokenizer.decode(row) == solution for row, (_, solution) in wrong]
    return {"plan": plan, "steps": steps, "n": len(rows), "nfe": samples.record["nfe"], "seconds": seconds,
            "solved": sum(right) / len(right), "per_text": "".join("01"[one] for one in right)}  # fmt: skip


def main(folder: str, puzzles: Path, out: Path, counts: list[int]) -> None:
    model = unmask.load(folder)
    lines = [tuple(line.split()) for line in puzzles.read_text(encoding="utf-8").splitlines()]
    both = [(line[0], line[1]) for line in lines]
    blanks = both[0][0].count("_")
    found: list[dict[str, Any]] = []
    for steps in counts or (blanks, 16, 4, 8, 32):
        for plan in PLANS:
            found.append(solved(model, both, plan, steps))
            out.write_text(json.dumps(found) + "\n", encoding="utf-8")
            print(f"{plan} in {steps}: {found[-1]['solved']:.4f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), [int(one) for one in sys.argv[4:]])
