"""`unmask evaluate` and `unmask report` as a person types them, on tiny networks with random weights."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
import torch

from unmask.checkpoint.io import Checkpoint, save
from unmask.cli.main import main
from unmask.core.streams import stream
from unmask.data.tokenizer import EOS, Tokenizer
from unmask.models.dit.network import DiT

SIZE, LENGTH = 12, 16


def _network(tokenizer: Tokenizer, seed: int, causal: bool = False) -> Checkpoint:
    torch.manual_seed(seed)
    model = DiT(SIZE + 1, LENGTH, hidden=16, cond=8, blocks=1, heads=2, dropout=0.0, causal=causal).eval()
    torch.nn.init.normal_(model.head.linear.weight, std=0.5)
    return Checkpoint(model, tokenizer=tokenizer)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with a teacher, a student, a causal judge and a text file."""
    folder = tmp_path_factory.mktemp("place")
    words = {**{chr(ord("a") + i): i for i in range(SIZE - 1)}, EOS: SIZE - 1}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, EOS))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = Tokenizer.from_json(inner.to_str(), "letters")
    for seed, name in enumerate(("teacher", "student", "judge")):
        save(_network(tokenizer, seed, causal=name == "judge"), folder / name)
    ids = torch.randint(SIZE - 1, (20 * LENGTH,), generator=stream(0, "text")).tolist()
    (folder / "text.txt").write_text(" ".join(chr(ord("a") + i) for i in ids))
    return folder


@pytest.fixture(autouse=True)
def own_cache(place, monkeypatch) -> None:
    monkeypatch.setenv("UNMASK_CACHE", str(place / "cache"))
    monkeypatch.chdir(place)


SMALL = ["--steps", "2", "4", "--plans", "iid", "golden", "--temperatures", "1.0", "0.8"]
SMALL += ["--control_steps", "4", "--n", "4", "--device", "cpu"]
MODELS = ["--models", "teacher=teacher", "student=student"]


@pytest.fixture(scope="module")
def evaluated(place) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNMASK_CACHE", str(place / "cache"))
        patch.chdir(place)
        command = ["evaluate", *MODELS, *SMALL, "--judge", "judge", "--data", "text.txt", "--out", "out"]
        assert main(command) == 0
    return place / "out"


def test_it_leaves_results_report_and_figures(evaluated: Path, capsys) -> None:
    said = json.loads((evaluated / "results.json").read_text())
    assert (said["format"], said["version"]) == ("unmask results", 1)
    assert {cell["model"] for cell in said["cells"]} == {"teacher", "student", "real text"}
    assert "<!doctype html>" in (evaluated / "report.html").read_text()
    assert (evaluated / "report.md").is_file()
    assert {path.name for path in (evaluated / "figures").iterdir()} == {
        "frontier-gen-ppl.svg", "frontier-path-gap.svg", "against-nfe.svg",
    }  # fmt: skip


def test_json_is_for_programs_and_a_rerun_is_the_same(evaluated: Path, capsys) -> None:
    command = ["evaluate", *MODELS, *SMALL, "--judge", "judge", "--data", "text.txt", "--out", "out", "--json"]
    assert main(command) == 0
    said = json.loads(capsys.readouterr().out)
    kept = json.loads((evaluated / "results.json").read_text())
    assert said["analysis"] == kept["analysis"]
    assert said["judge"]["name"] == "judge"


def test_without_a_judge_the_table_says_so(place, capsys) -> None:
    assert main(["evaluate", *MODELS, *SMALL, "--out", "unjudged"]) == 0
    said = capsys.readouterr().out
    assert "No judge was given" in said
    assert "Gen PPL, entropy" not in said
    assert "unjudged/report.html" in said


def test_the_usual_steps_are_cut_to_the_models_length_and_steps_asked_for_are_not(place, capsys) -> None:
    few = ["--models", "teacher=teacher", "--plans", "golden", "--temperatures", "1.0", "--n", "2", "--device", "cpu"]
    assert main(["evaluate", *few, "--out", "usual"]) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if "the usual 4 8 16 32 64" in line]
    assert len(told) == 1
    assert f"Steps: 4 8 16 in place of the usual 4 8 16 32 64, since these models write {LENGTH} tokens" in told[0]
    assert json.loads(Path("usual/results.json").read_text())["settings"]["steps"] == [4, 8, 16]
    assert main(["report", "usual", "--out", "usual-report"]) == 0
    assert "Steps: 4 8 16 in place of" in Path("usual-report/report.md").read_text()
    capsys.readouterr()
    assert main(["evaluate", *few, "--steps", "4", "8", "16", "32", "64", "--out", "asked"]) == 2
    assert f"steps must be at most {LENGTH}, one a token of these models, not 64" in capsys.readouterr().err
    assert not Path("asked/results.json").exists()


def test_report_merges_runs(evaluated: Path, capsys) -> None:
    other = [*MODELS, "more=student", "--steps", "8", *SMALL[3:], "--judge", "judge", "--data", "text.txt"]
    assert main(["evaluate", *other, "--out", "other"]) == 0
    assert main(["report", "out/results.json", "other", "--out", "merged"]) == 0
    said = json.loads(Path("merged/results.json").read_text())
    assert {cell["model"] for cell in said["cells"]} == {"teacher", "student", "more", "real text"}
    assert said["settings"]["steps"] == [2, 4, 8]
    assert Path("merged/report.html").is_file()
    assert main(["report", "unjudged-and-missing", "--out", "x"]) == 2


def test_two_processes_find_the_same(evaluated: Path, place) -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "--"]
    command = ["unmask", "evaluate", *MODELS, *SMALL, "--judge", "judge", "--data", "text.txt", "--out", "two"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "UNMASK_CACHE": str(place / "cache of two")}
    done = subprocess.run([*launch, *command], cwd=place, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    one, two = (json.loads((place / name / "results.json").read_text()) for name in ("out", "two"))
    assert two["provenance"]["processes"] == 2
    for mine, theirs in zip(one["cells"], two["cells"], strict=True):
        assert mine["samples"] == theirs["samples"]
        for name, score in mine["scores"].items():
            assert score["value"] == pytest.approx(theirs["scores"][name]["value"], rel=1e-5, abs=1e-8), name


def test_a_study_split_over_processes_is_gathered_by_one_more_call(place, monkeypatch, capsys) -> None:
    """Two at once, on one folder and one cache; the whole grid afterwards draws and judges nothing."""
    grid = ["--models", "teacher=teacher", "--steps", "2", "4", "--temperatures", "1.0", "0.8", "--n", "8"]
    grid += ["--judge", "judge", "--data", "text.txt", "--device", "cpu", "--out", "split"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "UNMASK_CACHE": str(place / "cache of the split")}
    monkeypatch.setenv("UNMASK_CACHE", environment["UNMASK_CACHE"])
    parts = [
        subprocess.Popen(
            [sys.executable, "-m", "unmask", "evaluate", *grid, "--plans", *plans],
            cwd=place, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for plans in (["iid", "golden"], ["iid@cosine", "golden"])
    ]  # fmt: skip
    for part in parts:
        _, said = part.communicate(timeout=300)
        assert part.returncode == 0, said[-2000:]

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("done again")

    for name in ("sample", "nelbo", "elbo"):
        monkeypatch.setattr(f"unmask.studies.workshop.{name}", refuse)
    monkeypatch.setattr("unmask.metrics.reading._score", refuse)
    assert main(["evaluate", *grid, "--plans", "iid", "golden", "iid@cosine"]) == 0
    said = json.loads((place / "split" / "results.json").read_text())
    assert len([cell for cell in said["cells"] if cell["steps"]]) == 3 * 2 * 2
    assert len({cell["record"]["texts"]["seed"] for cell in said["cells"] if cell["steps"]}) == 12


def test_bounds_alone_are_a_table_and_a_report(place, capsys) -> None:
    command = ["evaluate", "--models", "teacher=teacher", "--plans", "iid", "iid@cosine", "--steps", "2", "4"]
    assert main([*command, "--data", "text.txt", "--only_bounds", "--n", "8", "--device", "cpu", "--out", "b"]) == 0
    said = capsys.readouterr().out
    assert "N-step NELBO" in said
    assert "NELBO less that of iid" in said
    assert json.loads((place / "b" / "results.json").read_text())["cells"] == []
    assert "iid@cosine" in (place / "b" / "report.html").read_text()
    one = ["evaluate", "--models", "teacher=teacher", "--plans", "iid", "--steps", "2", "--data", "text.txt"]
    assert main([*one, "--only_bounds", "--n", "8", "--device", "cpu", "--out", "one"]) == 0
    assert "less" not in capsys.readouterr().out  # no empty table


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--models", "teacher"], "NAME=CHECKPOINT, such as student=teacher;"),
        (["--models", "=teacher"], "such as student=teacher; '=teacher' is not"),
        (["--models", "a=teacher", "a=student"], "two models are named 'a'"),
        (["--models", "teacher=nowhere/teacher"], "nowhere/teacher"),
        (["--models", "ar=judge"], "give a masked model"),
        ([*MODELS, "--plans", "goldn"], "did you mean 'golden'"),
        ([*MODELS, "--judge", "nowhere/judge"], "smollm2"),
        ([*MODELS, "--judge", "teacher"], "a judge reads from left to right"),
        ([*MODELS, "--data", "nowhere.txt"], "nowhere.txt"),
        ([*MODELS, "--data", "empty.txt"], "empty.txt"),
        ([*MODELS, "--data", "latin.txt"], "convert it, or read it with `unmask prepare --errors replace`"),
        (["--models", "teacher=teacher", "caf\udce9=student"], "--models is not UTF-8 text"),
        ([*MODELS, "--n", "1"], "at least 2"),
        ([*MODELS, "--plans", "golden@rnk"], "did you mean 'rank'"),
        ([*MODELS, "--plans", "golden@nowhere.json"], "nowhere.json"),
        ([*MODELS, "--judge", "judge", "--judge_dtype", "bf16"], "bf16 is for GPUs"),
        ([*MODELS, "--only_bounds"], "--data"),
        ([*MODELS, "--judge", "judge", "--data", "text.txt", "--mauve"], "2048"),
        ([*MODELS, "--protocol", "mdml"], "did you mean 'mdlm'"),
        ([*MODELS, "--data", "text.txt", "--only_bounds", "--batch", "-1"], "batch must be at least 1, not -1"),
        (
            [*MODELS, "--data", "text.txt", "--split", "validation"],
            "text.txt is plain text and has no validation split",
        ),
        ([*MODELS, "parrot=student"], "'parrot' is the name of a control"),
        ([], "--models must be given"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(place, capsys, words: list[str], message: str) -> None:
    (place / "empty.txt").write_text("")
    (place / "latin.txt").write_bytes("café".encode("latin-1"))
    assert main(["evaluate", *words, "--steps", "2", "--device", "cpu", "--out", "mistake"]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_names_that_look_like_markup_are_printed_as_they_are(place, capsys) -> None:
    names = ["a[/x]=student", "student[raw]=student"]
    assert main(["evaluate", *MODELS, *names, *SMALL, "--out", "odd"]) == 0
    said = capsys.readouterr().out
    assert "a[/x] / golden" in said
    assert "student[raw] / golden" in said
    bounds = ["--models", "teacher[raw]=teacher", "--plans", "iid", "iid@cosine", "--steps", "2", "--only_bounds"]
    assert main(["evaluate", *bounds, "--data", "text.txt", "--n", "4", "--device", "cpu", "--out", "odd-bounds"]) == 0
    assert capsys.readouterr().out.count("teacher[raw] / iid@cosine") == 2


def test_report_refuses_runs_on_different_text(place, evaluated: Path, capsys) -> None:
    """Another file under the same name: the string says the same, what was read does not."""
    said = (place / "text.txt").read_text()
    (place / "text.txt").write_text(said[::-1])
    few = ["--models", "teacher=teacher", *SMALL, "--judge", "judge", "--data", "text.txt", "--out", "reversed"]
    assert main(["evaluate", *few]) == 0
    (place / "text.txt").write_text(said)
    capsys.readouterr()
    assert main(["report", "out", "reversed", "--out", "x"]) == 2
    error = capsys.readouterr().err
    assert "different held-out text (text.txt, all of it)" in error
    assert error.count("\n") == 1
    assert main(["evaluate", *few[:-3], f"{place}/./text.txt", "--out", "spelled"]) == 0
    assert main(["report", "out", "spelled", "--out", "y"]) == 0


@pytest.mark.parametrize("name", ["results.json", "report.md", "report.html", "figures/frontier-gen-ppl.svg"])
@pytest.mark.parametrize("verb", ["evaluate", "report"])
def test_files_of_somebody_else_are_not_replaced(
    place, evaluated: Path, tmp_path, capsys, verb: str, name: str
) -> None:
    mine = tmp_path / "mine" / name
    mine.parent.mkdir(parents=True)
    mine.write_text('{"format": "another"}')
    words = [*MODELS, *SMALL] if verb == "evaluate" else ["out"]
    assert main([verb, *words, "--out", str(tmp_path / "mine")]) == 2
    said = capsys.readouterr()
    assert f"mine holds a {name.split('/')[0]} that is not of `unmask evaluate`" in said.err
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert mine.read_text() == '{"format": "another"}'
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [mine]


@pytest.mark.parametrize(
    ("mark", "what"), [("index.json", "a prepared corpus"), ("run.json", "a run"), ("config.json", "a checkpoint")]
)
@pytest.mark.parametrize("words", [["evaluate", *MODELS, *SMALL], ["report", "out"], ["demo"]])
def test_a_corpus_a_run_or_a_checkpoint_takes_no_report(
    place, evaluated: Path, tmp_path, capsys, words: list[str], mark: str, what: str
) -> None:
    (tmp_path / mark).write_text("{}")
    assert main([*words, "--out", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert f"{tmp_path} is {what}: name another --out" in said.err
    assert (said.out, said.err.count("\n"), len(list(tmp_path.iterdir()))) == ("", 1, 1)


def test_a_run_takes_no_cells(place, tmp_path, capsys) -> None:
    (tmp_path / "run.json").write_text("{}")
    assert main(["evaluate", *MODELS, *SMALL, "--cells", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == f"unmask: {tmp_path} is a run: name another --cells\n"
    assert os.listdir(tmp_path) == ["run.json"]


def test_a_report_replaces_reports_and_its_inputs_and_no_other_results(
    place, evaluated: Path, tmp_path, capsys
) -> None:
    few = ["--models", "teacher=teacher", *SMALL, "--judge", "judge", "--data", "text.txt"]
    assert main(["evaluate", *few, "--out", str(tmp_path / "report")]) == 0
    kept = (tmp_path / "report" / "results.json").read_bytes()
    capsys.readouterr()
    assert main(["report", "out", "--out", str(tmp_path / "report")]) == 2
    assert "the results of an evaluation that is not among those given" in capsys.readouterr().err
    assert (tmp_path / "report" / "results.json").read_bytes() == kept
    for inputs in (["out"], ["out", str(tmp_path / "report")], ["out"]):  # again and again into the same place
        assert main(["report", *inputs, "--out", str(tmp_path / "page")]) == 0
    assert main(["report", str(tmp_path / "report"), "--out", str(tmp_path / "report")]) == 0  # the page made anew


def test_off_a_terminal_every_finished_cell_is_a_line(place, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("unmask.core.progress.OFTEN", 0.0)
    few = ["--models", "teacher=teacher", "--plans", "golden", "--steps", "2", "4", "--temperatures", "1.0"]
    words = ["evaluate", *few, "--n", "4", "--device", "cpu", "--out", str(tmp_path)]
    assert main(words) == 0
    said = capsys.readouterr().err.splitlines()
    assert [re.sub(r"\d+:\d\d", "TIME", line) for line in said] == [
        "1 of 2 done after TIME: teacher, golden, 2 steps, T = 1",
        "2 of 2 done after TIME: teacher, golden, 4 steps, T = 1",
    ]
    monkeypatch.setattr("unmask.core.progress.OFTEN", 60.0)
    assert main(words) == 0  # found at once: told once
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_place_that_cannot_be_written_is_found_out_before_any_work(place, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("unmask.studies.workshop.sample", None)  # nothing is drawn
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "deeper"):
        assert main(["evaluate", *MODELS, *SMALL, "--out", str(out)]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"unmask: cannot write {out}: ")
        assert said.count("\n") == 1
    cells = ["--cells", str(tmp_path / "file"), "--out", str(tmp_path / "out")]
    assert main(["evaluate", *MODELS, *SMALL, *cells]) == 2
    assert capsys.readouterr().err.startswith(f"unmask: cannot write {tmp_path / 'file'}: it is a file, not a folder")


DAMAGED = {"format": "unmask results", "version": 1, "models": {}, "cells": [], "likelihood": [], "judge": None,
           "notes": [], "analysis": {}, "provenance": {}, "settings": {}}  # fmt: skip


@pytest.mark.parametrize("content", ["", "[]", '{"format": "unmask results", "version": 1}', json.dumps(DAMAGED)])
def test_a_damaged_results_file_is_one_line(place, capsys, content: str) -> None:
    (place / "bad.json").write_text(content)
    assert main(["report", "bad.json"]) == 2
    said = capsys.readouterr().err
    assert "bad.json" in said
    assert said.count("\n") == 1
