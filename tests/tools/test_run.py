"""`tools.results run`: commands in the order of what they need, several at a time, and never twice."""

import sys

import pytest
from tools.results.run import Job, Queue, jobs_of

from unmask.core.errors import UserError

# stands for unmask: makes its --out after a while; fails if asked to, or if a path it names is not there
PROGRAM = """
import pathlib, sys, time
words = sys.argv[1:]
out = pathlib.Path(words[words.index("--out") + 1])
needs = [word for word in words if word.startswith("made/") and word != str(out)]
if "--fail" in words or not all(pathlib.Path(need).exists() for need in needs):
    sys.exit(3)
time.sleep(60 if "--sleep" in words else 0)
if "--meet" in words:  # with another command: both must run at once
    pathlib.Path(f"here-{out.name}").touch()
    for _ in range(600):
        if len(list(pathlib.Path().glob("here-*"))) == 2:
            break
        time.sleep(0.05)
    else:
        sys.exit(4)
with open("order.txt", "a") as handle:
    handle.write(out.name + " ")
out.mkdir(parents=True)
"""


@pytest.fixture
def queue(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    def make(*commands, parallel=2):
        return Queue(
            jobs_of(f"unmask {command}" for command in commands), [sys.executable, program], tmp_path / "logs", parallel
        )

    return make


def order(tmp_path):
    return (tmp_path / "order.txt").read_text().split()


def test_a_command_waits_for_what_it_names_wherever_it_stands(queue, tmp_path):
    # made/b/rounds is never made, so that the first is left out in the end
    assert not queue(
        "evaluate made/a made/b/rounds --out made/c", "train --out made/a", "train made/a --out made/b"
    ).go(1)
    assert order(tmp_path) == ["a", "b"]
    assert queue("evaluate made/a made/b --out made/c", "train --out made/a", "train made/a --out made/b").go(1)
    assert order(tmp_path) == ["a", "b", "c"]  # nothing twice


def test_what_lies_in_a_product_is_there_before_the_product_is_done(queue, tmp_path):
    """The student of an early round does not wait for the last; the run itself is not used before its end."""
    (tmp_path / "made/a/rounds/1").mkdir(parents=True)
    commands = ["train --sleep --out made/a", "evaluate s=made/a/rounds/1 --out made/b", "convert made/a --out made/c"]
    assert not queue(*commands).go(0.1)
    assert order(tmp_path) == ["b"]


def test_what_nobody_here_makes_is_waited_for_while_others_work(queue, tmp_path):
    commands = ["evaluate --data brought/text --out made/b", "train --out made/a"]
    assert not queue(*commands).go(1)
    assert order(tmp_path) == ["a"]
    (tmp_path / "brought/text").mkdir(parents=True)
    assert queue(*commands).go(1)
    assert order(tmp_path) == ["a", "b"]


def test_judges_of_the_same_cells_come_one_after_the_other(queue, tmp_path):
    """The second judge would draw the same texts at the same time; two that draw different ones may meet."""
    same = [f"evaluate --steps 8 --judge {judge} --cells cells/x --sleep --out made/{judge}" for judge in "ab"]
    assert not queue(*same).go(0.05)
    log = (tmp_path / "logs/log.txt").read_text()
    assert log.count("begins:") == 1
    assert queue(*(f"evaluate --steps {n} --cells cells/x --meet --out made/m{n}" for n in (4, 8))).go(1)


def test_several_at_a_time(queue, tmp_path):
    assert queue("train --meet --out made/a", "train --meet --out made/b").go(1)
    assert sorted(order(tmp_path)) == ["a", "b"]


def test_a_failure_stops_only_what_needs_it(queue, tmp_path, capsys):
    assert not queue("train --fail --out made/a", "distill made/a --out made/b", "train --out made/c").go(1)
    assert order(tmp_path) == ["c"]
    said = capsys.readouterr().out
    assert "FAILED (3)" in said
    assert "left out, needs what failed: distill made/a --out made/b" in said


def test_out_of_time_it_stops_and_goes_on_in_the_next_call(queue, tmp_path):
    commands = ("train --out made/a", "train made/a --sleep --out made/b", "train --out made/c")
    assert not queue(*commands).go(0.05)
    assert sorted(order(tmp_path)) == ["a", "c"]
    assert queue(commands[0], commands[2], "train made/a --out made/b").go(1)
    assert sorted(order(tmp_path)) == ["a", "b", "c"]


def test_loops_are_written_out_and_nothing_is_listed_twice():
    lines = [
        "for S in 0 1: unmask train --seed $S --out runs/A-s$S",
        "unmask train --seed 1 --out runs/A-s1",
    ]
    assert [str(job) for job in jobs_of(lines)] == ["train --seed 0 --out runs/A-s0", "train --seed 1 --out runs/A-s1"]


def test_a_command_of_another_program_is_refused_not_left_out():
    with pytest.raises(UserError, match=r"begins with unmask, not 'torchrun -m unmask train'"):
        jobs_of(["unmask train --out a", "torchrun -m unmask train"])


@pytest.mark.parametrize(
    ("words", "needs"),
    [
        ("evaluate --models teacher=runs/x --out e", True),
        ("evaluate --models s=runs/x/rounds/5 --out e", True),  # which is not there
        ("evaluate --plans golden@runs/x --out e", True),
        ("train --data runs/xy --out e", False),
        ("train --out runs/x", False),  # its own
    ],
)
def test_what_a_command_needs(words, needs):
    assert Job(tuple(words.split())).needs("runs/x") is needs
