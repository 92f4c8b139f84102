"""A process that goes by no plan: what it cannot have is left out and said, and the rest is measured."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from unmask.checkpoint.io import Checkpoint
from unmask.cli.report import report
from unmask.metrics import nelbo
from unmask.models.dit.network import DiT
from unmask.processes import Masked, Uniform
from unmask.studies.evaluate import evaluate


@dataclass(frozen=True)
class Resampled(Masked):
    """Masked diffusion drawn as a chain of posteriors: every position at every step."""

    name: ClassVar[str] = "resampled"
    by_plan: ClassVar[bool] = False


def test_it_is_drawn_and_scored_and_its_missing_scores_are_said(scene, network, tmp_path) -> None:
    models, data, tokenizer = scene
    teacher = models["teacher"]
    pair = {"teacher": teacher, "other": replace(teacher, process=Resampled(teacher.process.schedule))}
    judge = network(tokenizer, 3, causal=True)
    results = evaluate(
        pair, steps=[4], plans=["golden"], temperatures=[1.0], control_steps=[4], n=8, judge=judge, data=data,
        device="cpu", out=tmp_path, bracket=False,
    )  # fmt: skip
    (cell,) = results.where(model="other")
    assert (cell.plan, cell.nfe) == ("ancestral", 4)
    assert {"gen_ppl", "entropy", "self_bleu"} <= cell.scores.keys()
    assert not {"path_gap", "sampler_entropy"} & cell.scores.keys()
    assert "judge_nll" in cell.scores
    assert "no log q" in cell.absent["path_gap"]
    assert "path_gap" in results.one(model="teacher").scores
    said = " ".join(results.notes)
    assert "No path_gap of other: the sampler gives these texts no log q" in said
    assert "other: none of --plans is of the process resampled: ancestral" in said
    assert "No NELBO on ancestral in 4 steps of other: the process resampled does not say how far" in said
    bounds = {(bound.model, bound.plan) for bound in results.bounds}
    assert bounds == {("teacher", None), ("teacher", "golden"), ("other", None)}
    elbo, other = (next(b for b in results.bounds if b.model == m and b.plan is None) for m in pair)
    both = elbo.scores["per_token"]["value"], other.scores["per_token"]["value"]
    assert abs(both[0] - both[1]) < 4 * (elbo.scores["per_token"]["stderr"] + other.scores["per_token"]["stderr"])


def test_a_duo_and_an_mdlm_stand_side_by_side(scene, network, tmp_path) -> None:
    """Each on the plans of its process; N-step NELBO of both in one table, and what a Duo cannot have said once."""
    models, data, tokenizer = scene
    torch.manual_seed(5)
    duo = DiT(tokenizer.size, 32, hidden=16, cond=8, blocks=1, heads=2, dropout=0.0, time=True).eval()
    pair = {"mdlm": models["teacher"], "duo": Checkpoint(duo, Uniform(), tokenizer, {})}
    results = evaluate(
        pair, steps=[2, 8], plans=["comb", "ancestral", "greedy_tail", "psi:share=0.1"], temperatures=[1.0], n=8,
        judge=network(tokenizer, 3, causal=True), data=data, device="cpu", out=tmp_path, bracket=False,
    )  # fmt: skip
    drawn = {(cell.model, cell.plan, cell.steps): cell.nfe for cell in results.cells if cell.plan}
    assert {(model, plan) for model, plan, _ in drawn} == {
        ("mdlm", "comb"), ("duo", "ancestral"), ("duo", "greedy_tail"), ("duo", "psi:share=0.1")
    }  # fmt: skip
    assert drawn["duo", "greedy_tail", 8] == 9  # the tail is a forward more, and is counted
    nats = {(b.model, b.plan, b.steps): b.scores["per_token"]["value"] for b in results.bounds}
    assert {key[:2] for key in nats} == {
        ("mdlm", None), ("mdlm", "comb"), ("duo", None), ("duo", "ancestral"), ("duo", "psi:share=0.1")
    }  # fmt: skip
    even = math.log(tokenizer.size)  # a network whose head is still 0: the bound is tight, but not that of psi
    for bound in (one for one in results.bounds if one.model == "duo"):
        off = bound.scores["per_token"]["value"] - even
        assert off > -5 * bound.scores["per_token"]["stderr"]
        assert off < 5 * bound.scores["per_token"]["stderr"] or bound.plan == "psi:share=0.1"
    said = " ".join(results.notes)
    assert "No NELBO on greedy_tail: it ends with the likeliest tokens" in said
    assert "No path_gap of duo: the sampler gives these texts no log q, and so they have no own entropy" in said
    report([tmp_path], out=tmp_path / "page")
    assert "psi:share=0.1" in (tmp_path / "page" / "report.html").read_text()


def test_a_text_that_the_law_rules_out_has_no_nelbo_and_the_rest_goes_on(scene, monkeypatch) -> None:
    models, data, _ = scene
    force = nelbo.teacher_force

    def ruled_out(*given, **options):
        forced = force(*given, **options)
        return replace(forced, log_q_TL=forced.log_q_TL - torch.inf)

    monkeypatch.setattr(nelbo, "teacher_force", ruled_out)
    options = {"plans": ["golden"], "temperatures": [1.0], "n": 4, "data": data, "device": "cpu"}
    results = evaluate({"teacher": models["teacher"]}, steps=[4], **options)
    assert [bound.plan for bound in results.bounds] == [None]
    assert any("No NELBO on golden in 4 steps of teacher: the model gives" in note for note in results.notes)
