"""`unmask bench chain` in miniature: every row is there, ratios are of its own rows, rounds are those of the draw."""

import json

import pytest

from unmask.cli.main import run
from unmask.core.errors import UserError

OPTIONS = "--preset tiny --steps 2 --batches 1 3 --rivals 1 2 --repeats 1 --device cpu"


def test_the_bench_runs_in_miniature(capsys):
    run(["bench", "chain", *OPTIONS.split(), "--json"])
    said = json.loads(capsys.readouterr().out)
    lines = {(line["name"], line["batch"]): line for line in said["lines"]}
    names = ["no head", "head, gumbel", "head, uniform", "head, acceptance"]
    assert list(lines) == [*[(name, B) for B in (1, 3) for name in names], ("causal, cached", 1), ("causal, cached", 2)]
    for B in (1, 3):
        plain, gumbel, uniform, acceptance = (lines[name, B] for name in names)
        assert plain["rounds"] is None
        assert 1 < gumbel["rounds"] < uniform["rounds"] <= 64  # 64 positions a step
        assert 1 <= acceptance["rounds"] <= 64
        assert 2 * gumbel["rounds"] <= gumbel["most_rounds"]  # of one text in its 2 steps
        assert gumbel["over_without"] == pytest.approx(gumbel["ms_per_step"] / plain["ms_per_step"])


def test_what_cannot_be_timed_is_refused_in_one_line():
    with pytest.raises(UserError, match="pocket has no chain: give the run of"):
        run(["bench", "chain", "--model", "pocket", "--device", "cpu"])
    with pytest.raises(UserError, match="brings its own shape"):
        run(["bench", "chain", "--model", "pocket", "--preset", "tiny", "--device", "cpu"])
    with pytest.raises(UserError, match="is for a head that was trained"):
        run(["bench", "chain", "--preset", "tiny", "--data", "sample", "--device", "cpu"])
