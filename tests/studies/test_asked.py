"""What may be asked of an evaluation: mistakes are found before any work, defaults fit, and what was cut is said."""

import json
import sys

import pytest
import torch

from unmask.core.errors import UserError
from unmask.studies.evaluate import evaluate

SIZE, LENGTH = 20, 32  # of the scene
OPTIONS = {"plans": ["iid", "golden"], "temperatures": [1.0, 0.7], "n": 32, "device": "cpu", "batch": 32}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": [0]}, "from 1 on"),
        ({"plans": ["goldn"]}, "did you mean 'golden'"),
        ({"temperatures": [0.0]}, "above 0"),
        ({"n": 1}, "at least 2"),
        ({"protocol": "mdml"}, "did you mean 'mdlm'"),
        ({"mauve": True}, "MAUVE needs"),
        ({"only_bounds": True}, "bounds alone need held-out text"),
        ({"only_bounds": True, "data": "sample", "judge": "smollm2"}, "leave --judge"),
        ({"plans": ["iid@mdlm"], "data": "sample"}, "iid@mdlm fills its last positions by argmax"),
        ({"models": {}}, "nothing to evaluate"),
        ({"models": "pocket"}, "models takes a mapping of names.*not 'pocket'"),
        ({"models": {"student": torch.nn.Linear(2, 2)}}, r"student is a bare network: give unmask\.Checkpoint"),
        ({"models": {"student": 3}}, "student is a int: give"),
        ({"steps": "8"}, "steps takes several whole numbers, not '8'"),
        ({"seed": torch.Generator()}, "seed takes a whole number, not a torch.*Generator"),
        ({"texts": {"mine": "mine.pdf"}}, "takes NAME=FILE with a .jsonl or .txt file"),
        ({"texts": {"teacher": "mine.txt"}}, "'teacher' is a model and a file of texts"),
        ({"models": {"parrot": "no-such-folder"}}, "'parrot' is the name of a control"),
        ({"models": {"real text": "no-such-folder"}}, "'real text' is the name of a control"),
        ({"models": {"teacher": "ar", "student": "student"}}, "'teacher' is the masked model .* causal: call it ar"),
        ({"batch": 0}, "batch must be at least 1, not 0"),
        ({"batch": -1, "only_bounds": True, "data": "sample"}, "batch must be at least 1, not -1"),
        ({"control_steps": [0]}, "control_steps must be whole numbers from 1 on"),
        ({"steps": [4, 300]}, f"steps must be at most {LENGTH}, one a token of these models, not 300: .*--steps"),
        ({"control_steps": [LENGTH + 1]}, f"control_steps must be at most {LENGTH},.*--control_steps"),
        ({"plans": ["golden", "blocks@mdlm"]}, "blocks take the grids"),
        ({"split": "test"}, "--split says how data is read, .* give --data"),
        ({"wrap": True}, "--wrap .* give --data"),
        ({"judge_dtype": "bf16"}, "--judge_dtype .* give --judge"),
        ({"protocol": "sdtt"}, "--protocol .* give --judge"),
        ({"plans": ["golden@{grid}"]}, r"no grid of 8 steps.*--control_steps 4"),
        ({"judge": "no-such-folder/judge"}, "smollm2"),
        ({"data": "no-such-folder"}, "no-such-folder"),
    ],
)
def test_a_users_mistake_is_one_line_before_any_work(scene, changes, message: str, tmp_path, forbid) -> None:
    models, _, _ = scene
    times = {"name": "fitted", "by": "rank", "times": [1.0, 0.7, 0.4, 0.2, 0.0]}
    (tmp_path / "grid.json").write_text(json.dumps({"grid": times, "plan": "golden"}))

    forbid()
    options = {"models": models, "steps": [4], "device": "cpu", **changes}
    if isinstance(changes.get("models"), dict):
        options["models"] = {
            name: models.get(source, source) if isinstance(source, str) else source
            for name, source in changes["models"].items()
        }
    if "plans" in options:
        options["plans"] = [plan.format(grid=tmp_path / "grid.json") for plan in options["plans"]]
    with pytest.raises(UserError, match=message) as raised:
        evaluate(**options)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("names", [["teacher"], ["teacher", "student"]])
def test_control_steps_that_serve_nobody_are_named(scene, names) -> None:
    models = {name: scene[0][name] for name in names}
    results = evaluate(models, steps=[2], control_steps=[4], plans=["iid"], temperatures=[1.0], n=2, device="cpu")
    drawn = {cell.steps for cell in results.cells if cell.model == "teacher"}
    assert drawn == ({2} if names == ["teacher"] else {2, 4})
    assert any("--control_steps did nothing" in note for note in results.notes) == (drawn == {2})


@pytest.mark.parametrize("given", [{}, {"temperatures": [1.0]}, {"temperatures": [1.0], "control_steps": [4]}])
def test_options_of_drawing_are_named_where_nothing_is_drawn(scene, given) -> None:
    models, data, _ = scene
    options = {"plans": ["iid"], "n": 2, "data": data, "device": "cpu", **given}
    results = evaluate({"teacher": models["teacher"]}, steps=[2], only_bounds=True, **options)
    said = " ".join(note for note in results.notes if "did nothing" in note)
    assert {name for name in ("temperatures", "control_steps") if f"--{name}" in said} == given.keys()


@pytest.mark.parametrize(
    ("length", "plan", "expected"),
    [
        (64, "golden", [4, 8, 16, 32, 64]),
        (40, "golden", [4, 8, 16, 32, 40]),  # up to one a token, as the teacher's steps go
        (3, "golden", [3]),
        (40, "golden@{folder}/whole.json", [4, 6]),  # it holds 1 to 6
        (40, "golden@{folder}/alone.json", [6]),  # and this one nothing but 6
    ],
)
def test_steps_that_nobody_asked_for_are_cut_to_what_there_is(letters, network, tmp_path, length, plan, expected):
    """Asked for in the same call they are refused."""
    paths = [{"steps": n, "times": [1 - k / n for k in range(n + 1)]} for n in range(1, 7)]
    grid = {"plan": "golden", "grid": {"name": "fitted", "by": "rank", "times": paths[-1]["times"]}}
    (tmp_path / "alone.json").write_text(json.dumps(grid))
    (tmp_path / "whole.json").write_text(json.dumps({**grid, "fitting_half": paths}))
    models = {"teacher": network(letters(SIZE), 1, length=length)}
    options = {"plans": [plan.format(folder=tmp_path)], "temperatures": [1.0], "n": 2, "device": "cpu"}
    results = evaluate(models, **options)
    assert [cell.steps for cell in results.cells] == results.settings["steps"] == expected
    said = [note for note in results.notes if "in place of the usual" in note]
    usual = [4, 8, 16, 32, 64]
    assert len(said) == (expected != usual)
    if said:
        assert said[0].startswith(f"Steps: {' '.join(map(str, expected))} in place of the usual 4 8 16 32 64, since")
        assert (f"write {length} tokens" in said[0]) == (expected[-1] == length)
        with pytest.raises(UserError, match=r"steps must be at most|holds no grid of"):
            evaluate(models, steps=usual, **options)


def test_a_judge_that_cannot_read_the_texts_is_refused_before_they_are_drawn(scene, forbid, letters, hand_made):
    models, _, tokenizer = scene

    forbid("sample")
    teacher = {"teacher": models["teacher"]}
    with pytest.raises(UserError, match="'sdtt' hands raw token ids"):
        evaluate(teacher, steps=[4], judge=hand_made(letters(SIZE - 1))[0], protocol="sdtt", device="cpu")
    with pytest.raises(UserError, match="no end-of-document token"):
        evaluate(teacher, steps=[4], judge=hand_made(tokenizer, eos=False)[0], protocol="sdtt", device="cpu")


def test_too_little_held_out_text_is_said(scene) -> None:
    models, data, _ = scene
    options = {**OPTIONS, "plans": ["golden"], "n": 100}
    alone = evaluate({"teacher": models["teacher"]}, steps=[4], data=data, only_bounds=True, **options)
    assert len(alone.bounds[0].ratio) == 96
    assert any("96 blocks of 32 tokens, and n = 100 asks for 100: NELBO is over 96" in note for note in alone.notes)


def test_without_a_judge_there_is_nothing_to_keep_of_one(scene, tmp_path, monkeypatch) -> None:
    """A home that cannot be written is no reason to fail."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "file"))
    options = {**OPTIONS, "plans": ["golden"], "temperatures": [1.0], "n": 2}
    assert evaluate({"teacher": scene[0]["teacher"]}, steps=[4], **options).cells


def test_mauve_without_its_package_is_refused_before_any_work(scene, monkeypatch) -> None:
    models, data, _ = scene
    monkeypatch.setitem(sys.modules, "mauve", None)
    with pytest.raises(UserError, match="MAUVE needs the package mauve-text"):
        evaluate({"teacher": models["teacher"]}, steps=[4], data=data, judge="nobody looks for it", mauve=True, n=2048)
