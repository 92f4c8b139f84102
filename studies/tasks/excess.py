"""What each step loses on 4 x 4 Sudoku, against the exact law of its tokens given those before: nats a grid.

python studies/tasks/excess.py OUT.json NAME=RUN...       # runs of small.sh: a model, or a head beside it

The grids are uniform on all 288. So the tokens of a step have, given those before it, the probability (grids that agree
with the text after the step) / (grids that agree before it). What is lost is the mean of log(that / q), the
Kullback-Leibler divergence of the sampler's law of a step from the exact one. Its sum over steps bounds what is lost of
the law of whole grids.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import torch
from torch import Tensor

from unmask.checkpoint.io import Checkpoint, load
from unmask.inference.ready import make_ready
from unmask.plans.grids import make_grid
from unmask.plans.plan import make_plan
from unmask.sampling.teacher_forcing import teacher_force

COUNTS, TIMES = (2, 4, 8), 16  # numbers of steps; how often each grid is taken, each time along another u


def every_grid(checkpoint: Checkpoint) -> Tensor:
    """All valid grids as tokens, (288, 17): the end of the document is the last."""
    path = Path(__file__).with_name("sudoku.py")
    spec = importlib.util.spec_from_file_location("sudoku", path)
    assert spec is not None and spec.loader is not None  # noqa: PT018
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    codec = checkpoint.tokenizer
    assert codec is not None
    grids = [codec.encode(grid) for grid in module.every_small_grid()]
    return torch.tensor([[*ids, codec.eos_id] for ids in grids])


def exact(x_GL: Tensor, step_TL: Tensor, which_T: Tensor, steps: int) -> Tensor:
    """log p of the tokens of every step given those of earlier steps, (T, steps), under the uniform law of x_GL."""
    same_TGL = x_GL[which_T][:, None] == x_GL
    agree = [(same_TGL | (step_TL >= k)[:, None]).all(2).sum(1).double().log() for k in range(steps + 1)]
    return torch.stack([after - before for before, after in zip(agree, agree[1:], strict=False)], 1)


def losses(checkpoint: Checkpoint, plan: str, steps: int) -> tuple[list[float], list[float]]:
    """What every step loses, and the standard errors."""
    x_GL = every_grid(checkpoint)
    which_T = torch.arange(len(x_GL)).repeat(TIMES)
    ready = make_ready(checkpoint.model, torch.device("cpu"))
    how = (make_plan(plan), make_grid("rank", steps), checkpoint.process.schedule)
    forced = teacher_force(ready, x_GL[which_T], *how, step_law=checkpoint.step_law, rows=512)
    log_q_TN = torch.zeros(len(which_T), steps, dtype=torch.float64)
    log_q_TN.scatter_add_(1, forced.step_TL, forced.log_q_TL)
    lost_TN = exact(x_GL, forced.step_TL, which_T, steps) - log_q_TN
    return lost_TN.mean(0).tolist(), (lost_TN.std(0) / len(lost_TN) ** 0.5).tolist()


def main(out: Path, runs: dict[str, str]) -> None:
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for name, run in runs.items():
        checkpoint = load(run)
        found[name] = {}
        for steps in COUNTS:
            mean, error = losses(checkpoint, "comb", steps)
            found[name][str(steps)] = {"lost": mean, "stderr": error}
            print(name, steps, "sum", round(sum(mean), 3), "by step", [round(value, 3) for value in mean], flush=True)
    out.write_text(json.dumps({"plan": "comb", "texts": 288 * TIMES, "models": found}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), dict(pair.split("=", 1) for pair in sys.argv[2:]))
