"""A study that nobody ran: results.json files with the shape of real ones and numbers that follow simple laws."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from unmask.core.streams import stream
from unmask.metrics.score import Ratio, Score
from unmask.studies.analysis import analyse
from unmask.studies.results import Bound, Cell, Results, write_results

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # tools/ is no part of the package

WORTH = {"iid": 1.0, "permutation": 0.95, "golden": 0.12, "van_der_corput": 0.1, "stride": 0.14, "dilated": 0.2}


def noise(n: int, scale: float, *key: int | str) -> torch.Tensor:
    """Numbers of mean 0, the same for the same key."""
    drawn_n = torch.randn(n, generator=stream(0, *key), dtype=torch.float64) * scale
    return drawn_n - drawn_n.mean()


def scores(**ratios: Ratio) -> dict[str, dict[str, Any]]:
    said = {name: Score.of(ratio, "", {}, draws=200).to_json() for name, ratio in ratios.items()}
    return {name: {key: value for key, value in score.items() if key != "record"} for name, score in said.items()}


def cell(model: str, plan: str, steps: int, temperature: float, n: int, gain: float = 0.0) -> Cell:
    """log PPL falls with steps (sooner on a plan of little worth), with the temperature, and by `gain`."""
    log_ppl = 5.2 + WORTH.get(plan, 0.6) * 3.2 / steps**0.9 - 4 * 1.8 * (1 - temperature) - gain
    name = f"{model} {plan} {steps} {temperature}"
    ppl = Ratio.of(log_ppl + noise(n, 0.3, name, "ppl"), torch.ones(n), True)
    entropy = Ratio.mean(4.83 - 1.8 * (1 - temperature) + noise(n, 0.06, name, "entropy"))
    gap = Ratio.mean(0.9 + WORTH.get(plan, 0.6) * 3 / steps**0.9 - gain / 4 + noise(n, 0.1, name, "gap"))
    said = scores(gen_ppl=ppl, entropy=entropy, path_gap=gap)
    ratios = {"ppl": ppl, "entropy": entropy, "gap": gap}
    record = {"texts": {"seed": 7}}
    return Cell(model, plan, steps, temperature, n, float(steps), 1.0, n * 64, said, ratios, ("A text.",), (), record)


def bound(model: str, plan: str | None, steps: int | None, n: int, gain: float = 0.0) -> Bound:
    """NELBO falls to 3.9 with steps; the same texts are hard for every model."""
    nats = 3.9 + (WORTH.get(plan, 0.6) * 1.2 / steps**0.8 if plan and steps else 0) - gain / 10
    ratio = Ratio.mean(nats + noise(n, 0.2, "texts") + noise(n, 0.02, f"{model} {plan} {steps}"))
    return Bound(model, plan, steps, steps and float(steps), scores(per_token=ratio), ratio)


def results(models: dict[str, float], plans: list[str], steps: list[int], temperatures: list[float], n: int) -> Results:
    """Of models by name, with their gains over the teacher."""
    about: dict[str, dict[str, Any]] = {
        name: {"role": "teacher" if name == "teacher" else "student", "sha256": f"{i:064x}", "provenance": {}}
        for i, name in enumerate(models)
    }
    about["real text"] = {"role": "real", "sha256": None, "provenance": {}}
    places = [(model, plan, count) for model in models for plan in plans for count in steps]
    cells = [cell(m, plan, count, t, n, models[m]) for m, plan, count in places for t in temperatures]
    real = cell("real text", "golden", 256, 0.96, n, 1.0)
    cells.append(Cell("real text", None, None, None, n, None, None, n, real.scores, real.ratios))
    bounds = [bound(model, None, None, n, gain) for model, gain in models.items()]
    bounds += [bound(m, plan, count, n, models[m]) for m, plan, count in places]
    settings = {
        "steps": steps, "plans": plans, "temperatures": temperatures, "n": n, "protocol": "mdlm", "seed": 0,
        "length": 64, "control_steps": steps, "data": "/machine/corpus", "split": "validation", "wrap": False,
        "mauve": False, "precision": "auto",
    }  # fmt: skip
    judge = {"name": "a judge", "id": "ab" * 32, "kind": "unmask", "context": 64, "dtype": "fp32"}
    where = {"unmask": "0", "revision": None, "torch": "2", "device": "a machine", "time": "2026-01-01T00:00"}
    return Results(about, cells, bounds, settings, judge, provenance=where)


def write(
    folder: Path, models: dict[str, float], plans: list[str], steps: list[int], temperatures: list[float], n: int = 16
) -> Results:
    """The same as `unmask evaluate --out folder` would leave it."""
    made = analyse(results(models, plans, steps, temperatures, n), draws=100)
    write_results(made, folder / "results.json")
    return made


STUDIES = """
plans:
  status: planned
  missing: the second judge ran out of time
  commands: [unmask evaluate --config studies/plans.yaml]
  samples: 32
  runs:
    plans-one: {out: plans}
    plans-two: {out: nowhere}
headline:
  status: planned
  samples: 16
  runs:
    headline-one: {out: headline}
"""
PAGE = """# Results
Words above.
<!-- begin plans -->
what was there before
<!-- end plans -->
Words between.
<!-- begin headline -->
<!-- end headline -->
Words below.
"""


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with two studies, one run of each made, and a page to fill."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "plans", {"teacher": 0.0}, ["iid", "golden"], [8, 32], [1.0, 0.9])
    write(tmp_path / "headline", {"teacher": 0.0, "mcd-r5": 0.3}, ["iid", "golden"], [4, 16, 64], [1.1, 1.0, 0.9, 0.7])
    (tmp_path / "docs" / "results").mkdir(parents=True)
    (tmp_path / "docs" / "results" / "studies.yaml").write_text(STUDIES, encoding="utf-8")
    (tmp_path / "docs" / "results.md").write_text(PAGE, encoding="utf-8")
    (tmp_path / "README.md").write_text("No marks here.\n", encoding="utf-8")
    return tmp_path


@pytest.fixture(scope="session")
def made_up() -> Any:
    """The makers above, for a test that wants results of its own."""
    return sys.modules[__name__]
