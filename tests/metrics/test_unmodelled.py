"""Texts without a model: what they are made of, that they please the bundled judge, and that nobody is credited."""

import dataclasses
import math

import pytest
import torch

from unmask.checkpoint.io import load
from unmask.core.errors import UserError
from unmask.metrics.judges import load_judge
from unmask.metrics.texts import Texts, held_out, of_samples, real_text
from unmask.metrics.unmodelled import UNMODELLED, mirror, parrot, period, phrase_bank
from unmask.sampling.verbs import sample
from unmask.studies.analysis import analyse
from unmask.studies.cells import Measure, RealText
from unmask.studies.report.words import headline, meaning
from unmask.studies.results import Cell, Results

N, LENGTH = 32, 64


@pytest.fixture
def passages(letters) -> Texts:
    return real_text(torch.arange(20)[:, None] % 7 + torch.arange(9), letters(20), torch.arange(20))


def test_what_they_print(passages) -> None:
    first = passages.rows[0]
    birds = parrot(passages, 50)
    assert {tuple(row) for row in birds.rows} == {tuple(row) for row in passages.rows[:16]}
    assert torch.equal(birds.cluster_T, torch.arange(50) % 16), "a passage printed again says nothing new"
    assert period(passages, 3).rows[0] == (first[:2] * 5)[:9]
    assert mirror(passages, 3).rows[0] == first[:2] + first[2:4] + first[2:4] + first[:2]
    bank = {tuple(row[:2]) for row in passages.rows[:16]}
    assert all(tuple(row[i : i + 2]) in bank for row in phrase_bank(passages, 30).rows for i in range(0, 8, 2))
    with pytest.raises(UserError, match="16 real passages, and there are 15"):
        parrot(passages.take(15), 50)


def test_their_log_q_is_that_of_their_law(passages) -> None:
    """A phrase bank writes 16^4 texts, all alike."""
    nats = {name: -float(make(passages, 8, 0).log_q_T[0]) for name, make in UNMODELLED.items()}
    assert nats == pytest.approx({
        "parrot": math.log(16), "period": math.log(20), "mirror": math.log(20), "phrase bank": 4 * math.log(16),
    })  # fmt: skip


@pytest.fixture(scope="module")
def results() -> Results:
    """The bundled teacher in 4 steps at two temperatures, real text, and every text without a model."""
    pocket, judge = load("pocket"), load_judge("pocket-judge", device="cpu")
    blocks = held_out("sample", pocket.tokenizer, LENGTH, count=2 * N, split="test")
    halves = [real_text(blocks.tokens_TL[i::2].contiguous(), blocks.tokenizer, blocks.document_T[i::2]) for i in (0, 1)]
    real = RealText(*halves)
    measure = Measure(judge, "mdlm", real, None, 0)
    cells, roles = [], {"teacher": "teacher", "real text": "real"}

    def cell(texts: Texts, model: str, plan: str | None = None, steps: int | None = None, heat: float | None = None):
        return Cell(model, plan, steps, heat, len(texts), steps and float(steps), None, 1, **measure(texts))

    for heat in (1.0, 0.6):
        drawn = sample(pocket, N, 4, plan="iid", length=LENGTH, temperature=heat, seed=1, device="cpu")
        cells.append(cell(of_samples(drawn, pocket.tokenizer), "teacher", "iid", 4, heat))
    cells.append(cell(real.pool, "real text"))
    for name, make in UNMODELLED.items():
        cells.append(cell(make(real.pool, N, 0), name))
        roles[name] = "control"
    models = {name: {"role": role, "sha256": None, "provenance": {}} for name, role in roles.items()}
    settings = {"steps": [4], "plans": ["iid"], "temperatures": [1.0, 0.6], "n": N, "protocol": "mdlm", "seed": 0,
                "length": LENGTH, "data": "sample"}  # fmt: skip
    return Results(models, cells, [], settings, judge.record())


@pytest.mark.parametrize("name", UNMODELLED)
def test_the_judge_is_fooled_and_the_report_is_not(results, name) -> None:
    """Gen PPL finds each far better than what a true sampler writes in few steps."""
    teacher, fool = results.one(model="teacher", temperature=1.0), results.one(model=name)
    assert fool.scores["gen_ppl"]["high"] < teacher.scores["gen_ppl"]["low"]
    assert fool.value("gen_ppl") < 0.5 * teacher.value("gen_ppl")
    assert fool.suspicions
    # as a student it has next to no entropy of its own: there is no teacher to hold it against, and no credit
    student = dataclasses.replace(fool, model="student", plan="iid", steps=4, temperature=1.0, nfe=2.0)
    assert judged_as_student(results, student).words == "Not bracketed"


def judged_as_student(results: Results, student: Cell):
    models = {**results.models, "student": {"role": "student", "sha256": None, "provenance": {}}}
    found = analyse(dataclasses.replace(results, models=models, cells=[*results.cells, student]), draws=200)
    assert not headline(found).good
    assert not any("faster" in sentence for sentence in meaning(found))
    return headline(found)


def test_the_report_says_of_each_what_it_is(results) -> None:
    said = meaning(analyse(results, draws=50))
    for name in UNMODELLED:
        (sentence,) = [one for one in said if one.startswith(f"The {name},")]
        assert "is caught by the scores across samples" in sentence
        assert "Its own entropy is 0.0" in sentence
