"""What the published samplers of LLaDA and Dream wrote at temperature 0, written by `unmask.sample`, step by step."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from unmask.checkpoint.io import load
from unmask.plans.plan import make_plan
from unmask.plans.published import dream_counts
from unmask.sampling.verbs import sample

PUBLISHED = Path(__file__).parents[1] / "assets/published"


def runs(family, *names):
    meta = json.loads(str(np.load(PUBLISHED / family / "reference.npz")["meta"]))
    return [pytest.param(run, id=run["name"]) for run in meta["generation"] if run["name"] in names]


def written(family, run, **options):
    """For each row of a run: the tokens that ours and theirs wrote, and theirs before each forward."""
    arrays, checkpoint = np.load(PUBLISHED / family / "reference.npz"), load(PUBLISHED / family)
    new = run["args"].get("gen_length") or run["args"]["max_new_tokens"]
    for row in range(3) if run["rows"] == "all" else run["rows"]:
        real = arrays["gen_prompts_attention_mask"][row].astype(bool)
        prompt = torch.tensor(arrays["gen_prompts"][row])
        prompt = prompt[torch.tensor(real)] if run["attention_mask"] else prompt
        blank = torch.cat([prompt, torch.full((new,), -1)])
        seen = []
        samples = sample(
            checkpoint, 1, infill=blank, steps=run["args"]["steps"], temperature=0.0, device="cpu",
            callback=lambda view, seen=seen: seen.append(view.tokens_BL[0].clone()), **options,
        )  # fmt: skip
        theirs = torch.tensor(arrays[f"gen_{run['name']}_out"][row])[-len(blank) :]
        inputs = torch.tensor(arrays[f"gen_{run['name']}_inputs"][:, row].astype(np.int64))[:, -len(blank) :]
        yield samples, seen, theirs, inputs


def agree(family, run, **options):
    for samples, seen, theirs, inputs in written(family, run, **options):
        assert samples.tokens[0].tolist() == theirs.tolist()
        assert float(samples.log_q.abs().max()) == 0  # a point mass
        before = [*inputs[1:], theirs]  # what stood before the next forward
        assert [now.tolist() for now in seen] == [then.tolist() for then in before]


@pytest.mark.parametrize("run", runs("llada", "greedy_one_row", "greedy_batch_padded", "greedy_uneven_quota",
                                     "greedy_single_block"))  # fmt: skip
def test_llada_generate_is_reproduced_token_for_token(run):
    agree("llada", run, plan="llada", block_size=run["args"]["block_length"])


@pytest.mark.parametrize("run", runs("dream", "maskgit_plus", "maskgit_plus_padded", "entropy_padded", "topk_margin",
                                     "entropy_more_steps_than_tokens"))  # fmt: skip
def test_dream_diffusion_generate_is_reproduced_token_for_token(run):
    names = {"maskgit_plus": "dream", "entropy": "dream_entropy", "topk_margin": "dream_margin"}
    agree("dream", run, plan=names[run["args"]["alg"]])


def test_dreams_counts_sit_on_the_rounding_of_float32():
    arrays = np.load(PUBLISHED / "dream/reference.npz")
    assert dream_counts(16, 8) == [1, 2, 2, 2, 2, 2, 2, 3]
    for name in ("maskgit_plus", "topk_margin", "entropy_more_steps_than_tokens"):
        revealed = arrays[f"gen_{name}_revealed"][:, 0].tolist()
        assert dream_counts(16, len(revealed)) == revealed


def test_a_block_begins_where_its_row_has_the_first_blank():
    blank_BL = torch.ones(2, 12, dtype=torch.bool)
    blank_BL[0, :3] = False
    from dataclasses import replace

    from unmask.plans.grids import make_grid
    from unmask.processes.schedule import LogLinear

    assigned = replace(make_plan("llada"), size=4).assign(blank_BL, make_grid("rank", 6), LogLinear(), [])
    assert assigned.block_BL.tolist() == [[0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2], [0] * 4 + [1] * 4 + [2] * 4]
    assert assigned.step_BL[1].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
