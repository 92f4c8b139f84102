"""From results.json to the page: numbers arrive as measured, and nobody typed one."""

import json
import math
import operator
from functools import reduce
from pathlib import Path

import pytest
import torch
import yaml
from tools.results.__main__ import main, pages
from tools.results.figure import choosing, nelbo
from tools.results.frontier import gap, own_entropy, path
from tools.results.page import EVERY, fill
from tools.results.run import jobs_of
from tools.results.runs import Run, Runs
from tools.results.slim import matches, slim
from tools.results.tables import lost, one_token_a_step
from tools.results.tasks import tasks_figure

from unmask.cli.main import main as command
from unmask.core.errors import UserError
from unmask.metrics.score import Ratio
from unmask.studies.results import Bound

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
RECIPES = sorted((ROOT / "studies").glob("*.yaml"))


def bound(plan: str, steps: int, nats: float, noise_n: torch.Tensor) -> Bound:
    return Bound("teacher", plan, steps, float(steps), {}, Ratio.mean(nats + noise_n))


def test_differences_of_likelihood_are_paired_over_texts():
    """What is hard for all alike cancels: the interval is that of each bound's own noise, 50 times less."""
    torch.manual_seed(0)
    hard_n, own_n = torch.randn(256).double(), 0.02 * torch.randn(256).double()
    found = matches([bound("permutation", 64, 4.0, hard_n), bound("golden", 8, 4.1, hard_n + own_n)], seed=0)
    (point,) = found[1]["curve"]
    value, low, high = point["distance"]
    assert value == pytest.approx(0.1 + float(own_n.mean()), abs=1e-5)
    assert high - low == pytest.approx(2 * 1.96 * 0.02 / 16, rel=0.25)
    assert found[0]["reference"]["plan"] == "permutation"
    assert matches([bound("golden", 8, 4.1, hard_n)], seed=0) == []  # nothing in random order to hold it against


def test_a_gap_at_equal_own_entropy_from_means_alone():
    """A path on which R = 0.5 - 0.2 x own entropy: a cell at 0.8 with R = 0.3 is 0.04 below it."""

    def cell(model, heat, own, gap, kept):
        place = {"model": model, "plan": "golden", "steps": 8, "temperature": heat, "n": 9}
        said = {"gen_ppl": [math.exp(4 * (own + gap))], "path_gap": [gap, gap - 0.003, gap + 0.003]}
        more = {"sampler_entropy": [own, own - 0.01, own + 0.01], "judge_nll": [own + gap]} if kept else {}
        return {**place, **said, **more}

    path_cells = [cell("teacher", t, own, 0.5 - 0.2 * own, t == 1) for t, own in ((1.0, 1.0), (0.9, 0.9), (0.7, 0.6))]
    students = [cell("student", 1.0, 0.8, 0.3, True), cell("hot", 1.0, 1.1, 0.3, True)]
    run = Run("x", {"cells": [*path_cells, *students]})
    assert own_entropy(run, path_cells[1]) == pytest.approx(0.9), "from Gen PPL and R, with T = 1's tokens a byte"
    value, low, high = gap(run, students[0], path(run, "teacher", "golden", 8))
    assert value == pytest.approx(0.3 - (0.5 - 0.2 * 0.8))
    assert (high - low) / 2 == pytest.approx(math.hypot(0.003, 0.003, 0.2 * 0.01), rel=1e-6)
    assert gap(run, students[1], path(run, "teacher", "golden", 8)) is None, "nothing is extrapolated"
    assert gap(run, students[0], path(run, "teacher", "golden", 8), sign=-1)[0] == pytest.approx(-value)


def test_one_token_a_step_is_measured_or_the_limit_of_iid():
    """4 + 1/N tends to 4, whatever a student of the same file does; what was measured goes before."""
    said = [("teacher", "iid", n, 4 + 1 / n) for n in (4, 8, 16)] + [("mcd", "iid", 32, 9.0)]

    def run(*more):
        rows = [{"model": m, "plan": p, "steps": n, "per_token": [v]} for m, p, n, v in (*said, *more)]
        return Run("x", {"settings": {"length": 64}, "likelihood": rows})

    assert one_token_a_step(run()) == (pytest.approx(4.0), False)
    assert one_token_a_step(run(("teacher", "permutation", 64, 4.01))) == (4.01, True)


@pytest.fixture(scope="module")
def slimmed(tmp_path_factory):
    """A tiny evaluation, and what is to be committed of it."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "results").mkdir()
    words = "--models teacher=pocket --plans permutation golden --steps 2 4 --n 4 --data sample --split test"
    words += " --temperatures 1.0 --device cpu"
    assert command(["evaluate", *words.split(), "--out", str(folder / "run")]) == 0
    slim([folder / "run"], folder / "results" / "small.json")
    return folder


def test_a_run_is_slimmed_and_keeps_every_score(slimmed):
    target = slimmed / "results" / "small.json"
    assert str(slimmed) not in target.read_text(encoding="utf-8")
    whole = json.loads((slimmed / "run" / "results.json").read_text(encoding="utf-8"))
    kept = Runs(slimmed / "results")["small"]
    for entry in whole["likelihood"]:
        place = entry["model"], entry["plan"], entry["steps"]
        assert kept.bound(*place)["per_token"][0] == pytest.approx(entry["scores"]["per_token"]["value"], rel=1e-5)
        assert kept.bound(*place)["per_byte"][0] == pytest.approx(entry["scores"]["per_byte"]["value"], rel=1e-5)
    golden = kept.nats("teacher", "golden", 4) - kept.nats("teacher", "permutation", 4)
    assert kept.above("teacher", "golden", 4)[0] == pytest.approx(golden, abs=1e-4)
    orders = {match["reference"]["order"]: match["reference"]["plan"] for match in kept.said["matches"]}
    assert orders == {"random": "permutation", "best": "golden"} if golden < 0 else {"random": "permutation"}


def test_every_interval_is_worked_out_again_from_single_texts(slimmed, capsys):
    docs, path = ["--docs", str(slimmed)], slimmed / "results" / "small.json"
    assert main([*docs, "check"]) == 0
    said = capsys.readouterr().out
    count = int(said.split()[1])
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert said == f"small: {count} intervals, 0 do not agree\n"
    scores = sum(isinstance(value, list) for cell in kept["cells"] for value in cell.values())
    points = sum(len(match["curve"]) for match in kept["matches"])
    assert count == scores + 2 * len(kept["likelihood"]) + points
    for part, at, what in (
        (("cells", 0, "entropy"), 0, "entropy"),
        (("likelihood", 1, "per_byte"), 2, "a byte"),
        (("matches", 1, "curve", 0, "distance"), 0, "less random order"),
    ):
        wrong = json.loads(json.dumps(kept))
        numbers = reduce(operator.getitem, part, wrong)
        numbers[at] += 0.5
        path.write_text(json.dumps(wrong), encoding="utf-8")
        assert main([*docs, "check", "small"]) == 2
        both = capsys.readouterr()
        assert "1 do not agree" in both.out
        assert what in both.out
        assert "1 numbers do not follow" in both.err
    path.write_text(json.dumps(kept), encoding="utf-8")
    (slimmed / "results" / "small.per-text.json.xz").write_bytes(b"another")
    assert main([*docs, "check"]) == 2
    assert "is of another run" in capsys.readouterr().out


def test_the_causal_rival_has_a_row_and_a_line_once_it_was_run():
    """Less one token a step of pocket on the same blocks; before its run there is neither."""
    runs = Runs(DOCS / "results")
    without = {name: runs[name] for name in runs if name != "rival"}
    level = runs["plans-prose"].nats("teacher", "permutation", 256)
    bound = {"model": "ar", "plan": None, "steps": None, "n": 504, "per_token": [level - 0.25, 0.0, 0.0]}
    with_it = {**without, "rival": Run("rival", {"likelihood": [bound]})}
    assert not any("rival" in row[0] for row in lost(without).rows)
    first, second = lost(with_it).rows[:2]
    assert "pocket" in first[0]
    assert second[:3] == ["its causal rival (exact)", f"{level - 0.25:.3f}", "−0.250 to random order"]
    assert nelbo(with_it) != nelbo(without)


def test_a_mistake_is_one_clear_line(tmp_path, capsys):
    docs = tmp_path / "docs"
    (docs / "results").mkdir(parents=True)
    studies = docs / "results" / "studies.yaml"
    for text, words, said in (
        ("plans: {runs: {one: nowhere}}", ["slim", "one"], "no results at nowhere"),
        ("plans: {runs: {one: nowhere}}", ["slim", "oen"], "did you mean 'one'"),
        ("plans: {rnus: {}}", ["slim"], "did you mean 'runs'"),
        ("plans: {runs: {}}", ["run", "plnas"], "did you mean 'plans'"),
    ):
        studies.write_text(text, encoding="utf-8")
        assert main(["--docs", str(docs), *words]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert said in error


def test_only_marked_parts_of_a_page_change(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("above\n<!-- begin lost -->\nold\n<!-- end lost -->\nbelow\n", encoding="utf-8")
    assert fill(page, Runs(DOCS / "results"))
    text = page.read_text(encoding="utf-8")
    assert text.startswith("above\n<!-- begin lost -->\nNELBO on held-out books")
    assert text.endswith("<!-- end lost -->\nbelow\n")
    assert not fill(page, Runs(DOCS / "results"))
    for wrong, said in (("<!-- begin lost -->\n", "end lost"), ("<!-- begin x -->\n<!-- end x -->", "mark")):
        page.write_text(wrong, encoding="utf-8")
        with pytest.raises(UserError, match=said):
            fill(page, Runs(DOCS / "results"))


def test_a_page_says_once_what_was_not_measured(tmp_path):
    """A table is empty before its run; `open` names it, and each thing once."""
    page = tmp_path / "page.md"
    names = ("open", "rival", "shadows-ppl", "shadows-nats", "lost")
    page.write_text("".join(f"<!-- begin {name} -->\nold\n<!-- end {name} -->\n" for name in names), encoding="utf-8")
    runs = Runs(DOCS / "results")
    assert fill(page, {name: runs[name] for name in runs if name not in ("rival", "shadows")})
    text = page.read_text(encoding="utf-8")
    assert (
        "Not measured yet: the causal rival of `pocket`; both on `pocket`'s text, by likelihood and by a judge.\n"
        in text
    )
    assert "<!-- begin rival -->\n<!-- end rival -->\n<!-- begin shadows-ppl -->\n<!-- end shadows-ppl -->" in text
    page.write_text(
        "<!-- begin open -->\nold\n<!-- end open -->\n<!-- begin lost -->\n<!-- end lost -->", encoding="utf-8"
    )
    assert fill(page, runs)
    assert page.read_text(encoding="utf-8").startswith("<!-- begin open -->\n<!-- end open -->\n")


def test_the_committed_pages_are_what_the_committed_files_give(tmp_path):
    """Nobody typed a number: filling the pages again changes nothing, and every table and figure is in use."""
    runs, used = Runs(DOCS / "results"), ""
    for page in pages(DOCS):
        used += page.read_text(encoding="utf-8")
        twin = tmp_path / page.name
        twin.write_text(page.read_text(encoding="utf-8"), encoding="utf-8")
        assert not fill(twin, runs), page
    assert all(f"<!-- begin {name} -->" in used for name in EVERY)
    assert nelbo(runs) == (DOCS / "figures" / "nelbo.svg").read_bytes()
    assert choosing(runs) == (DOCS / "figures" / "choosing.svg").read_bytes()
    assert tasks_figure(runs) == (DOCS / "figures" / "tasks.svg").read_bytes()


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_option_of_a_study_recipe_is_one_its_verb_takes(capsys, recipe):
    studies = (DOCS / "results" / "studies.yaml").read_text(encoding="utf-8")
    verb = next(
        line.split("unmask ")[1].split()[0] for line in studies.splitlines() if f"studies/{recipe.name}" in line
    )
    assert command([verb, "--config", str(recipe), "--print_config"]) == 0
    chosen, asked = yaml.safe_load(capsys.readouterr().out), yaml.safe_load(recipe.read_text(encoding="utf-8"))
    assert {key: chosen[key] for key in asked} == {
        key: float(value) if isinstance(chosen[key], float) else value for key, value in asked.items()
    }


def test_every_command_of_the_studies_is_one_that_unmask_takes(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    for study in yaml.safe_load((DOCS / "results" / "studies.yaml").read_text(encoding="utf-8")).values():
        for job in jobs_of(study["commands"]):
            assert command([*job.words, "--print_config"]) == 0, str(job)
            capsys.readouterr()
