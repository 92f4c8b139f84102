"""From results.json to the page: numbers arrive as measured, and nobody typed one."""

import json
import math
import random
import statistics
from pathlib import Path

import pytest
import torch
import yaml
from tools.results.__main__ import main, pages
from tools.results.figure import choosing, nelbo
from tools.results.page import fill
from tools.results.run import jobs_of
from tools.results.runs import Run, Runs
from tools.results.slim import matches, slim
from tools.results.tables import TABLES, log_ratio, one_token_a_step

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


def test_the_interval_of_a_ratio_is_that_of_two_independent_draws():
    draw = random.Random(0)
    ratios = [draw.gauss(math.log(120), 0.03) - draw.gauss(math.log(100), 0.04) for _ in range(20000)]
    low, high = (statistics.quantiles(ratios, n=40)[at] for at in (0, -1))  # 2.5% and 97.5%
    one = [math.exp(math.log(120) + z * 0.03) for z in (0, -1.96, 1.96)]
    other = [math.exp(math.log(100) + z * 0.04) for z in (0, -1.96, 1.96)]
    assert log_ratio(one, other) == pytest.approx((math.log(1.2), low, high), abs=0.004)


def test_one_token_a_step_is_measured_or_the_limit_of_iid():
    """4 + 1/N tends to 4, whatever a student of the same file does; what was measured goes before."""
    said = [("teacher", "iid", n, 4 + 1 / n) for n in (4, 8, 16)] + [("mcd", "iid", 32, 9.0)]

    def run(*more):
        rows = [{"model": m, "plan": p, "steps": n, "per_token": [v]} for m, p, n, v in (*said, *more)]
        return Run("x", {"settings": {"length": 64}, "likelihood": rows})

    assert one_token_a_step(run()) == (pytest.approx(4.0), False)
    assert one_token_a_step(run(("teacher", "permutation", 64, 4.01))) == (4.01, True)


def test_a_run_is_slimmed_and_keeps_every_score(tmp_path):
    words = (
        "--models teacher=pocket --plans permutation golden --steps 2 4 --n 4 --data sample --split test --only_bounds"
    )
    assert command(["evaluate", *words.split(), "--out", str(tmp_path / "run")]) == 0
    target = tmp_path / "small.json"
    assert slim([tmp_path / "run"], target) < (tmp_path / "run" / "results.json").stat().st_size / 2
    assert str(tmp_path) not in target.read_text(encoding="utf-8")
    whole = json.loads((tmp_path / "run" / "results.json").read_text(encoding="utf-8"))
    kept = Runs(tmp_path)["small"]
    for entry in whole["likelihood"]:
        place = entry["model"], entry["plan"], entry["steps"]
        assert kept.bound(*place)["per_token"][0] == pytest.approx(entry["scores"]["per_token"]["value"], rel=1e-5)
    golden = kept.nats("teacher", "golden", 4) - kept.nats("teacher", "permutation", 4)
    assert kept.above("teacher", "golden", 4)[0] == pytest.approx(golden, abs=1e-4)


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
    assert text.startswith("above\n<!-- begin lost -->\nN-step NELBO")
    assert text.endswith("<!-- end lost -->\nbelow\n")
    assert not fill(page, Runs(DOCS / "results"))
    for wrong, said in (("<!-- begin lost -->\n", "end lost"), ("<!-- begin x -->\n<!-- end x -->", "mark")):
        page.write_text(wrong, encoding="utf-8")
        with pytest.raises(UserError, match=said):
            fill(page, Runs(DOCS / "results"))


def test_the_committed_pages_are_what_the_committed_files_give(tmp_path):
    """Nobody typed a number: filling the pages again changes nothing, and every table and figure is in use."""
    runs, used = Runs(DOCS / "results"), ""
    for path in pages(DOCS):
        used += path.read_text(encoding="utf-8")
        twin = tmp_path / path.name
        twin.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
        assert not fill(twin, runs), path
    assert all(f"<!-- begin {name} -->" in used for name in TABLES)
    assert nelbo(runs) == (DOCS / "figures" / "nelbo.svg").read_bytes()
    assert choosing(runs) == (DOCS / "figures" / "choosing.svg").read_bytes()


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
