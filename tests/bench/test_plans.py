"""`unmask bench plans` end to end, on toys and texts small enough for a test."""

import json

import pytest

from unmask.bench import plans as bench
from unmask.cli.main import run
from unmask.core.errors import UserError
from unmask.theory.oracle import copy_at_lag, sticky

BOOK = "The cat sat on the mat and ate a rat that had sat on a hat. "


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Toys of four positions; two short books."""
    toys = {"sticky": lambda: sticky(4, 2), "copy": lambda: copy_at_lag(4, 2, lag=2)}
    monkeypatch.setattr(bench, "SOURCES", toys)
    monkeypatch.setattr(bench, "TOY_STEPS", (1, 2, 4))
    text = tmp_path / "books.txt"
    text.write_text("\n<|endoftext|>\n".join([BOOK * 30, BOOK[::-1] * 30, "short"]))
    return f"bench plans --texts {text} --books 2 --length 8 --lines 24 --steps 2 8".split()


def test_errors_as_json_and_figure(small, tmp_path, capsys):
    run([*small, "--json", "--figure", str(tmp_path / "plans.svg")])
    rows = json.loads(capsys.readouterr().out)["rows"]
    found = {(row["source"], row["plan"], row["steps"]): row for row in rows}
    # one token a step is exact, exactly on the toys and to rounding on the books
    assert found["sticky", "golden", 4]["error"] == pytest.approx(0, abs=1e-12)
    assert found["books", "golden", 8]["error"] == pytest.approx(0, abs=1e-5)
    # one step draws all positions independently, so every plan errs alike
    assert len({round(row["error"], 9) for row in rows if row["source"] == "sticky" and row["nfe"] < 1.001}) == 1
    # the lag is two: van der Corput reveals both ends of it together, golden does not
    assert found["copy", "van der Corput", 2]["error"] > found["copy", "golden", 2]["error"]
    # steps that reveal nothing cost nothing: 4 positions meet 4 (1 - (3/4)^4) steps of an iid plan
    assert found["sticky", "iid, uniform", 4]["nfe"] == pytest.approx(4 * (1 - 0.75**4))
    assert found["books", "iid, uniform", 2]["error"] > 5 * found["books", "iid, uniform", 2]["standard_error"]
    drawn = (tmp_path / "plans.svg").read_text()
    assert drawn.lstrip().startswith("<?xml")
    assert drawn.count('<g id="axes_') == 6


def test_errors_as_tables(small, capsys):
    run(small)
    shown = capsys.readouterr().out
    assert "van der Corput" in shown
    assert "nats, exact" in shown
    assert "nats a character" in shown


def test_bad_input(small, tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "_with_progress", None)  # before any work
    for words, said in {
        f"--figure {tmp_path}/books.txt/plans.svg": r"cannot write .*a part of the path is a file",
        f"--figure {tmp_path}/plans.doc": r"end in \.svg",
        "--books 9": "3 documents, fewer than the 9",
        "--steps 2 100": "steps must be at most 8, one a character of a line, not 100",
        "--steps 0": "at least",
    }.items():
        with pytest.raises(UserError, match=said):
            run([*small, *words.split()])
