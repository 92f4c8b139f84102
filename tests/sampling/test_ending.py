"""An answer that ends in one block is not written on, and nothing before its end changes."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from unmask.checkpoint.io import load
from unmask.inference.cache import Caching
from unmask.inference.categorical import Law
from unmask.inference.ready import make_ready
from unmask.plans.grids import make_grid
from unmask.plans.plan import Blocks, Confidence, LeftToRight, choose_grid
from unmask.sampling.drafts import How
from unmask.sampling.sample import Run

FOLDER = Path(__file__).parents[1] / "assets/published/sdar"


@dataclass
class Codec:
    """As much of a tokenizer as knows where answers end."""

    stop_ids: frozenset[int]
    eos_id: int = 148
    size: int = 160
    mask_id: int = 152


@pytest.fixture(scope="module")
def checkpoint():
    return load(FOLDER)


def written(checkpoint, plan, steps, given_BL, stop_ids, temperature=1.0, cache=None):
    spell = "to_end" if stop_ids else "all"
    source = replace(checkpoint, tokenizer=Codec(frozenset(stop_ids)))
    grid = make_grid("rank", steps) if steps else choose_grid(plan, None, None)
    how = How(source, plan, grid, law=Law(temperature), spell=spell, cache=cache)
    run = Run(how, make_ready(source.model, torch.device("cpu")))
    return run.batch(list(range(len(given_BL))), given_BL)


@pytest.mark.parametrize("cache", [None, Caching("exact")])
def test_the_published_sampler_stops_there_too(checkpoint, cache):
    reference = np.load(FOLDER / "reference.npz")
    run = next(r for r in json.loads(str(reference["meta"]))["generation"] if r["name"] == "repo_greedy_stop")
    out_L = torch.tensor(reference["gen_repo_greedy_stop_out"][0])
    given_L = torch.full_like(out_L, -1)
    given_L[: reference["gen_prompt"].shape[1]] = torch.tensor(reference["gen_prompt"][0])
    stops = run["args"]["stopping_criteria_idx"]
    (row,) = written(checkpoint, Blocks(4, LeftToRight()), 18, given_L[None], stops, 0.0, cache)
    reached = out_L != checkpoint.model.mask_id
    assert not bool(reached.all())
    assert torch.equal(row.tokens_L[reached], out_L[reached])
    assert set(row.tokens_L[~reached].tolist()) == {148}
    assert row.nfe == run["denoising_forwards"]


@pytest.mark.parametrize(
    ("plan", "steps"),
    [(Blocks(4), 14), (Blocks(4, Confidence()), 14), (Blocks(4, Confidence(threshold=0.02)), None), ("whole", 14)],
)
@pytest.mark.parametrize("cache", [None, Caching("exact")])
def test_what_stands_before_the_end_does_not_change(checkpoint, plan, steps, cache):
    plan = Blocks(32) if plan == "whole" else plan
    given_BL = torch.full((4, 28), -1)
    for row in range(4):
        given_BL[row, : 3 * row] = 5 + row
    whole = written(checkpoint, plan, steps, given_BL, (), cache=cache)
    stops = {int(whole[0].tokens_L[6]), int(whole[2].tokens_L[11])}
    ended = written(checkpoint, plan, steps, given_BL, stops, cache=cache)
    shorter = 0
    for before, after, given_L in zip(whole, ended, given_BL, strict=True):
        hits = [i for i, token in enumerate(before.tokens_L.tolist()) if token in stops and given_L[i] < 0]
        end = (hits[0] // 4 + 1) * 4 if hits and plan.size == 4 else 28
        assert torch.equal(after.tokens_L[:end], before.tokens_L[:end])
        assert torch.allclose(after.log_q_L[:end], before.log_q_L[:end], atol=1e-5)
        assert set(after.tokens_L[end:].tolist()) <= {148}
        assert not bool(after.log_q_L[end:].any())
        assert (after.nfe < before.nfe) == (end < 28)
        shorter += end < 28
    assert shorter >= 2 or plan.size != 4
