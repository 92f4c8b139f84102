"""The whole of `evaluate` on tiny networks with random weights: what it draws, what it keeps, what it concludes."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch

from unmask.checkpoint.io import save
from unmask.core.errors import UserError
from unmask.metrics.score import Score
from unmask.metrics.unmodelled import UNMODELLED
from unmask.studies import cells
from unmask.studies.entries import REAL
from unmask.studies.evaluate import evaluate
from unmask.studies.merge import merge
from unmask.studies.report.tables import rival, two_by_two
from unmask.studies.results import Results, read_results, write_results

SIZE, LENGTH = 20, 32


OPTIONS = {"plans": ["iid", "golden"], "temperatures": [1.0, 0.7], "n": 32, "device": "cpu", "batch": 32}


@pytest.fixture(scope="module")
def finished(scene, tmp_path_factory, network) -> tuple[Results, Path]:
    models, data, tokenizer = scene
    out = tmp_path_factory.mktemp("finished")
    judge = network(tokenizer, 3, causal=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNMASK_CACHE", str(out / "cache"))
        return evaluate(models, steps=[4, 8], judge=judge, data=data, control_steps=[16], out=out, **OPTIONS), out


def test_the_teacher_also_runs_where_its_entropy_meets_the_students(finished) -> None:
    """At T = 0.8 the teacher is the student, and 0.8 was not asked for."""
    results, _ = finished
    drawn = {cell.temperature for cell in results.where(model="teacher", plan="golden", steps=16)}
    assert drawn > {1.0, 0.7}
    assert min(abs(temperature - 0.8) for temperature in drawn) <= 0.061
    assert {cell.temperature for cell in results.where(model="student")} == {0.7, 1.0}, "as was asked for"
    cut = [cell for cell in results.cells if cell.top_p < 1]
    assert {(cell.model, cell.temperature, cell.top_p) for cell in cut} == {("teacher", 1.0, p) for p in (0.95, 0.9)}
    assert {cell.steps for cell in cut} == {4, 8, 16}
    (one, *_) = results.analysis["comparisons"]
    assert set(one["gap_to"]) == {"temperature", "top_p"}
    assert {cell.steps for cell in results.where(model="teacher")} == {4, 8, 16}


def test_texts_that_no_model_wrote_please_the_judge_and_are_caught(finished) -> None:
    results, _ = finished
    real = results.one(model=REAL)
    assert not real.suspicions
    for name in UNMODELLED:
        cell = results.one(model=name)
        assert cell.suspicions, name
        assert results.analysis["caught"][f"{name} None None None"]
        assert cell.value("sampler_entropy") < 0.2, "it has next to no entropy of its own"
        assert {"energy_distance", "gradient_1", "gradient_2"} <= cell.scores.keys()
    parrot = results.one(model="parrot")
    assert parrot.value("gen_ppl") == pytest.approx(real.value("gen_ppl"), rel=0.1)
    assert parrot.value("entropy") == pytest.approx(real.value("entropy"), abs=0.1)


def test_every_number_has_its_company(finished) -> None:
    """Gen PPL never without entropy; likelihood of every model, plan and number of steps; NFE as run."""
    results, _ = finished
    for cell in results.cells:
        assert {"entropy", "gen_ppl", "judge_nll", "distinct_4", "self_bleu"} <= cell.scores.keys()
        assert ("sampler_entropy" in cell.scores) == (cell.model != REAL)
        assert cell.scores["gen_ppl"]["low"] <= cell.value("gen_ppl") <= cell.scores["gen_ppl"]["high"]
    assert {(b.model, b.plan, b.steps) for b in results.bounds} == {
        *((m, p, n) for m in ("teacher", "student") for p in ("iid", "golden") for n in (4, 8)),
        *((m, None, None) for m in ("teacher", "student", "ar")),
    }
    assert results.one(model="teacher", plan="golden", steps=8, temperature=1.0).nfe == 8
    assert 6 < results.one(model="teacher", plan="iid", steps=8, temperature=1.0).nfe <= 8
    corners = two_by_two(results).rows
    assert corners[0][0] == "teacher\n4 steps"
    assert all(part in corner for row in corners for corner in row[1:] for part in ("judge ", "own entropy ", "NELBO "))
    assert results.analysis["wall_clock"]
    for cell in results.where(model="teacher", plan="iid", steps=4):
        by_hand = math.exp(float(cell.ratios["gen_ppl"].top_n.sum() / cell.ratios["gen_ppl"].bottom_n.sum()))
        assert cell.value("gen_ppl") == pytest.approx(by_hand)


def test_a_rerun_draws_and_judges_nothing(finished, scene, forbid, network) -> None:
    results, out = finished
    models, data, tokenizer = scene

    forbid()
    judge = network(tokenizer, 3, causal=True)
    again = evaluate(models, steps=[4, 8], judge=judge, data=data, control_steps=[16], out=out, **OPTIONS)
    assert again.analysis == results.analysis


def test_another_judge_with_the_same_cells_draws_nothing(finished, scene, forbid, tmp_path, network) -> None:
    results, out = finished
    models, data, tokenizer = scene

    forbid("sample")
    judge, places = network(tokenizer, 4, causal=True), {"out": tmp_path / "other", "cells": out / "cells"}
    only_teacher = {"teacher": models["teacher"]}
    other = evaluate(only_teacher, steps=[4, 8], judge=judge, data=data, **places, **OPTIONS)
    mine = next(cell for cell in other.cells if cell.model == "teacher" and cell.steps == 4)
    same = next(cell for cell in results.cells if cell.key == mine.key)
    assert mine.samples == same.samples
    assert mine.value("gen_ppl") != same.value("gen_ppl")
    assert not (tmp_path / "other" / "cells").exists()


def test_what_was_finished_survives_a_failure(scene, tmp_path, monkeypatch) -> None:
    """The second cell fails; the rerun draws only what is missing."""
    models, _, _ = scene
    few = {"teacher": models["teacher"]}
    options = {**OPTIONS, "plans": ["golden"], "temperatures": [1.0], "out": tmp_path}
    true_sample, drawn = cells.sample, []

    def sample(*args, **kwargs):
        drawn.append((args[1], args[2]))
        if args[2] == 8 and len(drawn) < 4:
            raise UserError("the machine is tired")
        return true_sample(*args, **kwargs)

    monkeypatch.setattr(cells, "sample", sample)
    with pytest.raises(UserError, match="tired"):
        evaluate(few, steps=[4, 8], **options)
    kept = next(path for path in (tmp_path / "cells").glob("*[0-9a-f].json") if path.name != "unmask.json")
    assert json.loads(kept.read_text())["steps"] == 4
    drawn[:] = [(0, 0)] * 4
    results = evaluate(few, steps=[4, 8], **options)
    assert [steps for _, steps in drawn[4:]] == [8, 8], "the warm-up and the cell itself"
    assert [cell.steps for cell in results.cells] == [4, 8]


def test_only_what_was_asked_for(scene, tmp_path, monkeypatch, network) -> None:
    """Without brackets nobody gets another temperature; without bounds nothing is read but what was drawn."""
    models, data, tokenizer = scene
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path))
    judge = network(tokenizer, 3, causal=True)
    pair = {name: models[name] for name in ("teacher", "student")}
    results = evaluate(
        pair, steps=[4], judge=judge, data=data, control_steps=[4], bracket=False, bounds=False,
        **{**OPTIONS, "temperatures": [1.0], "n": 8},
    )  # fmt: skip
    drawn = [(cell.model, cell.plan, cell.temperature) for cell in results.cells if cell.steps]
    assert sorted(drawn) == sorted((name, plan, 1.0) for name in pair for plan in ("iid", "golden"))
    assert results.bounds == []
    (one, *_) = results.analysis["comparisons"]
    assert one["speed_up"]["relation"] == "not bracketed"
    with pytest.raises(UserError, match="take one of the two"):
        evaluate(pair, steps=[4], data=data, bounds=False, only_bounds=True, **OPTIONS)


def test_without_a_judge_it_says_so(scene) -> None:
    models, data, _ = scene
    results = evaluate(models, steps=[4], data=data, **{**OPTIONS, "temperatures": [1.0], "n": 4})
    assert any("No judge" in note for note in results.notes)
    assert all("gen_ppl" not in cell.scores and "entropy" in cell.scores for cell in results.cells)
    assert results.bounds
    assert results.analysis["comparisons"] == []
    assert results.analysis["headline"] is None


def test_mauve_compares_drawn_with_real_features(scene, monkeypatch, network) -> None:
    """At the headline's temperature only; the score itself has tests of its own."""
    models, data, tokenizer = scene
    seen = []

    def mauve(drawn_ND, real_ND, **_: object) -> Score:
        seen.append((drawn_ND.shape, real_ND.shape))
        return Score(0.5, len(drawn_ND), 0.4, 0.6, 0.05, "MAUVE")

    monkeypatch.setattr("unmask.metrics.built_in.mauve", mauve)
    monkeypatch.setattr("unmask.studies.evaluate.LEAST", 4)
    judge = network(tokenizer, 3, causal=True)
    options = {**OPTIONS, "plans": ["golden"], "n": 4}
    results = evaluate({"teacher": models["teacher"]}, steps=[4], judge=judge, data=data, mauve=True, **options)
    assert {cell.temperature for cell in results.cells if "mauve" in cell.scores} == {1.0, None}
    assert set(seen) == {((4, 16), (4, 16))}


def test_a_teacher_alone_draws_the_grid_that_was_asked_for_and_no_more(scene) -> None:
    models, data, _ = scene
    plans = ["iid", "permutation", "golden", "van_der_corput", "stride", "dilated", "confidence", "iid@cosine"]
    options = {**OPTIONS, "plans": plans, "n": 4}
    results = evaluate({"teacher": models["teacher"]}, steps=[2, 4], data=data, **options)
    drawn = [(cell.plan, cell.steps, cell.temperature) for cell in results.where(model="teacher")]
    assert drawn == [(plan, n, t) for plan in plans for n in (2, 4) for t in (1.0, 0.7)]
    assert {(b.plan, b.steps) for b in results.bounds if b.plan} == {(plan, n) for plan in plans for n in (2, 4)}
    assert results.one(plan="iid@cosine", steps=4).record["texts"]["grid"]["name"] == "cosine"
    assert results.one(plan="iid", steps=4).record["texts"]["grid"]["name"] == "uniform"


def test_bounds_alone_are_those_of_the_whole_and_draw_nothing(finished, scene, forbid) -> None:
    results, _ = finished
    models, data, _ = scene

    forbid("sample", "sample_causal")
    alone = evaluate(models, steps=[4, 8], data=data, only_bounds=True, **OPTIONS)
    assert alone.cells == []
    assert [(b.model, b.plan, b.steps, b.scores) for b in alone.bounds] == [
        (b.model, b.plan, b.steps, b.scores) for b in results.bounds
    ]
    by_key = {(b.model, b.plan, b.steps): b.ratio for b in alone.bounds}
    assert {(d["plan"], d["to"]) for d in alone.analysis["plan_likelihood"]} == {("golden", "iid")}
    for less in alone.analysis["plan_likelihood"]:
        golden, iid = (by_key[less["model"], plan, less["steps"]] for plan in ("golden", "iid"))
        per_text = (golden.top_n - iid.top_n) / LENGTH
        assert less["value"] == pytest.approx(float(per_text.mean()))
        assert iid.clusters == 8  # the text is one document
        off_8 = torch.zeros(8).double().index_add(0, iid.cluster_n, per_text - per_text.mean())
        expected = math.sqrt(8 / 7 * float((off_8**2).sum())) / len(per_text)
        assert less["stderr"] == pytest.approx(expected, rel=0.2), "paired, and stretches drawn whole"


def test_the_control_is_found_in_the_students_provenance(scene, tmp_path, network) -> None:
    models, _, tokenizer = scene
    save(models["teacher"], tmp_path / "teacher")
    from unmask.checkpoint.identity import weights_hash

    named = {"source": str(tmp_path / "teacher"), "weights": weights_hash(models["teacher"].model)}
    student = dataclasses.replace(models["student"], provenance={"config": {"facts": {"teacher": named}}})
    options = {**OPTIONS, "plans": ["golden"], "temperatures": [1.0], "n": 2}
    results = evaluate({"student": student}, steps=[4], control_steps=[4], **options)
    assert results.named("teacher") == ["teacher"]
    assert results.where(model="teacher")
    save(network(tokenizer, 9), tmp_path / "teacher")
    with pytest.raises(UserError, match="no longer holds the weights"):
        evaluate({"student": student}, steps=[4], control_steps=[4], **options)


def test_results_go_to_disk_and_back_and_merge(finished, tmp_path) -> None:
    results, _ = finished
    write_results(results, tmp_path / "results.json")
    read = read_results(tmp_path)
    assert json.dumps(read.to_json()) == json.dumps(results.to_json())
    both = merge([read, dataclasses.replace(read, cells=read.cells[:3])])
    assert len(both.cells) == len(results.cells)
    more = [dataclasses.replace(cell, n=cell.n + 1) for cell in read.cells[:3]]
    for order in ((read, dataclasses.replace(read, cells=more)), (dataclasses.replace(read, cells=more), read)):
        found = {cell.key: cell.n for cell in merge(order).cells}
        assert [found[cell.key] - cell.n for cell in read.cells] == [1] * 3 + [0] * (len(read.cells) - 3)
    other = dataclasses.replace(read, judge={**read.judge, "id": "another"})
    with pytest.raises(UserError, match="different judges"):
        merge([read, other])
    longer = dataclasses.replace(read, settings={**read.settings, "length": 2 * LENGTH})
    with pytest.raises(UserError, match="different lengths"):
        merge([read, longer])
    strange = {**read.models, "student": {**read.models["student"], "sha256": "0"}}
    with pytest.raises(UserError, match="different models by 'student'"):
        merge([read, dataclasses.replace(read, models=strange)])


def test_the_causal_rival_stands_beside_masked_models_with_its_exact_likelihood_and_its_time(scene, forbid, tmp_path):
    models, data, _ = scene
    pair = {name: models[name] for name in ("teacher", "ar")}
    options = {**OPTIONS, "temperatures": [1.0, 0.7], "n": 4, "control_steps": [4], "out": tmp_path}
    results = evaluate(pair, steps=[4], data=data, timed=[1, 3], **options)
    timed = [cell for cell in results.cells if cell.timed]
    assert {(cell.model, cell.temperature) for cell in timed} == {("teacher", 1.0), ("ar", 1.0)}
    assert all(list(cell.timed) == ["1", "3"] and min(cell.timed.values()) > 0 for cell in timed)
    table = rival(results)
    assert table.head[-2:] == ["batch 1", "batch 3"]
    causal, masked = table.rows
    assert causal[0] == "ar\ncausal, with a cache"
    assert causal[1] == str(LENGTH)
    assert causal[2].endswith("exact")
    assert not masked[2].endswith("exact")
    (exact,) = [bound for bound in results.bounds if bound.model == "ar"]
    assert float(causal[2].split()[0]) == pytest.approx(exact.per_byte.value, abs=6e-4)
    forbid()
    again = evaluate(pair, steps=[4], data=data, timed=[1, 3], **options)
    assert [cell.timed for cell in again.cells] == [cell.timed for cell in results.cells]


def test_precision_reaches_the_causal_control(scene, monkeypatch) -> None:
    asked, draw = [], cells.sample_causal

    def recorded(*given, precision, **options):
        asked.append(precision)
        return draw(*given, precision=precision, **options)

    monkeypatch.setattr(cells, "sample_causal", recorded)
    models = {name: scene[0][name] for name in ("teacher", "ar")}
    options = {**OPTIONS, "plans": ["golden"], "temperatures": [1.0], "n": 3, "control_steps": [4], "bracket": False}
    evaluate(models, steps=[4], precision="fp32", **options)
    assert set(asked) == {"fp32"}
