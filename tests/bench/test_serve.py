"""`unmask bench serve` asks what it says, counts what fails, and compares texts with those that are written alone."""

import json

import pytest

from unmask.cli.main import run
from unmask.core.errors import UserError
from unmask.server.engine import Engine, Failed

TINY = "bench serve --preset tiny --device cpu --clients 3 --requests 7 --length 12 --steps 2 --alone 4 --json"


@pytest.mark.parametrize("how", ["", "--http"])
def test_the_bench_runs_in_miniature(how, capsys):
    run(f"{TINY} {how}".split())
    said = json.loads(capsys.readouterr().out)
    together, alone = said["lines"]
    assert (together["requests"], alone["requests"]) == (7, 4)
    assert said["faster"] == pytest.approx(together["per_second"] / alone["per_second"])
    assert (said["errors"], said["equal"]) == (0, 1.0)
    assert 1 < said["rows_a_forward"] <= 3
    assert 0 < together["p50"] <= together["p99"]


def test_a_failure_is_counted_and_is_no_equal_text(capsys, monkeypatch):
    unbroken = Engine._begin

    def broken(self, table, ticket, at):
        if ticket.task.how.seed == 2:
            self._tell(ticket, Failed("broken", True))
        else:
            unbroken(self, table, ticket, at)

    monkeypatch.setattr(Engine, "_begin", broken)
    run(TINY.split())
    said = json.loads(capsys.readouterr().out)
    assert (said["errors"], said["equal"]) == (1, 0.75)


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(UserError, match="brings its own shape"):
        run(["bench", "serve", "--preset", "tiny", "--model", "pocket", "--device", "cpu"])
    with pytest.raises(UserError, match="length must be between 1 and"):
        run(["bench", "serve", "--preset", "tiny", "--length", "100000", "--device", "cpu"])
