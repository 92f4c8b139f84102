"""What is kept belongs to the model that drew it, and its seconds to how it was drawn."""

import dataclasses
import json

import pytest
from tests.small import shaken

from unmask.checkpoint.identity import identity_of, weights_hash
from unmask.checkpoint.io import Checkpoint, load, save
from unmask.metrics.judges import load_judge
from unmask.models.dit.network import DiT
from unmask.plans.plan import Confidence
from unmask.processes import Masked
from unmask.processes.schedule import Cosine, LogLinear
from unmask.studies import cells, fingerprint
from unmask.studies.evaluate import evaluate
from unmask.studies.report.tables import speed

SIZE, LENGTH = 12, 16


def network(tokenizer, *, heads: int = 2, causal: bool = False, **facts) -> Checkpoint:
    model = DiT(SIZE + 1, LENGTH, hidden=16, cond=8, blocks=1, heads=heads, dropout=0.0, causal=causal).eval()
    return Checkpoint(shaken(model), tokenizer=tokenizer, **facts)


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("a b c d e f g h i j k " * 40)
    return path


OPTIONS = {"plans": ["iid"], "temperatures": [1.0], "n": 8, "device": "cpu", "bracket": False, "control_steps": [4]}


def test_equal_weights_on_another_schedule_share_nothing(letters, data, tmp_path) -> None:
    teacher = network(letters(SIZE))
    models = {"teacher": teacher, "student": dataclasses.replace(teacher, process=Masked(Cosine()))}

    def found(out) -> tuple[list, list]:
        results = evaluate(models, steps=[4], data=data, out=out, **OPTIONS)
        return (
            [(cell.model, cell.samples, cell.nfe) for cell in results.cells],
            [(bound.model, bound.plan, bound.scores["per_token"]["value"]) for bound in results.bounds],
        )

    kept = found(tmp_path / "out")
    assert kept == found(None), "as if nothing were kept"
    by_model = {model: nats for model, plan, nats in kept[1] if plan}
    assert by_model["teacher"] != by_model["student"]


def test_a_model_is_all_that_decides_what_it_writes(letters, tmp_path) -> None:
    plain = network(letters(SIZE))
    save(plain, tmp_path / "saved")
    assert identity_of(load(tmp_path / "saved")) == identity_of(plain), "wherever it lies"
    others = [
        network(letters(SIZE), heads=4),
        network(letters(SIZE - 1)),
        dataclasses.replace(plain, process=Masked(Cosine())),
        dataclasses.replace(plain, process=Masked(LogLinear(eps=1e-4))),
    ]
    assert {weights_hash(other.model) for other in others} == {weights_hash(plain.model)}
    assert len({identity_of(one) for one in (plain, *others)}) == 5


def test_a_judge_is_more_than_its_weights(letters) -> None:
    judges = [network(letters(SIZE), causal=True), network(letters(SIZE), causal=True, heads=4)]
    judges.append(network(letters(SIZE - 1), causal=True))
    assert len({load_judge(judge, device="cpu").id for judge in judges}) == 3


def test_seconds_are_stated_only_of_what_ran(forbid, letters, data, tmp_path, monkeypatch) -> None:
    """Samples serve every configuration; how long they took belongs to one."""
    tokenizer = letters(SIZE)
    models = {"teacher": network(tokenizer), "student": network(tokenizer, heads=4)}
    models["ar"] = network(tokenizer, causal=True)

    def run(**changes):
        return evaluate(models, steps=[4], data=data, out=tmp_path / "out", **OPTIONS, **changes)

    first = run()
    assert all(cell.seconds for cell in first.cells if cell.plan)
    assert len(speed(first).rows) == 3

    forbid()
    compiled = run(compile=True)
    assert [cell.samples for cell in compiled.cells] == [cell.samples for cell in first.cells]
    assert {cell.model for cell in compiled.cells if cell.seconds} == {"ar"}, "which is never compiled"
    assert any("2 of 3 cells were drawn earlier" in note for note in compiled.notes)
    assert [row[0].split()[0] for row in speed(compiled).rows] == ["ar"]
    assert {pair["found"] for pair in compiled.analysis["wall_clock"]} == {"no student cell was timed"}
    judged = run(compile=True, judge=network(tokenizer, causal=True, heads=4))
    assert {cell.model for cell in judged.cells if cell.seconds} == {"ar"}, "nor is it when another judge asks"
    wider = run(batch=3)
    assert [cell.samples for cell in wider.cells] == [cell.samples for cell in first.cells]
    assert not any(cell.seconds for cell in wider.cells)
    again = run()
    assert [cell.seconds for cell in again.cells] == [cell.seconds for cell in first.cells]
    assert not any("drawn earlier" in note for note in again.notes)
    monkeypatch.setattr("unmask.core.provenance.device_name", lambda _: "another machine")
    moved = run()
    assert not any(cell.seconds for cell in moved.cells)
    assert moved.analysis["wall_clock"] == []


@pytest.mark.parametrize(
    "content",
    [
        "{",
        '{"model": "teacher", "plan": "iid", "ratios": [], "tokens": "?"}',
        '{"plan": "iid", "tokens": 1, "nfe": 1, "log_q": 1, "record": {}, "seconds": 1, "timing": {}}',
    ],
)
def test_a_kept_file_of_another_shape_is_made_again(letters, data, tmp_path, content) -> None:
    """Samples, scores and bounds alike."""

    def run() -> list:
        results = evaluate({"teacher": network(letters(SIZE))}, steps=[4], data=data, out=tmp_path / "out", **OPTIONS)
        return [(entry.model, entry.plan, entry.scores) for entry in results.entries]

    first = run()
    paths = (tmp_path / "out" / "cells").iterdir()
    kept = {path: path.read_bytes() for path in paths if path.name != "unmask.json"}
    assert len(kept) == 4, "samples and scores of a cell, ELBO, NELBO"
    for path in kept:
        path.write_text(content)
    assert run() == first
    for path, before in kept.items():
        again, once = json.loads(path.read_bytes()), json.loads(before)
        assert again.keys() == once.keys()


def test_cells_of_another_law_are_drawn_again(letters, tmp_path, monkeypatch) -> None:
    asked, draw = [], cells.sample

    def recorded(*given, plan, **options):
        asked.append(plan)
        return draw(*given, plan=plan, **options)

    monkeypatch.setattr(cells, "sample", recorded)

    def run() -> set[str]:
        asked.clear()
        fingerprint.behaviour.cache_clear()
        plans = {"plans": ["golden", "confidence"], "cells": tmp_path / "cells"}
        evaluate({"teacher": network(letters(SIZE))}, steps=[4], out=tmp_path / "out", **{**OPTIONS, **plans})
        return set(asked)

    confidence = Confidence.confidence
    with monkeypatch.context() as before:
        before.setattr(Confidence, "confidence", lambda self, log_p_MV: -confidence(self, log_p_MV))
        assert run() == {"golden", "confidence"}
    assert run() == {"confidence"}
    assert run() == set()
