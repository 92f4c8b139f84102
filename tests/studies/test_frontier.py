"""The two students that every evaluation must tell apart, on a source whose posterior is known exactly.

The teacher is the exact denoiser of a trigram chain, the judge the chain itself: all error is the sampler's. One of the
students is the teacher with its logits divided by a temperature: no gain. The other is the teacher in 16 steps, of
which four are counted: a true gain.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from unmask.checkpoint.io import Checkpoint
from unmask.core.streams import stream
from unmask.metrics.judges import Judge, vocabulary_hash
from unmask.metrics.score import Ratio
from unmask.studies.analysis import analyse, best_plan
from unmask.studies.evaluate import evaluate
from unmask.studies.results import Bound, Results
from unmask.theory.trigram import TrigramMixture

TOKENS, LENGTH, SCALE = 17, 24, 0.85


def chain() -> TrigramMixture:
    """A trigram chain over the letters; the last token, the end of a document, never comes."""
    logits_VVV = 1.6 * torch.randn(TOKENS, TOKENS, TOKENS, generator=stream(5, "chain"), dtype=torch.float64)
    logits_VVV -= 0.15 * torch.arange(TOKENS)  # some letters are frequent: a low temperature makes texts dull
    logits_VVV[..., -1] = -30
    pair_VV = logits_VVV[0].flatten().softmax(0).view(TOKENS, TOKENS)
    return TrigramMixture(torch.ones(1).double(), pair_VV[None], logits_VVV.softmax(-1)[None], LENGTH)


class Scaled:
    """A denoiser with its logits divided by a temperature."""

    def __init__(self, inner: TrigramMixture) -> None:
        self.inner, self.vocab_size, self.mask_id, self.length = inner, inner.vocab_size, inner.mask_id, LENGTH

    def features(self, z: Tensor) -> Tensor:
        return self.inner.features(z)

    def logits(self, h: Tensor) -> Tensor:
        return self.inner.logits(h) / SCALE


def judge_of(source: TrigramMixture, tokenizer) -> Judge:
    """The chain read from left to right."""
    next_VVV, pair_VV = source.next_MVVV[0], source.pair_MVV[0]

    def logits(ids_BT: Tensor) -> Tensor:
        first_B1V = (pair_VV / pair_VV.sum(1, keepdim=True))[ids_BT[:, :1]]
        return torch.cat([first_B1V, next_VVV[ids_BT[:, :-1], ids_BT[:, 1:]]], dim=1).log()

    return Judge(
        name="the chain", id="chain", kind="test", context=64, eos_id=tokenizer.eos_id, bos_id=None,
        vocabulary=vocabulary_hash(tokenizer), states=TOKENS, device=torch.device("cpu"), dtype="float64",
        encode=tokenizer.encode_batch, logits=logits, features=logits,
    )  # fmt: skip


@pytest.fixture(scope="module")
def results(letters, tmp_path_factory) -> Results:
    tokenizer, source = letters(TOKENS), chain()
    models = {"teacher": source, "scaled": Scaled(source)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNMASK_CACHE", str(tmp_path_factory.mktemp("cache")))
        found = evaluate(
            {name: Checkpoint(model, tokenizer=tokenizer) for name, model in models.items()},
            steps=[4], plans=["iid"], temperatures=[1.0, 0.8], control_steps=[8, 16], n=192, batch=192, device="cpu",
            judge=judge_of(source, tokenizer),
        )  # fmt: skip
    many = found.one(model="teacher", steps=16, temperature=1.0)
    assert many is not None
    hidden = replace(many, model="hidden", steps=4, nfe=4.0)
    models = {**found.models, "hidden": {**found.models["scaled"]}}
    return analyse(replace(found, models=models, cells=[*found.cells, hidden]))


def test_the_teacher_with_its_logits_divided_by_t_is_no_gain(results: Results) -> None:
    (found,) = [entry for entry in results.analysis["comparisons"] if entry["model"] == "scaled"]
    cell, teacher = (results.one(model=name, steps=4, temperature=1.0) for name in ("scaled", "teacher"))
    assert cell.scores["gen_ppl"]["high"] < teacher.scores["gen_ppl"]["low"], "its Gen PPL alone looks better"
    assert not found["speed_up"]["faster"]
    assert (found["speed_up"]["low"] or 0) < 1
    assert found["gap"]["low"] < 0 < found["gap"]["high"]


def test_more_steps_hidden_inside_are_credited(results: Results) -> None:
    (found,) = [entry for entry in results.analysis["comparisons"] if entry["model"] == "hidden"]
    assert found["nfe"] <= 4, "it is counted as four steps"
    assert found["speed_up"]["faster"]
    assert found["speed_up"]["low"] > 1
    assert found["gap"]["high"] < 0


def test_the_teacher_has_a_frontier(results: Results) -> None:
    """Cooler is duller and likelier; more steps are likelier at the same temperature."""
    path = sorted(results.where(model="teacher", steps=4), key=lambda cell: cell.temperature)
    assert len(path) > 2, "one temperature more, where it meets the student's entropy"
    assert path[0].value("sampler_entropy") < path[-1].value("sampler_entropy")
    assert path[0].value("gen_ppl") < path[-1].value("gen_ppl")
    few, many = (results.one(model="teacher", steps=n, temperature=1.0) for n in (4, 16))
    assert many.value("gen_ppl") < few.value("gen_ppl")
    assert many.value("path_gap") < few.value("path_gap")


def test_the_best_plan_is_found_at_the_steps_that_all_plans_ran():
    def bound(plan, steps, nats):
        return Bound("teacher", plan, steps, steps, {"per_token": {"value": nats}}, Ratio.mean(torch.tensor([nats])))

    bounds = [bound("golden", 8, 4.09), bound("stride", 8, 4.08), bound("golden", 256, 4.04)]  # many steps are no merit
    settings = {"plans": ["golden", "stride"], "steps": [8, 256], "temperatures": [1.0]}
    roles = {"teacher": {"role": "teacher"}}
    assert best_plan(Results(roles, [], bounds, settings, None), "teacher") == "stride"
    settings["plans"].append("permutation")  # one that ran in many steps only has no say
    bounds.append(bound("permutation", 256, 4.03))
    assert best_plan(Results(roles, [], bounds, settings, None), "teacher") == "stride"
