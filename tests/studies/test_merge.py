"""Results on disk and merged into one: only what is whole, and was really read and meant alike, goes together."""

import dataclasses

import pytest
import torch

from unmask.core.errors import UserError
from unmask.core.streams import stream
from unmask.metrics.score import Ratio, Score
from unmask.studies.analysis import analyse
from unmask.studies.merge import merge
from unmask.studies.results import PER_TEXT, Bound, Cell, Results, read_results, write_results

SETTINGS = {"steps": [4], "plans": ["golden"], "temperatures": [1.0], "n": 8, "protocol": "mdlm", "seed": 0,
            "length": 16, "data": "corpus", "split": "validation", "wrap": False}  # fmt: skip


def run(
    model: str = "teacher", *, texts: str | None = "aa", count: int = 8, source: str | None = "corpus",
    split: str | None = "validation", plan: str = "golden", times: tuple[float, ...] = (1.0, 0.5, 0.0),
    device: str = "a machine", **about: object,
) -> Results:  # fmt: skip
    """One model's bound and cell on a plan, beside real text; `texts` is the hash of what was read, None: no record."""
    read = {"source": source, "split": split, "wrap": False, "texts": count, "sha256": texts} if texts else {}
    ratio = Ratio.mean(4 + torch.randn(count, generator=stream(0, model, plan), dtype=torch.float64))
    score = {name: value for name, value in Score.of(ratio, "", {}, draws=50).to_json().items() if name != "record"}
    grid = {"grid": {"times": list(times)}}
    bound = Bound(model, plan, 4, 4.0, {"per_token": score}, ratio, {"texts": read, **grid})
    common = {"scores": {"entropy": score}, "ratios": {"entropy": ratio}}
    cell = Cell(model, plan, 4, 1.0, count, 4.0, 2.0, 16 * count, **common, record={"texts": grid})
    real = Cell("real text", None, None, None, count, None, None, 16 * count, **common, record={"texts": read})
    role = "teacher" if model == "teacher" else "student"
    models = {model: {"role": role, "sha256": model, "provenance": {}, **about}}
    models["real text"] = {"role": "real", "sha256": None, "provenance": {}}
    settings = {**SETTINGS, "plans": [plan], "n": count, "data": source, "split": split}
    return Results(models, [cell, real], [bound], settings, None, provenance={"device": device})


def test_equal_texts_pair_whatever_their_folder_is_called() -> None:
    both = merge([run(), run("student", source="./corpus")])
    (less,) = analyse(both, draws=50).analysis["likelihood"]
    assert (less["model"], less["count"]) == ("student", 8)


@pytest.mark.parametrize(
    "other",
    [
        {"texts": "bb", "split": "test"},
        {"texts": "bb"},  # the folder was prepared anew
        {"texts": "bb", "count": 4, "source": "other"},
        {"texts": "bb", "count": 4, "split": "test"},
    ],
)
def test_different_held_out_text_is_refused_in_one_line(other) -> None:
    with pytest.raises(UserError, match=r"different held-out text .*--data, --split and --n") as raised:
        merge([run(), run("student", **other)])
    assert "\n" not in str(raised.value)


def test_runs_without_held_out_text_go_together() -> None:
    nothing = {"texts": None, "source": None}
    assert merge([run(**nothing), run("student", **nothing, split=None)]).bounds, "no text has no split"
    with pytest.raises(UserError, match=r"\(corpus, validation and none\)"):
        merge([run(), run("student", **nothing)])


def test_bounds_join_runs_of_any_judge() -> None:
    """NELBO knows no judge: a run that drew nothing brings its bounds and none of its temperatures."""
    judged = dataclasses.replace(run(), judge={"id": "one", "name": "a judge"})
    alone = run("student")
    alone = dataclasses.replace(
        alone, cells=[], notes=["nothing was drawn"], settings={**alone.settings, "temperatures": [1.0, 0.5]}
    )
    for order in ([judged, alone], [alone, judged]):
        both = merge(order)
        assert both.judge == judged.judge
        assert (both.settings["temperatures"], both.notes) == ([1.0], [])
        (less,) = analyse(both, draws=50).analysis["likelihood"]
        assert (less["model"], less["count"]) == ("student", 8)
    with pytest.raises(UserError, match="different judges"):
        merge([judged, run("student")])  # texts were drawn, and nobody read them


def test_more_texts_of_the_same_source_merge_but_do_not_pair() -> None:
    both = merge([run(), run("student", texts="bb", count=16)])
    assert {cell.n for cell in both.cells if cell.model == "real text"} == {16}, "the most stay"
    assert analyse(both, draws=50).analysis["likelihood"] == []


def test_of_a_bound_that_several_have_the_one_on_common_texts_stays_and_others_are_named() -> None:
    runs = [run(), run(texts="bb", count=32), run("student"), run(plan="iid", texts="bb", count=32)]
    for order in (runs[:3], runs[2::-1]):
        merged = merge(order)
        assert {bound.model: len(bound.ratio) for bound in merged.bounds} == {"teacher": 8, "student": 8}
        assert not merged.notes  # all of them are of one set of texts
    assert merge([runs[0], runs[3]]).notes == [
        "Bounds are of different held-out texts (32 or 8 of them): compare like with like."
    ]


def test_a_fitted_grid_goes_by_its_times() -> None:
    fitted = {"plan": "golden@g.json"}
    assert merge([run(**fitted), run("student", **fitted)]).plans == ["golden@g.json"]
    with pytest.raises(UserError, match=r"different grids of 4 steps by golden@g\.json"):
        merge([run(**fitted), run("student", **fitted, times=(1.0, 0.4, 0.0))])


def test_a_model_goes_by_all_that_it_is() -> None:
    with pytest.raises(UserError, match="different models by 'teacher'"):
        merge([run(identity="one schedule"), run(identity="another")])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "damaged"),
        ("{}", "not a results file"),
        ('{"format": "unmask results", "version": 99}', "schema version 99"),
        ('{"format": "unmask results", "version": 2, "models": {}}', "damaged"),
    ],
)
def test_a_damaged_results_file_is_one_line(tmp_path, content: str, message: str) -> None:
    (tmp_path / "results.json").write_text(content)
    with pytest.raises(UserError, match=message):
        read_results(tmp_path)


def test_what_single_texts_gave_stands_beside_and_belongs_there(tmp_path) -> None:
    one, other = run(), run("student")
    for name, results in (("one", one), ("other", other)):
        (tmp_path / name).mkdir()
        write_results(results, tmp_path / name / "results.json")
    beside = tmp_path / "one" / PER_TEXT
    found = read_results(tmp_path / "one")
    for mine, theirs in zip(found.cells, one.cells, strict=True):
        assert mine.ratios["entropy"].top_n.tolist() == theirs.ratios["entropy"].top_n.tolist()
    assert found.bounds[0].ratio.top_n.tolist() == one.bounds[0].ratio.top_n.tolist()
    kept = beside.read_bytes()
    beside.write_bytes((tmp_path / "other" / PER_TEXT).read_bytes())
    with pytest.raises(UserError, match="is of other results"):
        read_results(tmp_path / "one")
    beside.write_bytes(kept[:-9])
    with pytest.raises(UserError, match="is damaged"):
        read_results(tmp_path / "one")
    beside.unlink()
    with pytest.raises(UserError, match=f"lacks {PER_TEXT}"):
        read_results(tmp_path / "one")
