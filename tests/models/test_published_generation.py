"""What the published samplers of LLaDA and Dream wrote at temperature 0, written by `unmask.sample`, step by step."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from unmask.checkpoint.io import load
from unmask.core.streams import stream
from unmask.plans.assignment import Assignment
from unmask.plans.grids import make_grid
from unmask.plans.plan import make_plan
from unmask.plans.published import dream_counts
from unmask.processes.schedule import LogLinear
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


@pytest.mark.parametrize("run", runs("llada", "greedy_cfg_padded"))
def test_llada_generate_with_guidance_is_reproduced_token_for_token(run):
    options = {"plan": "llada", "block_size": run["args"]["block_length"], "guidance": run["args"]["cfg_scale"]}
    agree("llada", run, **options)
    for samples, *_ in written("llada", run, **options):
        assert samples.nfe.tolist() == [2 * run["args"]["steps"]]
        assert samples.record["guidance"] == 0.5


class Given:
    """A plan that is a list: in which step each position is revealed."""

    name, rule = "given", None

    def __init__(self, steps_L):
        self.steps_L = steps_L

    def assign(self, blank_BL, grid, schedule, generators):
        step_BL = torch.where(blank_BL, self.steps_L, -1)
        return Assignment(step_BL, torch.zeros_like(step_BL), int(step_BL.max()) + 1)

    def to_json(self):
        return {"name": self.name}


@pytest.mark.parametrize(
    ("family", "run", "plan"),
    [("llada", *runs("llada", "seeded_random_order")[0].values, "llada_random"),
     ("dream", *runs("dream", "seeded_alg_temp")[0].values, "dream:alg_temp=0.3")],
)  # fmt: skip
def test_where_they_draw_positions_the_counts_are_theirs_and_on_their_positions_the_tokens(family, run, plan):
    arrays, mask = np.load(PUBLISHED / family / "reference.npz"), load(PUBLISHED / family).model.mask_id
    inputs = torch.tensor(arrays[f"gen_{run['name']}_inputs"][:, 0].astype(np.int64))
    steps_L = (inputs == mask).sum(0) - 1  # of forwards before which a position was hidden, the last one reveals it
    agree(family, run, plan=Given(steps_L))
    made = make_plan(plan)
    made = replace(made, size=run["args"]["block_length"]) if family == "llada" else made
    blank_BL = (steps_L >= 0).expand(5, -1)
    generators = [stream(0, "reveal", i) for i in range(5)]
    ours = made.assign(blank_BL, make_grid("rank", run["args"]["steps"]), LogLinear(), generators)
    for step_L, block_L in zip(ours.step_BL, ours.block_BL, strict=True):
        for step in range(run["args"]["steps"]):
            assert sorted(block_L[step_L == step].tolist()) == sorted(block_L[steps_L == step].tolist())


def test_dreams_counts_sit_on_the_rounding_of_float32():
    arrays = np.load(PUBLISHED / "dream/reference.npz")
    assert dream_counts(16, 8) == [1, 2, 2, 2, 2, 2, 2, 3]
    for name in ("maskgit_plus", "topk_margin", "entropy_more_steps_than_tokens"):
        revealed = arrays[f"gen_{name}_revealed"][:, 0].tolist()
        assert dream_counts(16, len(revealed)) == revealed


def test_a_block_begins_where_its_row_has_the_first_blank():
    blank_BL = torch.ones(2, 12, dtype=torch.bool)
    blank_BL[0, :3] = False
    assigned = replace(make_plan("llada"), size=4).assign(blank_BL, make_grid("rank", 6), LogLinear(), [])
    assert assigned.block_BL.tolist() == [[0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2], [0] * 4 + [1] * 4 + [2] * 4]
    assert assigned.step_BL[1].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
