"""From results.json to the page: numbers arrive as measured, what is missing is said, twice is the same as once."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from tools.results.run import jobs_of

from unmask.cli.main import main as command
from unmask.studies.results import read_results, write_results

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted((ROOT / "studies").glob("*.yaml"))
STUDIES = ROOT / "docs" / "results" / "studies.yaml"


def tool(house: Path, *words: str) -> int:
    from tools.results.__main__ import main

    return main(["--docs", str(house / "docs"), *words])


def page(house: Path) -> str:
    return (house / "docs" / "results.md").read_text(encoding="utf-8")


def row(text: str, name: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"| {name} |"))
    return [word.strip() for word in line.strip("|").split("|")][1:]


def edit(house: Path, old: str, new: str) -> None:
    path = house / "docs" / "results" / "studies.yaml"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_numbers_arrive_on_the_page_as_they_were_measured(house):
    assert tool(house, "slim") == 0
    kept = (house / "docs" / "results" / "plans-one.json").read_text(encoding="utf-8")
    assert "/machine" not in kept
    assert "ratios" not in kept
    assert len(kept) < len((house / "plans" / "results.json").read_text()) / 2
    assert tool(house, "page") == 0
    measured = read_results(house / "plans").one(plan="golden", steps=32, temperature=1.0)
    assert measured is not None
    ppl, entropy = measured.scores["gen_ppl"], measured.scores["entropy"]
    shown = row(page(house), "golden")[1]  # the first table; columns are 8 and 32 steps
    half = (ppl["high"] - ppl["low"]) / 2
    assert (
        shown
        == f"{ppl['value']:.1f} ± {half:.1f}<br>{entropy['value']:.3f} ± {(entropy['high'] - entropy['low']) / 2:.3f}"
    )


def test_the_page_is_made_once_and_for_all(house):
    tool(house, "slim")
    tool(house, "page")
    first = {path: path.read_bytes() for path in (house / "docs").rglob("*") if path.is_file()}
    assert sum(path.suffix == ".svg" for path in first) == 3
    for path in first:
        if path.suffix == ".svg":
            path.unlink()
    tool(house, "slim")
    tool(house, "page")
    assert {path: path.read_bytes() for path in (house / "docs").rglob("*") if path.is_file()} == first
    outside = re.sub(r"<!-- begin (\w+) -->.*?<!-- end \1 -->\n", "", page(house), flags=re.DOTALL)
    assert outside == "# Results\nWords above.\nWords between.\nWords below.\n"


def test_what_is_missing_is_said(house, made_up):
    assert tool(house, "page") == 0
    assert page(house).count("**Not run yet.**") == 2
    whole = read_results(house / "plans")
    holed = replace(whole, cells=[c for c in whole.cells if (c.plan, c.steps) != ("golden", 8)])
    write_results(holed, house / "plans" / "results.json")
    tool(house, "slim")
    tool(house, "page")
    text = page(house)
    assert "**Partial.** The second judge ran out of time. Not run: `plans-two`." in text
    assert "6 of 6 cells have fewer than 32 texts (the fewest 16)." in text
    assert "1 of 4 not run (–)." in text
    assert row(text, "golden")[0] == "–"
    assert "**Partial.** Every run is there, but nobody has called it complete." in text
    edit(house, "headline:\n  status: planned", "headline:\n  status: complete")
    tool(house, "page")
    assert "<!-- begin headline -->\n**Complete.**\n" in page(house)


@pytest.mark.parametrize(
    ("old", "new", "words", "said"),
    [
        ("", "", ["slim", "plans-two"], "no results at nowhere"),
        ("", "", ["slim", "plans-tow"], "did you mean 'plans-two'"),
        ("status: planned\n  missing", "status: complete\n  missing", ["page"], "plans-one.json is missing"),
        ("status: planned\n  missing", "status: done\n  missing", ["page"], "'done'"),
        ("{out: plans}", "{out: plans, text: poems}", ["page"], "'poems'"),
    ],
)
def test_a_mistake_is_one_clear_line(house, capsys, old, new, words, said):
    edit(house, old, new)
    before = page(house)
    assert tool(house, *words) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error
    assert page(house) == before


def test_students_are_drawn_only_beside_a_teacher_that_was_cooled(house, made_up):
    """A point without the curve that it is to be held against would say nothing."""
    from tools.results.figures import figures
    from tools.results.studies import read_studies

    edit(house, "headline:", "rounds:")
    for temperatures, drawn in (([1.0], []), ([1.0, 0.9], ["students-a-judge"])):
        made_up.write(house / "headline", {"teacher": 0.0, "mcd-r5": 0.3}, ["iid", "golden"], [8], temperatures)
        tool(house, "slim")
        rounds = next(study for study in read_studies(house / "docs" / "results") if study.name == "rounds")
        assert list(figures(rounds)) == drawn


def test_another_run_is_drawn_beside_the_plans_only_on_the_same_texts():
    from tools.results.figures import _beyond

    def bound(plan: str | None, n: int, role: str = "teacher") -> dict:
        return {"plan": plan, "n": n, "role": role, "steps": 8, "nfe": 8.0, "per_token": [4.7, 4.6, 4.8]}

    bounds = [
        bound("confidence", 64),
        bound("dilated", 16),
        bound("iid", 64),
        bound(None, 64),
        bound("x", 64, "student"),
    ]
    study = SimpleNamespace(bounds=lambda text: bounds)
    assert {plan: [p.score for p in points] for plan, points in _beyond(study, ["iid"], 64).items()} == {
        "confidence": [[4.7, None, None]]
    }


def test_mauve_is_drawn_where_it_was_measured(house):
    from tools.results.figures import figures
    from tools.results.studies import read_studies

    def drawn() -> list[str]:
        tool(house, "slim")
        return list(figures(read_studies(house / "docs" / "results")[0]))

    assert drawn() == ["nelbo", "frontier-a-judge"]
    whole = read_results(house / "plans")
    known = {"mauve": {"value": 0.5, "low": 0.4, "high": 0.6, "unit": "MAUVE", "count": 16}}
    cells = [replace(cell, scores={**cell.scores, **known}) for cell in whole.cells]
    write_results(replace(whole, cells=cells), house / "plans" / "results.json")
    assert drawn() == ["nelbo", "frontier-a-judge", "mauve-a-judge"]


def test_a_students_r_stands_beside_the_teachers_at_its_best_temperature(house, made_up):
    edit(house, "headline:", "rounds:")
    text = (house / "docs" / "results.md").read_text(encoding="utf-8")
    (house / "docs" / "results.md").write_text(text.replace(" headline ", " rounds "), encoding="utf-8")
    made_up.write(house / "headline", {"teacher": 0.0, "mcd-r5": 0.3}, ["golden"], [8], [1.0, 0.9, 0.8])
    assert (tool(house, "slim"), tool(house, "page")) == (0, 0)
    gaps = {
        t: read_results(house / "headline")
        .one(model="teacher", plan="golden", steps=8, temperature=t)
        .scores["path_gap"]
        for t in (1.0, 0.9, 0.8)
    }
    best = min(gaps, key=lambda t: gaps[t]["value"])
    half = (gaps[best]["high"] - gaps[best]["low"]) / 2
    shown = row(page(house), "at the best of its temperatures (`teacher`)")
    assert shown == [f"{gaps[best]['value']:.3f} ± {half:.3f}<br>T = {best:g}"]


def test_a_difference_to_another_plan_is_not_shown_as_one_to_the_first(house, made_up):
    """Two runs of one text, one listing golden first: what it says of iid less golden has no place in this table."""
    made_up.write(house / "two", {"teacher": 0.0}, ["golden", "iid"], [64], [1.0])
    edit(house, "plans-two: {out: nowhere}", "plans-two: {out: two}")
    assert (tool(house, "slim"), tool(house, "page")) == (0, 0)
    table = page(house).split("**N-step NELBO, held-out prose.**")[1].split("\n\n**")[0]
    assert "less that of iid (published) on the same texts" in table
    assert ["<br>" in place for place in row(table, "golden")] == [True, True, False]  # 8, 32 and 64 steps
    assert ["<br>" in place for place in row(table, "iid (published)")] == [False, False, False]


def test_a_mark_without_its_end_is_refused(house, capsys):
    path = house / "docs" / "results.md"
    path.write_text(page(house).replace("<!-- end plans -->\n", ""), encoding="utf-8")
    assert tool(house, "page") == 2
    assert "<!-- end plans -->" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (5.0, 20.0, "10.0 [5.0, 20.0]<br>16.0x [8.0, 32.0]"),
        (5.0, 200.0, "10.0 [5.0, 200.0]<br>too few texts to tell"),
        (5.0, None, "10.0 [5.0, ∞]<br>too few texts to tell"),
    ],
)
def test_times_fewer_is_said_only_where_the_whole_interval_is_above_one(house, low, high, said):
    """A number of forwards whose interval reaches the yardstick's 160 is no gain, whatever its value."""
    from tools.results.headline import headline
    from tools.results.studies import read_studies

    tool(house, "slim", "headline-one")
    study = read_studies(house / "docs" / "results")[1]
    entry = next(e for e in study.slims[0].said["matches"] if (e["score"], e["plan"]) == ("nelbo", "golden"))
    entry["needs"] = {"relation": "=", "value": 10.0, "low": low, "high": high}
    entry["yardstick"]["nfe"] = 160.0
    table = headline(study)["suffices"][0]
    shown = next(line for line in table.rows if line[0] == f"{entry['model']}, golden")
    assert shown[table.head.index("N-step NELBO")] == said


def test_the_readme_has_the_headline_in_brief(house):
    readme = house / "README.md"
    readme.write_text("<!-- begin headline/brief -->\n<!-- end headline/brief -->\n", encoding="utf-8")
    tool(house, "slim")
    tool(house, "page")
    text = readme.read_text(encoding="utf-8")
    assert [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ")][2:] == [
        "| teacher, iid (published)",
        "| teacher, golden",
    ]
    assert "| Gen PPL at equal entropy | path gap R at equal entropy | N-step NELBO |" in text
    assert "at T = 1" not in text
    assert "](docs/figures/headline-a-judge.svg)" in text
    assert "](docs/studies/headline.md)" in text


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_study_recipe_suits_the_command_in_its_head(capsys, recipe):
    text = recipe.read_text(encoding="utf-8")
    found = re.search(rf"unmask (\S+) --config studies/{recipe.name} ", text)
    assert found, "a recipe opens with a command that uses it"
    assert command([found[1], "--config", str(recipe), "--print_config"]) == 0
    chosen = yaml.safe_load(capsys.readouterr().out)
    assert {key: chosen[key] for key in yaml.safe_load(text)} == {
        key: float(value) if isinstance(chosen[key], float) else value for key, value in yaml.safe_load(text).items()
    }


def test_every_command_of_the_studies_is_one_that_unmask_takes(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    studies = yaml.safe_load(STUDIES.read_text(encoding="utf-8"))
    for study in studies.values():
        for job in jobs_of(study["commands"]):
            assert command([*job.words, "--print_config"]) == 0, str(job)
            capsys.readouterr()


def test_the_committed_pages_are_what_the_committed_files_give(tmp_path):
    """Nobody typed a number: filling the pages again changes nothing."""
    from tools.results.__main__ import pages
    from tools.results.page import draw, fill
    from tools.results.slim import LIMIT
    from tools.results.studies import read_studies

    docs = STUDIES.parents[1]
    studies = read_studies(docs / "results")
    for path in docs.glob("results/*.json"):
        assert len(path.read_bytes()) <= LIMIT
    pictures = draw(studies, tmp_path / "docs" / "figures")
    for path in pages(docs):
        twin = tmp_path / path.relative_to(docs.parent)
        twin.parent.mkdir(parents=True, exist_ok=True)
        twin.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
        assert not fill(twin, studies, pictures, tmp_path / "docs" / "results")
    assert {path.name for path in (tmp_path / "docs" / "figures").iterdir()} <= {
        path.name for path in (docs / "figures").iterdir()
    }
