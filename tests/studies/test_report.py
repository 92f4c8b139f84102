"""The report of made-up results: what it claims, and that it claims no more than its intervals."""

import dataclasses
import re
from pathlib import Path

import pytest
from tests.studies.made_up import made_cell, made_up, teacher_at

from unmask.studies.analysis import analyse
from unmask.studies.report import write_report
from unmask.studies.report.figures import figures
from unmask.studies.report.tables import likelihood, limits
from unmask.studies.report.words import facts, headline, meaning
from unmask.studies.results import Results


def test_the_headline_claims_what_its_interval_allows() -> None:
    good, entry = headline(made_up()), made_up().analysis["headline"]
    assert entry["plan"] == "golden"
    assert entry["steps"] == 4
    assert good.good
    assert "× faster" in good.words
    assert entry["speed_up"]["low"] > 1
    assert f"{entry['speed_up']['low']:.2f}" in good.ends
    gap = entry["gap"]
    (said,) = [sentence for sentence in meaning(made_up()) if "At equal NFE" in sentence]
    assert f"{-gap['value']:.3f} below the teacher's: 95% interval of the" in said
    assert f"[{gap['low']:+.3f}, {gap['high']:+.3f}]" in said
    none = headline(made_up(gain=1.0))
    assert not none.good
    assert "faster" not in none.words + none.ends
    assert "cannot be distinguished" in meaning(made_up(gain=1.0))[0]


@pytest.mark.parametrize(
    ("relation", "said", "unsaid"),
    [
        (">", "No number of steps that was run lets teacher write .* more than 3.0 times", "less than"),
        ("<", "The fewest steps that were run already let teacher write .* less than 3.0 times", "more than"),
    ],
)
def test_a_bound_is_stated_as_the_side_that_it_bounds(relation: str, said: str, unsaid: str) -> None:
    bound = {**made_up().analysis["headline"]["speed_up"], "relation": relation, "value": 3.0, "n_star": None}
    speed = meaning(with_headline(speed_up=bound))[0]
    assert re.search(said, speed)
    assert unsaid not in speed


def worse_by(loss: float, *, steps: int) -> Results:
    """A student in so many steps whose log PPL is above the teacher's at its entropy, which T = 0.9 has."""
    entropy, log_ppl = teacher_at("golden", steps, 0.9)
    cells = [
        made_cell("teacher", "golden", n, t, *teacher_at("golden", n, t)) for n in (4, 8, 16) for t in (1.0, 0.9, 0.8)
    ] + [made_cell("student", "golden", steps, 1.0, entropy, log_ppl + loss)]
    about = {name: {"role": name, "sha256": "0" * 64, "provenance": {}} for name in ("teacher", "student")}
    settings = {**made_up().settings, "steps": [steps], "plans": ["golden"]}
    judge = {"name": "smollm2", "id": "x"}
    return analyse(Results(models=about, cells=cells, bounds=[], settings=settings, judge=judge), draws=300)


@pytest.mark.parametrize(("loss", "steps"), [(0.25, 4), (0.9, 16)])
def test_a_student_that_is_worse_is_called_worse(loss: float, steps: int) -> None:
    """In 4 steps the teacher's fewest suffice, so that its speed-up ends at 1; in 16 steps, well below."""
    results = worse_by(loss, steps=steps)
    entry = results.analysis["headline"]
    assert entry["speed_up"]["low"] is None
    assert entry["speed_up"]["high"] == pytest.approx(4 / steps)
    assert entry["gap"]["low"] > 0
    speed, gap, *_ = meaning(results)
    assert f"student in {steps} steps is worse than teacher" in speed
    assert f"{entry['gap']['value']:.3f} above the teacher's" in gap
    assert f"[{entry['gap']['low']:+.3f}, {entry['gap']['high']:+.3f}]" in gap


def test_a_gain_without_a_speed_up_is_called_better() -> None:
    """The teacher ran in as many steps at the most, so that nothing says how many more it would need."""
    results = worse_by(-0.5, steps=16)
    entry = results.analysis["headline"]
    assert not entry["speed_up"]["faster"]
    assert entry["gap"]["high"] < 0
    speed, gap, *_ = meaning(results)
    assert "student in 16 steps is better than teacher in as many; what that is worth in steps was not run" in speed
    assert "below the teacher's" in gap


def test_a_student_without_gain_or_loss_is_called_neither() -> None:
    """Its speed-up has no lower end either, and its gap holds 0."""
    results = worse_by(0.0, steps=4)
    entry = results.analysis["headline"]
    assert entry["speed_up"]["low"] is None
    assert entry["gap"]["low"] < 0 < entry["gap"]["high"]
    said = " ".join(meaning(results))
    assert "cannot be distinguished" in said
    assert "At equal NFE" not in said


def test_the_bounds_stand_with_half_their_95_percent_interval() -> None:
    results = made_up()
    table = likelihood(results)
    (row,) = [row for row in table.rows if row[0] == "student\ngolden"]
    wanted = ("student", "golden", 4)
    (bound,) = [b for b in results.bounds if (b.model, b.plan, b.steps) == wanted]
    (less,) = [d for d in results.analysis["likelihood"] if (d["model"], d["plan"], d["steps"]) == wanted]
    token, byte = bound.scores["per_token"], bound.scores["per_byte"]
    half, half_less = ((said["high"] - said["low"]) / 2 for said in (token, less))
    assert row[1].split("\n") == [
        f"{token['value']:.3f} ± {half:.3f}", f"{byte['value']:.3f} per byte",
        f"{less['value']:+.3f} ± {half_less:.3f} to teacher",
    ]  # fmt: skip
    assert half == pytest.approx(1.96 * token["stderr"], rel=0.1), "not one standard error"
    assert "± is half the 95% bootstrap interval" in table.note


def test_what_cannot_be_compared_is_said() -> None:
    results = made_up()
    cut = [cell for cell in results.cells if not (cell.model == "teacher" and cell.temperature < 0.95)]
    alone = analyse(dataclasses.replace(results, cells=cut), draws=50)
    assert headline(alone).words == "Not bracketed"
    assert "nothing is extrapolated" in meaning(alone)[0]
    others = {name: about for name, about in results.models.items() if about["role"] != "student"}
    no_student = dataclasses.replace(
        results,
        models=others,
        cells=[cell for cell in results.cells if cell.model in others],
        bounds=[bound for bound in results.bounds if bound.model in others],
    )
    found = headline(analyse(no_student, draws=50))
    assert found.words == "Measured, not compared"
    assert "no student beside a teacher" in found.ends
    own = [  # as of a uniform process
        dataclasses.replace(cell, ratios={name: r for name, r in cell.ratios.items() if name != "sampler_entropy"})
        for cell in results.cells
    ]
    found = headline(analyse(dataclasses.replace(results, cells=own), draws=50))
    assert found.words == "Measured, not compared"
    assert "have no own entropy at which to compare them" in found.ends


# --- no more than its interval ----------------------------------------------------------------------------------------


def with_scores(results: Results, **ends: dict) -> Results:
    """The same, with other ends of R for the teacher in 4 steps at T = 1, by plan."""
    cells = []
    for cell in results.cells:
        if (cell.model, cell.steps, cell.temperature) == ("teacher", 4, 1.0):
            said = {**cell.scores["path_gap"], **ends[str(cell.plan)]}
            cell = dataclasses.replace(cell, scores={**cell.scores, "path_gap": said})
        cells.append(cell)
    return dataclasses.replace(results, cells=cells)


@pytest.mark.parametrize(
    ("iid", "golden", "expected"),
    [
        ({"value": 1550.0, "low": 1300.0, "high": 1850.0}, {"value": 1795.0, "low": 1500.0, "high": 2100.0}, "apart"),
        ({"value": 1795.0, "low": 1700.0, "high": 1900.0}, {"value": 1550.0, "low": 1450.0, "high": 1650.0}, "takes"),
        ({"value": 1795.0, "low": None, "high": None}, {"value": 1.0, "low": 0.9, "high": 1.1}, "apart"),
    ],
)
def test_the_plan_is_credited_only_where_intervals_are_disjoint(iid: dict, golden: dict, expected: str) -> None:
    said = " ".join(meaning(with_scores(made_up(), iid=iid, golden=golden)))
    assert ("The plan alone" in said) == (expected == "takes")
    assert ("on iid and on golden cannot be distinguished" in said) == (expected == "apart")


def with_headline(**entry: dict) -> Results:
    results = made_up()
    return dataclasses.replace(
        results, analysis={**results.analysis, "headline": {**results.analysis["headline"], **entry},
                           "comparisons": [{**one, **entry} for one in results.analysis["comparisons"]]}
    )  # fmt: skip


def everything_said(results: Results, folder: Path) -> str:
    """The page without its record and its figures, and the Markdown."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unmask.studies.report.figures", lambda _: [])  # which take most of the time
        write_report(results, folder)
    page = (folder / "report.html").read_text(encoding="utf-8")
    return page[: page.index("everything that was really used")] + (folder / "report.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("low", "high", "words"), [(None, None, "not determined"), (None, 3.0, "below 3.00"), (0.5, None, "above 0.50")]
)
def test_an_interval_without_ends_is_said_in_words(low, high, words: str, tmp_path: Path) -> None:
    found = {**made_up().analysis["headline"]["speed_up"], "low": low, "high": high, "faster": False}
    gap = {"value": -0.1, "low": low and -low, "high": high}
    results = with_headline(speed_up=found, gap=gap, gap_to={"temperature": gap, "top_p": gap})
    assert f"95% interval {words}" in headline(results).ends
    assert "cannot be distinguished" in meaning(results)[0]
    assert words in meaning(results)[0]
    assert limits(found, digits=2) == words
    said = everything_said(results, tmp_path)
    assert words in said
    for bad in ("∞", "inf]", "[0, ", "None", "[nan"):
        assert bad not in said, bad


def test_a_likelihood_without_an_interval_is_no_verdict() -> None:
    results = made_up()
    less = [{**one, "low": None, "high": None} for one in results.analysis["likelihood"]]
    unknown = dataclasses.replace(results, analysis={**results.analysis, "likelihood": less})
    (said,) = [sentence for sentence in meaning(unknown) if "NELBO" in sentence]
    assert "cannot be distinguished from the teacher" in said
    assert "not determined" in said
    assert "interval not determined" in " ".join(text for text, _ in facts(unknown))


def test_the_parrot_passes_only_what_it_passes() -> None:
    (said,) = [sentence for sentence in meaning(made_up()) if "parrot" in sentence]
    assert "By Gen PPL and entropy of words it cannot be distinguished from real text" in said
    assert "Its own entropy is 0.003 nats a byte" in said
    cells = [
        dataclasses.replace(cell, scores={**cell.scores, "gen_ppl": {"value": 9.0, "low": 8.0, "high": 10.0}})
        if cell.model == "parrot" else cell
        for cell in made_up().cells
    ]  # fmt: skip
    (said,) = [s for s in meaning(dataclasses.replace(made_up(), cells=cells)) if "parrot" in s]
    assert "By entropy of words it cannot be distinguished" in said


def test_texts_that_look_wrong_are_not_credited(tmp_path: Path) -> None:
    """However fast: the same results are credited without the suspicion."""
    wrong = with_headline(suspicions=["87.0% of its 4-grams occurred before in the same text"])
    assert headline(made_up()).good
    assert (headline(wrong).good, headline(wrong).words) == (False, "Not credited")
    assert "is not credited with a gain: 87.0% of its 4-grams" in meaning(wrong)[0]
    assert not any("below the teacher's" in sentence for sentence in meaning(wrong))
    said = everything_said(wrong, tmp_path)
    assert "faster" not in said
    assert "not credited: its texts look wrong" in said


def test_a_fault_that_the_teacher_has_too_is_not_the_students() -> None:
    """Held-out text of another kind makes every model look as if it knew little of the language."""
    results, little = made_up(), {"coverage_4": "it knows little of the language"}

    def with_faults(*models: str) -> Results:
        cells = [dataclasses.replace(c, suspicions=little) if c.model in models else c for c in results.cells]
        return analyse(dataclasses.replace(results, cells=cells), draws=300)

    assert headline(with_faults("student", "teacher")).good
    assert headline(with_faults("student")).words == "Not credited"


def test_a_legend_names_what_is_drawn_and_nothing_else() -> None:
    """A student that ran on one plan only, and a causal model that nobody judged."""
    results = made_up()
    cells = [cell for cell in results.cells if (cell.model, cell.plan) != ("student", "iid") and cell.model != "causal"]
    fewer = dataclasses.replace(results, cells=cells)
    for figure in figures(fewer):
        drawn = {series.name for panel in figure.panels for series in panel.series if series.points}
        named = [series.name for series in figure.legend]
        assert sorted(named) == sorted(drawn)
        assert "causal, causal" not in named
        assert ("student, iid" in named) == (figure.name == "against-nfe"), "its NELBO was measured on both"
    frontier = figures(results)[0]
    named = {series.name for series in frontier.legend}
    assert {"student, iid", "causal, causal"} <= named
    assert not {"real text", "parrot"} & named, "one has no entropy of its own, the other next to none"
    cut = dataclasses.replace(results.one(model="teacher", plan="iid", steps=8, temperature=1.0), top_p=0.9)
    both = figures(dataclasses.replace(results, cells=[*results.cells, cut]))[0]
    assert "teacher, iid, top-p" in {series.name for series in both.legend}
