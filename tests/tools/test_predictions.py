"""What committed runs say of registered predictions: verdicts follow from the run, and what is missing is said."""

import json
from itertools import takewhile
from pathlib import Path

import pytest
from tools.results.__main__ import main
from tools.results.page import EVERY
from tools.results.predictions import OUTCOMES, told
from tools.results.runs import Run, read_studies
from tools.results.teacher import NAMES, TEACHER, by_book, gate_of, students_24m, teacher_gate, teacher_plans

DOCS = Path(__file__).resolve().parents[2] / "docs"


def runs(**said):
    return {name.replace("_", "-"): Run(name, content) for name, content in said.items()}


def about(found, row):
    """The verdicts of a row by number."""
    lines = [*told(found)]
    start = next(i for i, line in enumerate(lines) if line == row)
    mine = takewhile(lambda line: line.startswith("  "), lines[start + 1 :])
    return {line.split(")")[0].strip(" ("): line.split(") ", 1)[1] for line in mine}


def cell(plan, steps, score, share, n=1000, model="plain", **more):
    return {"model": model, "plan": plan, "steps": steps, "n": n, "score": score, "scores": {score: share},
            "whole": round(n * share), "different": round(n * share), "entropy": 5.0, **more}  # fmt: skip


def test_every_outcome_and_every_student_is_a_run_of_the_studies():
    known = {name for study in read_studies(DOCS / "results").values() for name in study.runs}
    assert {needed for needed, _ in OUTCOMES.values()} <= known
    assert {TEACHER, *(f"students-{name}" for name in NAMES)} <= known


def test_before_any_run_every_row_says_that_it_is_not_measured(tmp_path, capsys):
    (tmp_path / "results").mkdir()
    assert main(["--docs", str(tmp_path), "outcomes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(OUTCOMES)
    assert all("not measured" in line for line in lines)
    names = ("teacher-gate", "teacher-plans", "rival", "students-24m", "tasks-records", "tasks-control")
    assert all(EVERY[name]({}).note and not EVERY[name]({}).markdown() for name in names)


def test_the_gate_is_kept_by_book_and_read_over_all_bytes():
    blocks = {"book": [3, 3, 5, 5], "bytes": [100, 100, 100, 300], "attention": [4.0, 0.5], "views": 8, "texts": {}}
    said = by_book({**blocks, "nats": {"teacher": [90.0, 110, 99, 297], "other": [104.0, 104, 100, 300]}})
    assert said["books"] == [[200, 200, 208], [400, 396, 400]]
    found = gate_of(Run("x", said))
    assert (found.whole, found.other) == (pytest.approx(596 / 600), pytest.approx(608 / 600))
    assert found.less[0] == pytest.approx(-0.025)
    there = runs(teacher_24m_gate=said)
    verdicts = about(there, "2026-11-18, 17:52, the 24M teacher passes the gate")
    assert [verdicts[n].split(":")[0] for n in "123"] == ["held", "held", "failed"]
    assert teacher_gate(there).rows[0][:2] == ["24M, seed 0", "0.9933"]


def test_the_race_asks_the_best_plan():
    curves = [("comb", {8: 0.03, 16: -0.001, 1024: -0.02}), ("stride", {8: 0.015, 16: 0.01}), ("iid", {2: -1.0})]
    points = [
        {"model": "teacher", "score": "nelbo", "plan": plan, "reference": {"order": "random"},
         "curve": [{"steps": n, "distance": [v, v - 0.001, v + 0.001]} for n, v in found.items()]}
        for plan, found in curves
    ]  # fmt: skip
    one = {"model": "teacher", "plan": "permutation", "steps": 1024, "n": 96, "per_token": [3.5]}
    there = runs(teacher_24m={"matches": points, "likelihood": [one]})
    verdicts = about(there, "2026-11-18, 17:52, few forwards on that teacher")
    assert verdicts["1"] == "held: 16 forwards are enough"
    assert verdicts["2"] == "held: +0.0150 ± 0.0010 nats a token in 8 steps (stride)"
    table = teacher_plans(there)
    assert table.rows[0][0] == "`comb`, seed 0"
    assert table.rows[0][-1] == "−0.020 ± 0.001"


def test_tasks_need_every_cell_that_a_criterion_names():
    cells = [cell("permutation", 128, "all", 0.92), cell("comb", 16, "all", 0.6), cell("iid", 16, "all", 0.3)]
    row = "2026-11-19, 02:35, records"
    verdicts = about(runs(tasks_records={"cells": cells}), row)
    assert [verdicts[n].split(":")[0] for n in "1234"] == ["held", "held", "not measured", "held"]
    cells += [cell("comb", 16, "all", 0.9, model="chain"), cell("golden", 8, "all", 0.5, different=400)]
    verdicts = about(runs(tasks_records={"cells": cells}), row)
    assert [verdicts[n].split(":")[0] for n in "34"] == ["failed", "failed"]


def test_the_control_must_win_at_every_number_of_steps():
    rows = [{"plan": p, "steps": n, "solved": v, "n": 8} for p, n, v in
            (("confidence", 4, 0.5), ("comb", 4, 0.4), ("confidence", 8, 0.6), ("comb", 8, 0.7))]  # fmt: skip
    said = {"cells": [], "control": {"plain": rows}}
    row = "2026-11-18, 23:29, 9 x 9 Sudoku"
    assert about(runs(tasks_sudoku9=said), row)["5"].startswith("failed: 4 steps: 50.0% against 40.0% (comb); 8 steps")
    assert about(runs(tasks_sudoku9={**said, "control": {"plain": rows[:2]}}), row)["5"].startswith("held")


def test_a_student_is_held_against_both_curves_of_its_teacher():
    """The path gap falls by 0.2 a nat of own entropy on either curve; the student lies 0.04 below both."""

    def drawn(model, plan, steps, own, gap, **more):
        ends = {"path_gap": [gap, gap - 0.003, gap + 0.003], "sampler_entropy": [own, own - 0.01, own + 0.01]}
        return {"model": model, "plan": plan, "steps": steps, "temperature": 1.0, "n": 9, **ends, **more}

    places = [(plan, n) for plan in ("comb", "iid") for n in (8, 16)]
    heats = [{"temperature": 1.0}, {"temperature": 0.8}, {"top_p": 0.9}]
    teacher = [drawn("teacher", *place, own, 0.5 - 0.2 * own, **heat)
               for place in places for heat, own in zip(heats, (1.0, 0.6, 0.7), strict=True)]  # fmt: skip
    student = [drawn("mcd-s0", *place, 0.8, 0.3) for place in places]
    bounds = [{"model": model, "plan": "comb", "steps": 8, "per_token": [nats]}
              for model, nats in (("teacher", 3.5), ("mcd-s0", 3.53))]  # fmt: skip
    there = {
        TEACHER: Run(TEACHER, {"cells": teacher, "judge": {"name": "pocket-judge"}}),
        "students-mcd-s0": Run("x", {"cells": student, "likelihood": bounds}),
    }
    found = [*told(there)][-2:]
    assert found[0].startswith("  (1) held: mcd-s0")
    assert found[0].count("-0.0400") == 8
    assert found[1] == "  (2) failed: mcd-s0, NELBO in 8 of comb +0.0300 nats a token to the teacher's"
    assert students_24m(there).rows[0][-1] == "+0.0300"
    assert json.dumps(students_24m(there).rows).count("\\u22120.0400") == 8
