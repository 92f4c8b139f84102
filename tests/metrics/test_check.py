"""A checker of the user's own becomes a score of every text; one that cannot serve is one line."""

from pathlib import Path

import pytest

from unmask.core.errors import UserError
from unmask.data.tokenizer import Tokenizer
from unmask.metrics.registry import load_check
from unmask.metrics.texts import of_strings
from unmask.studies.evaluate import evaluate

CHECKER = """
def check(text):
    return {"long": len(text) > 3, "first": text[:1]}

def length(text):
    return len(text)

def broken(text):
    return 1 / 0

def uneven(text):
    return {text[0]: 1}
"""
STRINGS = ["abc", "abcd", "b", "abcde"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(CHECKER)
    return path


@pytest.fixture(scope="module")
def texts():
    return of_strings(STRINGS, Tokenizer.load("gpt2"))


def test_scores_are_means_and_a_string_counts_when_it_is_new(file, texts) -> None:
    found = load_check(str(file))(texts)
    assert found is not None
    assert {name: score.value for name, score in found.items()} == {"check_long": 0.5, "check_first": 0.5}
    lengths = load_check(f"{file}:length")(texts)
    assert lengths is not None
    assert lengths["check"].value == sum(map(len, STRINGS)) / 4


@pytest.mark.parametrize(
    ("name", "said"),
    [("broken", "ZeroDivisionError"), ("uneven", "other scores"), ("missing", "no function 'missing'")],
)
def test_what_cannot_serve_is_one_line(name, said, file, texts) -> None:
    with pytest.raises(UserError, match=said):
        load_check(f"{file}:{name}")(texts)


def test_a_checker_is_a_py_file() -> None:
    with pytest.raises(UserError, match=r"file\.py:function"):
        load_check("mine:check")


def test_evaluate_checks_every_text(file, tmp_path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("\n\n".join(STRINGS))
    results = evaluate(texts={"mine": lines}, check=f"{file}:length")
    assert results.cells[0].scores["check"]["value"] == sum(map(len, STRINGS)) / 4
