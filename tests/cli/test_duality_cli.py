"""`unmask duality` as a user meets it."""

import json
from pathlib import Path

import pytest
import torch
from scipy import integrate, stats

from unmask.cli.duality import simulate
from unmask.cli.main import main
from unmask.processes.gaussian import GaussianDuality


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(line: str) -> int:
    return main(["duality", *line.split()])


def survival(ratio: float, K: int) -> float:
    """P(token survives) at alpha/sigma = ratio, by scipy's adaptive quadrature over the token's own noise."""
    density = lambda e: stats.norm.pdf(e) * stats.norm.cdf(ratio + e) ** (K - 1)  # noqa: E731
    return integrate.quad(density, -12, 12, epsabs=1e-13, limit=200)[0]


def test_json_of_the_contract(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run("--states 50258 --gamma 0.1 0.5 0.9 --draws 100 --json") == 0
    report = json.loads(capsys.readouterr().out)
    assert [row["gamma"] for row in report["calibration"]] == [0.1, 0.5, 0.9]
    for row in report["calibration"]:
        assert survival(row["ratio"], 50258) == pytest.approx(row["gamma"], abs=1e-9)
        assert row["alpha"] / row["sigma"] == pytest.approx(row["ratio"], rel=1e-12)
        assert row["alpha"] ** 2 + row["sigma"] ** 2 == pytest.approx(1, abs=1e-12)
        assert row["below_one_over_K"] is False
        assert row["uniform_alpha"] + (1 - row["uniform_alpha"]) / 50258 == pytest.approx(row["gamma"], rel=1e-12)
        assert 1 - (1 - 1e-3) * row["t"] == pytest.approx(row["gamma"], abs=1e-12)
    assert report["states"] == 50258
    assert report["disagreements"] == 0
    for row in report["simulation"]:
        assert row["survived"] == row["survived_scalar"] == row["argmax_is_token"]
        assert row["deviation"] == pytest.approx(row["survived"] / 100 - row["gamma"], abs=1e-12)
        assert row["standard_error"] == pytest.approx((row["gamma"] * (1 - row["gamma"]) / 100) ** 0.5)
        assert abs(row["z"]) < 4.5
    assert list(tmp_path.iterdir()) == []  # a program that asked for JSON gets no file it did not name


def test_rows_below_one_over_K_are_signed_and_marked(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--states 50 --gamma 1e-6 0.0199 0.0201 0.5 --draws 5 --json") == 0
    rows = json.loads(capsys.readouterr().out)["calibration"]
    assert [row["below_one_over_K"] for row in rows] == [True, True, False, False]
    assert [row["ratio"] < 0 for row in rows] == [True, True, False, False]
    assert [row["t"] is None for row in rows] == [True, False, False, False]  # log-linear gamma ends at 1e-3
    assert run("--states 50 --gamma 0.001 0.5 --draws 5 --figure x.svg") == 0
    assert capsys.readouterr().out.count("below 1/K") == 1


@pytest.mark.parametrize("states", [2, 300])
def test_tables_and_figure(states: int, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(f"--states {states} --schedule cosine --draws 50 --seed 3") == 0
    shown = capsys.readouterr().out
    assert "0 disagreements" in shown
    assert "duality.png" in shown
    assert [path.name for path in tmp_path.iterdir()] == ["duality.png"]
    assert (tmp_path / "duality.png").read_bytes().startswith(b"\x89PNG")


def test_a_disagreement_would_be_counted() -> None:
    """A u that is slightly off its law is found out: the count is a measurement, not a promise."""

    class Crooked(GaussianDuality):
        def u_of_noise(self, eps: torch.Tensor, k: torch.Tensor | int) -> torch.Tensor:
            return super().u_of_noise(eps, k) ** 1.05

    honest, crooked = (simulate(law(20), [0.5], 2000, 0)[0][0] for law in (GaussianDuality, Crooked))
    assert honest.disagreements == honest.argmax_disagreements == 0
    assert honest.argmax_is_token == honest.survived
    assert crooked.argmax_disagreements == crooked.disagreements > 0
    assert crooked.disagreements == pytest.approx(2000 * (0.5 ** (1 / 1.05) - 0.5), rel=0.6)
    assert crooked.survived == honest.survived
    assert crooked.survived_scalar == honest.survived + crooked.disagreements


def test_draws_do_not_depend_on_their_company() -> None:
    law = GaussianDuality(300_000)  # three draws at a time
    assert torch.equal(simulate(law, [0.5], 5, 1)[1][:4], simulate(law, [0.1], 4, 1)[1])


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("--states 1", "K >= 2"),
        ("--states 2000000", "at most 1000000"),
        ("--gamma 0.5 1.5", "inside (0, 1)"),
        ("--draws 0", "--draws"),
        ("--figure picture.gif", ".png"),
        ("--figure taken/picture.png", "taken"),
    ],
)
def test_mistakes_are_one_line(line: str, word: str, refused, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("unmask.cli.duality.draw_noise", None)  # before any work
    (tmp_path / "taken").write_text("a file, not a folder")
    assert word in refused("duality", *line.split())
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
