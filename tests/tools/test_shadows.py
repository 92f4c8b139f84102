"""The tables and outcomes of studies/duo: of made-up numbers their arithmetic, and nothing where nothing was run."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tools.results.page import EVERY
from tools.results.predictions import shadows_predictions
from tools.results.runs import Run, Runs
from tools.results.slim import slim

from unmask.metrics.score import Ratio, Score
from unmask.studies.results import Bound, Cell, Results, write_results

TABLES = [name for name in EVERY if name.startswith(("shadows-", "speed-duo", "tasks-shadows-large"))]
NATS = {"mdlm": 4.0, "duo": 4.2, "curriculum": 4.1, "dcd": 4.15, "mcd": 3.9}
PPL = {"mdlm": 200.0, "duo": 300.0, "curriculum": 280.0, "dcd": 140.0, "mcd": 180.0}
STEPS = (4, 8, 16, 32, 64)


def lane(name: str) -> Results:
    """What a lane of run.sh leaves: its model is called `teacher`. What is hard is hard for all models alike."""
    hard_n = torch.randn(32, generator=torch.Generator().manual_seed(0)).double()
    plans = ("comb", "iid") if name in ("mdlm", "mcd") else ("ancestral", "greedy_tail")
    record = {"texts": {"sha256": "held", "texts": 32, "source": "books"}}

    def bound(plan: str | None, steps: int | None) -> Bound:
        ratio = Ratio.mean(NATS[name] + hard_n)
        score = Score.of(ratio, "nats/token", {}).to_json()
        return Bound("teacher", plan, steps, steps and float(steps), {"per_token": score}, ratio, record, (4,) * 32)

    def cell(plan: str, steps: int) -> Cell:
        ppl = PPL[name] / (10 if plan == "greedy_tail" else 1)
        ratios = {"gen_ppl": Ratio.mean(ppl + hard_n), "entropy": Ratio.mean(5 - ppl / 1000 + 0 * hard_n),
                  "judge_nll": Ratio.mean(2 + 0.1 * hard_n)}  # fmt: skip
        scores = {key: Score.of(ratio, "", {}).to_json() for key, ratio in ratios.items()}
        nfe = float(steps + (plan == "greedy_tail"))
        return Cell("teacher", plan, steps, 1.0, 32, nfe, 1.0, 8, scores=scores, ratios=ratios, suspicions={},
                    record={}, absent={}, samples=())  # fmt: skip

    bounds = [bound(None, None), *(bound(plan, N) for plan in plans if plan != "greedy_tail" for N in STEPS)]
    settings = {"protocol": "mdlm", "length": 8, "temperatures": [1.0], "steps": list(STEPS), "plans": list(plans),
                "seed": 0, "data": "books", "split": "validation", "wrap": False, "top_ps": []}  # fmt: skip
    about = {"role": "teacher", "sha256": name, "identity": name, "provenance": {}}
    judge = {"name": "pocket-judge", "id": "j"}
    cells = [cell(plan, N) for plan in plans for N in STEPS]
    return Results({"teacher": about}, cells, bounds, settings, judge, [], {}, {}, [])


@pytest.fixture
def runs(tmp_path):
    """All lanes as one run, each model by its own name."""
    for name in NATS:
        (tmp_path / name).mkdir()
        write_results(lane(name), tmp_path / name / "results.json")
    slim([f"{name}={tmp_path / name}" for name in NATS], tmp_path / "shadows.json")
    return Runs(tmp_path)


def test_lanes_go_together_by_their_names_and_predictions_are_their_arithmetic(runs):
    rows = {row[0][:7]: row for row in reversed(shadows_predictions(runs).rows)}
    assert rows["(1) Duo"][1:] == ["+0.200 ± 0.000; with the curriculum +0.100 ± 0.000", "held"]  # paired: no spread
    assert rows["(2) its"][2] == "held"
    assert rows["(3) in "][1:] == ["30.0 ± 0.3 against 200 ± 0; entropy 4.970 against 4.800", "failed"]
    assert rows["(4) DCD"][1:] == ["−50% (280 ± 0 to 140 ± 0); +0.050 ± 0.000", "held"]
    assert rows["(4) MCD"][1:] == ["−10% (200 ± 0 to 180 ± 0); −0.100 ± 0.000", "failed"]
    bounds = EVERY["shadows-bounds"](runs)
    assert ["uniform, DCD", "`ancestral`"] in [row[:2] for row in bounds.rows]
    tail = next(row for row in EVERY["shadows-ppl"](runs).rows if row[:2] == ["uniform (Duo)", "`greedy_tail`"])
    assert tail[2].endswith("(4.97)")


def test_speed_and_grids_are_held_against_what_was_registered():
    cells = [{"model": m, "plan": p, "steps": N, "temperature": 1.0, "n": 9, "check_valid": [v]}
             for m, p, N, v in (("uniform", "ancestral", 4, 0.2), ("masked", "iid", 4, 0.1),
                                ("uniform", "ancestral", 16, 0.8), ("masked", "permutation", 16, 0.6))]  # fmt: skip
    eager = "plain, eager body"
    sampling = [{"steps": N, f"faster than {eager}": v, f"memory of {eager}": 0.2} for N, v in ((8, 2.5), (32, 2.9))]
    training = {"nelbo": {"speed": 1.6, "memory": 0.4}, "curriculum": {"speed": 2.5, "memory": 0.3}}
    runs = {
        "shadows-sudoku4-large": Run("", {"cells": cells}),
        "bench-duo-sampler": Run("", {"ratios": sampling}),
        "bench-duo": Run("", {"ratios": training}),
    }
    assert [row[1:] for row in shadows_predictions(runs).rows] == [
        ["20.0% against 10.0%", "held"],
        ["80.0% against 60.0%", "failed"],
        ["2.9, 2.5; 20% of the memory", "failed"],
        ["1.60, 2.50; 40%, 30% of the memory", "held"],
    ]


def test_mauve_goes_from_features_to_its_table(tmp_path, monkeypatch, capsys):
    """Of features.py's arrays; the score itself is the package's, and stands for itself here."""
    place = Path(__file__).parents[2] / "studies" / "duo" / "features.py"
    spec = importlib.util.spec_from_file_location("features", place)
    features = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(features)
    score = Score.drawn(0.5, torch.tensor([0.4, 0.6]).double(), 3, "MAUVE", {})
    monkeypatch.setattr(features, "mauve", lambda drawn, real, least: score)
    about = json.dumps({"features": "MAUVE", "judge": {"name": "pocket-judge"}, "seed": 0, "machine": [{}]})
    cells = {"real": np.zeros((4, 2)), "duo greedy_tail 8 9.0": np.ones((3, 2))}
    np.savez(tmp_path / "features-duo.npz", about=np.array(about), **cells)
    words = ["features.py", "table", str(tmp_path / "features-duo.npz"), "--out", str(tmp_path / "mauve.json")]
    monkeypatch.setattr("sys.argv", words)
    features.main()
    assert "| duo | greedy_tail | 8 | 9.0 | 0.500 |" in capsys.readouterr().out
    slim([tmp_path / "mauve.json"], tmp_path / "shadows-mauve.json")
    table = EVERY["shadows-mauve"](Runs(tmp_path))
    assert "3 texts on each side" in table.note
    assert table.rows[0][:2] == ["uniform (Duo)", "`greedy_tail`"]
    assert table.rows[0][2].startswith("0.500 ± ")


@pytest.mark.parametrize("name", TABLES)
def test_what_was_not_run_prints_nothing_and_says_what_it_is(name):
    table = EVERY[name]({})
    assert not table.markdown()
    assert table.note
