"""PLAN and PLAN@GRID: which law is run, and what is refused."""

import json
import shutil

import pytest
import torch

from unmask.checkpoint.io import Checkpoint
from unmask.core.errors import UserError
from unmask.core.streams import stream
from unmask.models.dit.network import DiT
from unmask.plans.grids import make_grid
from unmask.studies.fit_plan import fit_on
from unmask.studies.plans_on_grids import plans_on_grids


def fit(path, plan):
    model = DiT(9, 16, hidden=16, cond=8, blocks=1, heads=2, dropout=0.0).eval()
    texts_TL = torch.randint(8, (8, 16), generator=stream(0, "texts"))
    found = fit_on(Checkpoint(model), texts_TL, 4, plans=[plan], device="cpu")
    path.write_text(json.dumps(found.to_json()))
    return found, path


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """(what was fitted, its file): a grid of 4 steps for golden."""
    return fit(tmp_path_factory.mktemp("fitted") / "fitted.json", "golden")


def test_a_plan_runs_on_its_usual_grid_or_on_the_one_it_is_given() -> None:
    plans = plans_on_grids(["iid", "golden@rank", "iid@cosine", "golden", "confidence@cosine"], [4])
    assert [(one.name, one.plan) for one in plans] == [
        ("iid", "iid"), ("golden", "golden"), ("iid@cosine", "iid"), ("confidence@cosine", "confidence"),
    ]  # fmt: skip
    assert [one.at(4) for one in plans] == [make_grid(name, 4) for name in ("uniform", "rank", "cosine", "cosine")]


def test_a_fitted_grid_serves_every_number_of_steps_up_to_its_own(fitted, tmp_path) -> None:
    found, path = fitted
    (one,) = plans_on_grids([f"golden@{path}"], [4, 2])
    assert one.at(4).times == found.grid.times
    assert one.at(2).times == found.paths[1].grid().times
    assert one.at(2).by == "rank"
    moved = shutil.copy(path, tmp_path / "elsewhere.json")
    (other,) = plans_on_grids([f"golden@{moved}"], [4])
    assert other.noise_name(4) == one.noise_name(4) != one.noise_name(2), "a grid is what it does, not where it lies"


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("goldn@rank", "did you mean 'golden'"),
        ("golden@rnk", "did you mean 'rank'"),
        ("golden@", "unknown grid"),
        ("golden@nowhere.json", "nowhere.json"),
        ("golden@{folder}/bad.json", "bad.json is damaged"),
        ("golden@{file}", "no grid of 8 steps, only of 1 to 4: .*fit-plan --steps 8"),
        ("stride@{folder}/stride.json", "no grid of 2 steps, only of 4:"),
        ("blocks@{file}", r"the plan blocks@.*blocks take the grids uniform, rank or cosine"),
        ("blocks@mdlm", "blocks take the grids"),
    ],
)
def test_what_is_no_plan_or_grid_is_one_line(fitted, tmp_path, plan: str, message: str) -> None:
    _, path = fitted
    (tmp_path / "bad.json").write_text("{}")
    fit(tmp_path / "stride.json", "stride")
    asked = [4, 8] if plan in ("golden@{file}", "golden@nowhere.json") else [4, 2]
    with pytest.raises(UserError, match=message) as raised:
        plans_on_grids([plan.format(folder=tmp_path, file=path)], asked)
    assert "\n" not in str(raised.value)
