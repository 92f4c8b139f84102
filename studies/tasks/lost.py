"""What each step loses on 4 x 4 Sudoku, against the exact law of its tokens given those before: nats a grid.

python studies/tasks/lost.py OUT.json NAME=RUN...       # runs of small.sh: a model, or a head beside it

The grids are uniform on all 288. So the tokens of a step have, given those before it, the probability (grids that agree
with the text after the step) / (grids that agree before it). What is lost is the mean of log(that / q), the
Kullback-Leibler divergence of the sampler's law of a step from the exact one. Its sum over steps bounds what is lost of
the law of whole grids.

In a text all masked every position looks the same to a network whose positions are relative. With the end
of the document given, which shows where the grid stands, all of it is measured again, and how many grids are valid.
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.checkpoint.io import Checkpoint, load
from unmask.core.plugins import load_file
from unmask.core.provenance import record
from unmask.inference.ready import make_ready
from unmask.plans.grids import make_grid
from unmask.plans.plan import make_plan
from unmask.sampling.teacher_forcing import teacher_force
from unmask.sampling.verbs import sample

COUNTS = (2, 4, 8)  # numbers of steps
TIMES, DRAWN = 8, 4096  # how often each grid is taken, each time along another u; grids drawn with the end given


SUDOKU = load_file(str(Path(__file__).with_name("sudoku.py")))


def every_grid(checkpoint: Checkpoint) -> Tensor:
    """All valid grids as tokens, (288, 17): the end of the document is the last."""
    codec = checkpoint.tokenizer
    assert codec is not None
    return torch.tensor([[*codec.encode(grid), codec.eos_id] for grid in SUDOKU.every_small_grid()])


def exact(x_GL: Tensor, step_TL: Tensor, which_T: Tensor, steps: int) -> Tensor:
    """log p of the tokens of every step given those of earlier steps, (T, steps), under the uniform law of x_GL."""
    same_TGL = x_GL[which_T][:, None] == x_GL
    agree = [(same_TGL | (step_TL >= k)[:, None]).all(2).sum(1).double().log() for k in range(steps + 1)]
    return torch.stack([after - before for before, after in pairwise(agree)], 1)


def losses(checkpoint: Checkpoint, steps: int, end_given: bool) -> dict[str, list[float]]:
    """What every step of `comb` loses, and the standard errors."""
    x_GL = every_grid(checkpoint)
    which_T = torch.arange(len(x_GL)).repeat(TIMES)
    ready = make_ready(checkpoint.model, torch.device("cpu"))
    how = (make_plan("comb"), make_grid("rank", steps), checkpoint.process.schedule)
    blank_TL = torch.ones(len(which_T), x_GL.shape[1], dtype=torch.bool)
    blank_TL[:, -1] = not end_given
    forced = teacher_force(ready, x_GL[which_T], *how, step_law=checkpoint.step_law, blank_TL=blank_TL, rows=512)
    log_q_TN = torch.zeros(len(which_T), steps, dtype=torch.float64)
    log_q_TN.scatter_add_(1, forced.step_TL.clamp(min=0), forced.log_q_TL)  # of what is given it is 0
    lost_TN = exact(x_GL, forced.step_TL, which_T, steps) - log_q_TN
    return {"lost": lost_TN.mean(0).tolist(), "stderr": (lost_TN.std(0) / len(lost_TN) ** 0.5).tolist()}


def valid(checkpoint: Checkpoint, plan: str, steps: int) -> float:
    """The share of valid grids, drawn with the end given."""
    template = every_grid(checkpoint)[0]
    template[:-1] = -1
    drawn = sample(checkpoint, DRAWN, steps, infill=template, plan=plan, batch=512, device="cpu")
    codec = checkpoint.tokenizer
    assert codec is not None
    return sum(SUDOKU.valid(codec.decode(tokens)) for tokens in drawn.tokens[:, :-1].tolist()) / DRAWN


def main(out: Path, runs: dict[str, str]) -> None:
    found: dict[str, Any] = {}
    for name, run in runs.items():
        checkpoint = load(run)
        for end_given in (False, True):
            steps = {N: losses(checkpoint, N, end_given) for N in COUNTS}
            ways = [*(("comb", N) for N in COUNTS), ("permutation", 16)] if end_given else []
            right = {f"{plan} {N}": valid(checkpoint, plan, N) for plan, N in ways}
            found[f"{name}, the end given" if end_given else name] = {"steps": steps, "valid": right}
            lost = {N: [round(value, 3) for value in one["lost"]] for N, one in steps.items()}
            print(name, "the end given" if end_given else "", lost, right, flush=True)
    about = {"plan": "comb", "texts": 288 * TIMES, "drawn": DRAWN, "record": record(torch.device("cpu"))}
    out.write_text(json.dumps({**about, "models": found}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), dict(pair.split("=", 1) for pair in sys.argv[2:]))
