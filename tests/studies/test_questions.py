"""Questions in GSM8K's format: which number is the answer, what is right, what it cost."""

import json
from dataclasses import replace

import pytest
from tests.scene import _letters

from unmask.checkpoint.io import Checkpoint
from unmask.cli.evaluate import show
from unmask.core.errors import UserError
from unmask.processes import Uniform
from unmask.sampling.answers import answer
from unmask.studies.evaluate import ONLY_QUESTIONS, evaluate
from unmask.studies.questions import ask, ask_models, final_number, read_questions
from unmask.studies.report import write_report
from unmask.studies.report.tables import questions as table
from unmask.studies.results import read_results


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("48 / 2 = 24, so 48 + 24 = 72\n#### 72", "72"),
        ("#### 1,234.50", "1234.5"),
        ("#### $-3 dollars", "-3"),
        ("It is 4, no, 5.", "5"),
        ("#### 7 or 8", "7"),
        ("12 first #### none", None),
        ("nothing", None),
    ],
)
def test_the_number_that_counts(text, number):
    assert final_number(text) == number


def written(path, rows):
    path.write_text("\n".join(json.dumps({"question": q, "answer": a}) for q, a in rows))
    return path


class Codec:
    """A tokenizer whose token 15 spells 7, and every other token nothing that counts."""

    stop_ids, eos_id, mask_id, size = frozenset({0}), 0, None, 20

    def encode(self, text):
        return [1] * len(text.split())

    def decode(self, ids):
        return "#### 7" if 15 in list(ids) else "well"

    def decode_batch(self, rows):
        return [self.decode(row) for row in rows]


def test_right_answers_and_their_cost_are_counted(network, letters):
    checkpoint = network(letters(20), 1)
    object.__setattr__(checkpoint, "tokenizer", Codec())
    rows = [("a " * n, str(number)) for n, number in ((2, 7), (3, 7), (4, 8), (5, 7))]
    row = ask(checkpoint, rows, max_new=8, steps=4, chat=False, seed=0, temperature=1.0, device="cpu")
    right = [one["right"] for one in row["answers"]]
    says = [one["text"] == "#### 7" for one in row["answers"]]
    assert right == [said and number == "7" for said, (_, number) in zip(says, rows, strict=True)]
    assert row["exact_match"] == sum(right) / 4 > 0
    assert row["forwards_an_answer"] == 4
    assert row["tokens_a_forward"] == row["tokens_an_answer"] / 4
    assert row["seconds_an_answer"] > 0


def test_in_blocks_no_forward_is_made_after_an_answer_has_ended(network, letters):
    checkpoint = network(letters(20), 1)
    object.__setattr__(checkpoint, "tokenizer", Codec())
    prompts = [[1 + i, 2] for i in range(8)]
    made = answer(checkpoint, prompts, 12, block_size=2, temperature=1.0, device="cpu")
    assert [one.nfe for one in made.each] == [one.tokens + one.tokens % 2 for one in made.each]
    assert min(one.nfe for one in made.each) < 12


def test_evaluate_asks_every_masked_model_at_every_number_of_steps(scene, tmp_path):
    models, data, _ = scene
    path = written(tmp_path / "questions.jsonl", [("a b c", "so #### 4"), ("d e", "#### 5")])
    options = {"temperatures": [1.0], "plans": ["golden"], "n": 4, "device": "cpu", "bracket": False, "data": data}
    results = evaluate(models, steps=[2, 4], questions=path, max_new=4, out=tmp_path / "out", **options)
    assert [(row["model"], row["steps"]) for row in results.questions] == [
        ("teacher", 2), ("teacher", 4), ("student", 2), ("student", 4),
    ]  # fmt: skip
    assert all(row["exact_match"] == 0 and row["questions"] == 2 for row in results.questions)
    assert read_results(tmp_path / "out").questions == results.questions
    assert table(results).rows[0][:3] == ["teacher", "2 steps", "0.0% ± 0.0%"]
    assert results.cells


def test_questions_alone_draw_no_other_texts(scene, tmp_path):
    """A model of billions would take hours over texts of its whole length that nobody asked for."""
    models, _, _ = scene
    path = written(tmp_path / "questions.jsonl", [("a b c", "so #### 4"), ("d e", "#### 5")])
    results = evaluate(models, steps=[2], questions=path, max_new=4, out=tmp_path / "out", device="cpu")
    assert len(results.questions) == 2
    assert not results.cells
    assert not results.bounds
    assert any("no other texts were drawn" in note for note in results.notes)
    assert "exact match" in (write_report(results, tmp_path / "out").parent / "report.md").read_text()


def test_models_of_different_tokenizers_answer_the_same_questions_by_threshold_and_in_blocks(
    network, letters, tmp_path
):
    path = written(tmp_path / "questions.jsonl", [("a b c", "so #### 4"), ("d e", "#### 5")])
    models = {"one": network(letters(20), 1), "other": network(letters(12), 2)}
    asked = {"thresholds": [0.9, 0.01], "block_size": 2, "max_new": 4, "device": "cpu"}
    found = evaluate(models, questions=path, **asked).questions
    assert [(row["model"], row["way"]) for row in found] == [
        ("one", "threshold 0.9"), ("one", "threshold 0.01"), ("other", "threshold 0.9"), ("other", "threshold 0.01"),
    ]  # fmt: skip
    for sure, unsure in (found[:2], found[2:]):
        assert unsure["forwards_an_answer"] < sure["forwards_an_answer"]
    with pytest.raises(UserError, match="are for answers to questions: give --questions"):
        evaluate(models, block_size=4)


def test_answers_are_kept_row_by_row_and_a_stopped_call_goes_on(network, letters, tmp_path, monkeypatch):
    path = written(tmp_path / "questions.jsonl", [("a b c", "so #### 4"), ("d e", "#### 5")])
    models, asked = {"one": network(letters(20), 1), "other": network(letters(12), 2)}, []
    how = {"questions": path, "max_new": 4, "steps": [4, 2], "device": "cpu", "out": tmp_path / "out"}

    def once(checkpoint, *given, **options):
        asked.append((checkpoint, options["steps"]))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return ask(checkpoint, *given, **options)

    monkeypatch.setattr("unmask.studies.questions.ask", once)
    with pytest.raises(KeyboardInterrupt):
        evaluate(models, **how)
    found = evaluate(models, **how).questions
    assert asked[3:] == [(models["other"], 4), (models["other"], 2)]
    assert [(row["model"], row["steps"]) for row in found] == [("one", 4), ("one", 2), ("other", 4), ("other", 2)]
    assert read_results(tmp_path / "out").questions == found == evaluate(models, **how).questions
    written(path, [("a b c", "so #### 4"), ("d f", "#### 5")])
    evaluate(models, **how)
    assert len(asked) == 9, "other questions are asked"
    timed = evaluate(models, **how, batch=1).questions
    assert len(asked) == 9
    assert [row["seconds_an_answer"] for row in timed] == [None] * 4, "seconds of another batch"


def test_an_approximate_cache_is_said_in_the_record_and_in_the_table(tmp_path, capsys):
    pytest.importorskip("transformers")
    path = written(tmp_path / "questions.jsonl", [("a b c", "so #### 4"), ("d", "#### 5")])
    models = {"llada": tiny_llada()}
    how = {"questions": path, "max_new": 8, "steps": [8], "block_size": 4, "device": "cpu"}
    (row,) = (results := evaluate(models, cache="dual", **how)).questions
    assert row["record"]["cache"] == {"kind": "dual", "refresh": None, "approximate": True}
    assert (row["record"]["plan"]["name"], row["record"]["max_new"]) == ("blocks(4, confidence)", 8)
    assert not {"n", "nfe", "forwards"} & row["record"].keys(), "answers of several lengths are written by themselves"
    assert table(results).rows[0][1] == "8 steps, approximate cache"
    assert table(evaluate(models, **how)).rows[0][1] == "8 steps"
    show(results, tmp_path / "out", as_json=True)
    (printed,) = json.loads(capsys.readouterr().out)["questions"]
    assert (printed["exact_match"], "answers" in printed) == (0.0, False)


def tiny_llada():
    from unmask.models.llada import PRESETS, LLaDA

    config = replace(PRESETS["tiny"], vocab_size=21, mask=20, length=32)
    return Checkpoint(LLaDA(config).eval(), tokenizer=_letters(20))


def test_models_that_are_not_asked_are_named(network, letters, tmp_path, forbid):
    path = written(tmp_path / "questions.jsonl", [("a b c", "so #### 4"), ("d e", "#### 5")])
    masked, causal = network(letters(20), 1), network(letters(20), 2, causal=True)
    uniform = replace(masked, process=Uniform())
    how = {"questions": path, "max_new": 4, "steps": [4], "device": "cpu"}
    results = evaluate({"teacher": masked, "duo": uniform, "ar": causal}, **how)
    assert [row["model"] for row in results.questions] == ["teacher"]
    assert results.notes == [
        "duo was asked no questions: they are for masked models, and it is uniform.",
        "ar was asked no questions: they are for masked models, and it is causal.",
        ONLY_QUESTIONS,
    ]
    with pytest.raises(UserError, match="questions are for masked models, and none was given"):
        evaluate({"duo": uniform}, **how)


def test_a_cache_that_a_model_does_not_take_is_refused_before_anybody_is_asked(network, letters, tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    path = written(tmp_path / "questions.jsonl", [("a b c", "so #### 4"), ("d e", "#### 5")])
    monkeypatch.setattr("unmask.studies.questions.ask", None)
    with pytest.raises(UserError, match="this network has no cache"):
        evaluate({"llada": tiny_llada(), "dit": network(letters(20), 1)}, questions=path, cache="dual", device="cpu")


def test_a_file_without_answers_is_one_line(tmp_path):
    with pytest.raises(UserError, match="question 2: the answer has no number after ####"):
        read_questions(written(tmp_path / "bad.jsonl", [("a", "#### 1"), ("b", "two")]))
    (tmp_path / "other.jsonl").write_text('{"prompt": "a"}')
    with pytest.raises(UserError, match="'question' is missing"):
        ask_models({}, tmp_path / "other.jsonl", steps=None, max_new=4, seed=0, device="cpu", batch=None)
