"""The tasks of studies/tasks: what is made is right, and whatever is changed in it is found."""

import json
import math
import random

import pytest
import torch


def test_records_are_right_and_of_one_length(script) -> None:
    records, rng = script("tasks/records"), random.Random(0)
    lines = [records.make(rng) for _ in range(2000)]
    assert {len(line) for line in lines} == {127}
    assert all(records.check(line)["all"] == 1 for line in lines)
    lags = {json.loads(line)["id"].rindex(json.loads(line)["id"][:12]) for line in lines}
    assert lags == set(range(13, 41)), "every lag from a key to its copy"
    assert len({records.check(line)["key"] for line in lines}) == 2000
    assert len({line.index('","add":[') for line in lines}) == 1, "the lag moves nothing but the copy"


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("copy", lambda record: {**record, "id": str((int(record["id"][0]) + 1) % 10) + record["id"][1:]}),
        ("count", lambda record: {**record, "tags": [*record["tags"], "zz"]}),
        ("sum", lambda record: {**record, "sum": record["sum"] + 1}),
    ],
)
def test_a_wrong_record_is_found_by_the_part_that_is_wrong(script, part, change) -> None:
    records = script("tasks/records")
    record = json.loads(records.make(random.Random(1)))
    found = records.check(json.dumps(change(record)))
    right = {name for name in ("parses", "copy", "count", "sum") if found[name]}
    assert right == {"parses", "copy", "count", "sum"} - {part}
    assert found["all"] == 0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"id": 3}', '{"id":"a","tags":[],"count":0,"add":[],"sum":"0"}'])
def test_what_is_no_record_has_no_right_part(script, text) -> None:
    assert not any(value for name, value in script("tasks/records").check(text).items() if name != "key")


def test_equations_hold_and_a_changed_digit_does_not(script) -> None:
    equations, rng = script("tasks/equations"), random.Random(0)
    for _ in range(100):
        text = equations.make(rng)
        assert len(text) == 335
        assert equations.check(text)["all"] == equations.check(text)["right"] == 1
        place = rng.choice([i for i, sign in enumerate(text) if sign.isdigit()])
        other = text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :]
        assert equations.check(other)["right"] == 15 / 16
        assert equations.check(text.replace("=", "-", 1))["lines"] == 15 / 16


def test_there_are_288_small_grids_and_large_ones_are_valid(script) -> None:
    sudoku, rng = script("tasks/sudoku"), random.Random(0)
    assert len(set(sudoku.every_small_grid())) == 288
    grids = sudoku.grids(100, rng)
    assert all(map(sudoku.valid, grids))
    assert len(set(grids)) == 100
    for grid in grids[:20]:
        i, j = rng.sample([i for i in range(81) if i // 9 == 4], 2)
        swapped = list(grid)
        swapped[i], swapped[j] = swapped[j], swapped[i]
        assert not sudoku.valid("".join(swapped)), "a row still holds each digit, its columns do not"
    assert not sudoku.valid("1" * 81)
    assert not sudoku.valid("")


def test_chi_square_is_zero_for_equal_counts_and_largest_for_one_kind(script) -> None:
    collect = script("tasks/collect")
    grids = script("tasks/sudoku").every_small_grid()
    equal = collect.chi_square(grids * 3, 288)
    assert (equal["statistic"], equal["freedom"], equal["p"]) == (0.0, 287, 1.0)
    one = collect.chi_square(grids[:1] * 50, 288)
    assert one["statistic"] == pytest.approx(50 * 287)
    assert one["p"] < 1e-12
    rng = random.Random(0)
    passed = sum(collect.chi_square(rng.choices(grids, k=1500), 288)["p"] > 0.1 for _ in range(100))
    assert 78 < passed < 99, "nine in ten draws of the uniform law"


def test_what_a_step_loses_is_measured_against_the_law_of_all_grids(script):
    """Whatever the steps, a grid has the probability 1/288; cells that are settled cost nothing, nor what is given."""
    grids = torch.tensor([[int(c) for c in grid] for grid in script("tasks/sudoku").every_small_grid()])
    which, steps = torch.arange(288), torch.randint(4, (288, 16), generator=torch.Generator().manual_seed(0))
    exact = script("tasks/lost").exact
    torch.testing.assert_close(exact(grids, steps, which, 4).sum(1), torch.full((288,), -math.log(288)).double())
    rows = torch.arange(4).repeat_interleave(4).expand(288, -1)
    by_row = exact(grids, rows, which, 4)
    torch.testing.assert_close(by_row[:, 0], torch.full((288,), -math.log(24)).double())
    assert not by_row[:, 3].any()
    given = torch.where(rows == 0, -1, rows)
    torch.testing.assert_close(exact(grids, given, which, 4)[:, 1:], by_row[:, 1:])


def test_a_puzzle_has_thirty_givens_and_one_solution(script) -> None:
    sudoku = script("tasks/sudoku")
    blank, solved = sudoku.puzzle(random.Random(0))
    assert sum(cell != "_" for cell in blank) == 30
    assert all(cell in ("_", answer) for cell, answer in zip(blank, solved, strict=True))
    assert ["".join(map(str, one)) for one in sudoku.solutions([int(c.replace("_", "0")) for c in blank], 3)] == [
        solved
    ]
