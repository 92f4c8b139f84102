"""`unmask bench cache`: its KL is what teacher forcing without a cache says of the texts written with one."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from unmask.bench.cache import cost
from unmask.checkpoint.io import load
from unmask.cli.main import run
from unmask.core.errors import UserError
from unmask.inference.cache import Caching
from unmask.inference.ready import make_ready
from unmask.plans.grids import make_grid
from unmask.plans.plan import Blocks
from unmask.processes.schedule import LogLinear
from unmask.sampling.drafts import How
from unmask.sampling.teacher_forcing import teacher_force
from unmask.sampling.verbs import sample

FOLDER = Path(__file__).parents[1] / "assets/published/llada"
PLAN, N, STEPS = Blocks(32), 24, 32


def test_the_error_is_that_of_the_texts_under_the_law_without_a_cache():
    checkpoint = load(FOLDER)
    ready, grid = make_ready(checkpoint.model, torch.device("cpu")), make_grid("rank", STEPS)
    how = How(checkpoint, PLAN, grid)
    found = cost(replace(how, cache=Caching("dual")), ready, N)
    drawn = sample(checkpoint, N, STEPS, plan=PLAN, cache="dual", batch=N, device="cpu")
    forced = teacher_force(ready, drawn.tokens, PLAN, grid, LogLinear(), rows=N)
    gap_N = (drawn.log_q - forced.log_q_TL).sum(1) / checkpoint.model.length  # its mean is the KL
    assert found["kl"] > 0.02
    assert abs(float(gap_N.mean()) - found["kl"]) < 4 * float(gap_N.std()) / N**0.5
    exact = cost(replace(how, cache=Caching("dual", 1)), ready, 4)
    assert exact["kl"] == pytest.approx(0, abs=1e-9)
    assert (exact["computed"], found["computed"] < 0.5) == (1, True)


def test_the_verb_measures_each_cache(capsys):
    run(["bench", "cache", "--model", str(FOLDER), "--n", "2", "--steps", "24", "--plans", "golden", "--refresh", "2",
         "--device", "cpu", "--json"])  # fmt: skip
    lines = json.loads(capsys.readouterr().out)["lines"]
    kinds = [(line["cache"], line["refresh"]) for line in lines]
    assert kinds == [("prefix", 2), ("prefix", None), ("dual", 2), ("dual", None)]
    for often, never in (lines[:2], lines[2:]):
        assert often["kl"] < never["kl"]
        assert often["computed"] > never["computed"]
    with pytest.raises(UserError, match="has no cache"):
        run(["bench", "cache", "--model", "pocket", "--n", "2", "--device", "cpu"])
    with pytest.raises(UserError, match="must be at least 1"):
        run(["bench", "cache", "--model", str(FOLDER), "--n", "0", "--device", "cpu"])
