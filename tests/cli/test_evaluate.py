"""`unmask evaluate` and `unmask report` as a person types them, on tiny networks with random weights."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.scene import SIZE

from unmask.checkpoint.io import save
from unmask.cli.main import main
from unmask.core.streams import stream

LENGTH = 16


@pytest.fixture(scope="module")
def place(tmp_path_factory, letters, network) -> Path:
    """A folder with a teacher, a student, a causal judge and a text file."""
    folder = tmp_path_factory.mktemp("place")
    tokenizer = letters(SIZE)
    for seed, name in enumerate(("teacher", "student", "judge")):
        save(network(tokenizer, seed, causal=name == "judge", length=LENGTH), folder / name)
    ids = torch.randint(SIZE - 1, (20 * LENGTH,), generator=stream(0, "text")).tolist()
    (folder / "text.txt").write_text(" ".join(chr(ord("a") + i) for i in ids))
    return folder


@pytest.fixture(autouse=True)
def own_cache(place, monkeypatch) -> None:
    monkeypatch.setenv("UNMASK_CACHE", str(place / "cache"))
    monkeypatch.setattr("unmask.studies.report.figures", lambda _: [])  # which take most of the time
    monkeypatch.chdir(place)


SMALL = ["--steps", "2", "4", "--plans", "iid", "golden", "--temperatures", "1.0", "0.8"]
SMALL += ["--control_steps", "4", "--n", "5", "--device", "cpu"]
MODELS = ["--models", "teacher=teacher", "student=student"]
COMMAND = ["evaluate", *MODELS, *SMALL, "--judge", "judge", "--data", "text.txt"]


@pytest.fixture(scope="module")
def evaluated(place) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNMASK_CACHE", str(place / "cache"))
        patch.chdir(place)
        assert main([*COMMAND, "--out", "out"]) == 0
    return place / "out"


def test_it_leaves_results_report_and_figures(evaluated: Path, capsys) -> None:
    said = json.loads((evaluated / "results.json").read_text())
    assert (said["format"], said["version"]) == ("unmask results", 2)
    assert {cell["model"] for cell in said["cells"]} == {"teacher", "student", "real text"}
    assert "ratios" not in said["cells"][0], "what single texts gave stands beside it"
    assert "<!doctype html>" in (evaluated / "report.html").read_text().lower()
    assert (evaluated / "report.md").is_file()
    assert {path.suffix for path in (evaluated / "figures").iterdir()} == {".svg"}
    assert main([*COMMAND, "--out", "out", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["analysis"] == said["analysis"], "a rerun is the same"
    assert again["judge"]["name"] == "judge"


def test_a_first_look_says_so_and_how_much_there_is_to_do(place, capsys, monkeypatch) -> None:
    monkeypatch.setattr("unmask.core.progress.OFTEN", -1.0)
    few = ["--models", "teacher=teacher", "--plans", "golden", "iid", "--device", "cpu", "--out", "quick"]
    assert main(["evaluate", *few, "--quick"]) == 0
    said = capsys.readouterr()
    lines = [re.sub(r"\d+:\d\d", "TIME", line) for line in said.err.splitlines()]
    assert lines == [
        "note: 2 cells and bounds",
        "1 of 2 done after TIME: teacher, golden, 8 steps, T = 1",
        "2 of 2 done after TIME: teacher, iid, 8 steps, T = 1",
    ]
    assert "a first look (--quick)" in said.out
    assert "No judge was given" in said.out
    assert "a first look (--quick)" in Path("quick/report.md").read_text()
    assert {cell["n"] for cell in json.loads(Path("quick/results.json").read_text())["cells"]} == {16}


def test_brackets_may_add_cells_and_the_most_is_said(evaluated: Path, capsys) -> None:
    """What was asked for is counted at the start; brackets stay within what was said."""
    assert main([*COMMAND, "--out", "out"]) == 0
    said = capsys.readouterr().err
    planned, more = map(int, re.findall(r"note: (\d+) cells and bounds, and at most (\d+) more", said)[0])
    kept = json.loads((evaluated / "results.json").read_text())
    asked = [cell for cell in kept["cells"] if cell["temperature"] in (1.0, 0.8)]
    assert planned == len(asked) + len(kept["likelihood"]) + 1, "and real text"
    drawn = [cell for cell in kept["cells"] if cell["plan"]]
    assert len(asked) < len(drawn) <= len(asked) + more


def test_anybodys_texts_alone_and_beside_models(place, capsys) -> None:
    rows = [" ".join("abcdefgh"[i:] + "abcdefghijk"[:i]) for i in range(8)]
    Path("mine.jsonl").write_text(
        "".join(json.dumps(row if i % 2 else {"text": row}) + "\n" for i, row in enumerate(rows))
    )
    Path("yours.txt").write_text("\n<|endoftext|>\n".join(rows))
    texts = ["--texts", "mine=mine.jsonl", "yours=yours.txt", "--judge", "judge", "--device", "cpu"]
    assert main(["evaluate", *texts, "--out", "texts"]) == 0
    said = capsys.readouterr().out
    kept = json.loads(Path("texts/results.json").read_text())
    one, other = kept["cells"]
    assert (one["model"], one["n"], kept["models"]["mine"]["role"]) == ("mine", 8, "texts")
    assert one["scores"] == other["scores"], "the same texts, in either format"
    for name in ("gen_ppl", "entropy", "distinct_4", "repeated_4", "self_bleu"):
        assert name in one["scores"]
        assert name in said
    assert "judge_nll" in one["scores"]
    assert "path_gap" not in one["scores"], "nobody drew these texts"
    assert "mine: 8 texts of mine.jsonl" in said
    assert main(["report", "texts", "--out", "texts-report"]) == 0, "what was written is read again"
    few = ["--models", "teacher=teacher", "--steps", "4", "--plans", "golden", "--temperatures", "1.0", "--n", "4"]
    assert main(["evaluate", *few, *texts, "--data", "text.txt", "--out", "beside"]) == 0
    kept = {cell["model"]: cell for cell in json.loads(Path("beside/results.json").read_text())["cells"]}
    assert kept.keys() == {"teacher", "real text", "mine", "yours"}
    assert (kept["mine"]["n"], kept["mine"]["tokens"]) == (4, sum(len(row.split()) for row in rows[:4]))
    assert "coverage_1" in kept["mine"]["scores"]
    assert "mine" in Path("beside/report.md").read_text()


def test_a_metric_of_a_plug_in_is_scored_shown_and_kept(place, capsys) -> None:
    from unmask.metrics import registry

    Path("plug.py").write_text(
        "from unmask.metrics.registry import register_metric\n"
        "@register_metric('share_of_a', unit='share')\n"
        "def share_of_a(texts):\n"
        "    return [text.count('a') / len(text) for text in texts.strings]\n"
    )
    few = ["--models", "teacher=teacher", "--steps", "4", "--plans", "golden", "--temperatures", "1.0", "--n", "4"]
    try:
        assert main(["evaluate", *few, "--device", "cpu", "--plugin", "plug.py", "--out", "plugged"]) == 0
    finally:
        registry.METRICS.pop("share_of_a", None)
    assert "share_of_a" in capsys.readouterr().out
    (cell,) = json.loads(Path("plugged/results.json").read_text())["cells"]
    assert 0 <= cell["scores"]["share_of_a"]["value"] < 1
    assert "share_of_a" in Path("plugged/report.md").read_text()


def test_report_merges_runs_and_replaces_no_other_results(evaluated: Path, refused) -> None:
    other = [*MODELS, "more=student", "--steps", "8", *SMALL[3:], "--no-bracket"]
    other += ["--judge", "judge", "--data", "text.txt"]
    assert main(["evaluate", *other, "--out", "other"]) == 0
    for _ in range(2):  # again into the same place
        assert main(["report", "out/results.json", "other", "--out", "merged"]) == 0
    said = json.loads(Path("merged/results.json").read_text())
    assert {cell["model"] for cell in said["cells"]} == {"teacher", "student", "more", "real text"}
    assert said["settings"]["steps"] == [2, 4, 8]
    kept = Path("other/results.json").read_bytes()
    said = refused("report", "out", "--out", "other")
    assert "the results of an evaluation that is not among those given" in said
    assert Path("other/results.json").read_bytes() == kept
    assert main(["report", "other", "--out", "other"]) == 0  # the page made anew
    assert main(["report", "unjudged-and-missing", "--out", "x"]) == 2


def test_two_processes_find_the_same(evaluated: Path, place) -> None:
    """Texts that cannot be shared out evenly: of an evaluation, and of a plan that is fitted."""
    fit = ["fit-plan", "--model", "teacher", "--data", "text.txt", "--steps", "3", "--texts", "7", "--device", "cpu"]
    fit += ["--plans", "comb", "golden", "--out"]
    assert main([*fit, "one.json"]) == 0
    lines = [*COMMAND, "--out", "two"], [*fit, "two.json"]
    script = f"from unmask.cli.main import leave, main\nleave(sum(map(main, {lines})))"
    (place / "both.py").write_text(script)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "both.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "UNMASK_CACHE": str(place / "cache of two")}
    done = subprocess.run(launch, cwd=place, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    one, two = (json.loads((place / name / "results.json").read_text()) for name in ("out", "two"))
    assert two["provenance"]["processes"] == 2
    for part in ("cells", "likelihood"):
        for mine, theirs in zip(one[part], two[part], strict=True):
            assert mine.get("samples") == theirs.get("samples")
            for name, score in theirs["scores"].items():
                assert score["value"] == pytest.approx(mine["scores"][name]["value"], rel=1e-5, abs=1e-8), name
    alone, shared = (json.loads(Path(name).read_text()) for name in ("one.json", "two.json"))
    assert shared["grid"] == alone["grid"]
    for name, worth in alone["nelbo"].items():
        assert shared["nelbo"][name]["nats"] == pytest.approx(worth["nats"], rel=1e-5)


def test_a_study_split_over_processes_is_gathered_by_one_more_call(forbid, place, monkeypatch, capsys) -> None:
    """Two at once, on one folder and one cache; the whole grid afterwards draws and judges nothing."""
    grid = ["--models", "teacher=teacher", "--steps", "2", "4", "--temperatures", "1.0", "0.8", "--n", "8"]
    grid += ["--judge", "judge", "--data", "text.txt", "--device", "cpu", "--out", "split"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "UNMASK_CACHE": str(place / "cache of the split")}
    monkeypatch.setenv("UNMASK_CACHE", environment["UNMASK_CACHE"])
    other = subprocess.Popen(
        [sys.executable, "-m", "unmask", "evaluate", *grid, "--plans", "iid", "golden"],
        cwd=place, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert main(["evaluate", *grid, "--plans", "iid@cosine", "golden"]) == 0
    _, said = other.communicate(timeout=300)
    assert other.returncode == 0, said[-2000:]

    forbid()
    monkeypatch.setattr("unmask.metrics.reading._score", None)
    assert main(["evaluate", *grid, "--plans", "iid", "golden", "iid@cosine"]) == 0
    said = json.loads((place / "split" / "results.json").read_text())
    assert len([cell for cell in said["cells"] if cell["steps"]]) == 3 * 2 * 2
    assert len({cell["record"]["texts"]["seed"] for cell in said["cells"] if cell["steps"]}) == 12


def test_bounds_alone_are_a_table_and_a_report_and_names_may_look_like_markup(place, capsys) -> None:
    command = ["evaluate", "--models", "t[raw]=teacher", "--steps", "2", "4", "--data", "text.txt"]
    command += ["--only_bounds", "--n", "8", "--device", "cpu"]
    assert main([*command, "--plans", "iid", "iid@cosine", "--out", "b"]) == 0
    said = capsys.readouterr().out
    assert "N-step NELBO" in said
    assert "NELBO less that of iid" in said
    assert said.count("t[raw]") == 3, "two plans, and one less the other"
    assert json.loads((place / "b" / "results.json").read_text())["cells"] == []
    assert "iid@cosine" in (place / "b" / "report.html").read_text()
    assert main([*command, "--plans", "iid", "--out", "one"]) == 0
    assert "NELBO less" not in capsys.readouterr().out  # no empty table


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--models", "teacher"], "NAME="),
        (["--models", "a=teacher", "a=student"], "'a'"),
        (["--models", "teacher=nowhere/teacher"], "nowhere/teacher"),
        (["--models", "ar=judge"], "give a masked model"),
        ([*MODELS, "--judge", "nowhere/judge"], "smollm2"),
        ([*MODELS, "--judge", "teacher"], "a judge reads from left to right"),
        ([*MODELS, "--data", "empty.txt"], "empty.txt"),
        ([*MODELS, "--data", "latin.txt"], "not UTF-8 text"),
        ([*MODELS, "--data", "text.txt", "--split", "validation"], "plain text and has no validation split"),
        ([*MODELS, "--texts", "mine=no.jsonl"], "cannot read no.jsonl"),
        (["--texts", "mine=odd.jsonl"], "odd.jsonl, line 2: no text there"),
        ([*MODELS, "--texts", "mine=one.txt"], "has one text"),
        (["--texts", "mine=empty.txt"], "has no text in it"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(place, refused, words: list[str], message: str) -> None:
    (place / "empty.txt").write_text("")
    (place / "one.txt").write_text("a b c\n")
    (place / "odd.jsonl").write_text('"a b"\n{"words": "c"}\n')
    (place / "latin.txt").write_bytes("café".encode("latin-1"))
    assert message in refused("evaluate", *words, "--steps", "2", "--device", "cpu", "--out", "mistake")


@pytest.mark.parametrize("verb", ["evaluate", "report"])
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("results.json", "mine", "holds results.json, which is not ours"),
        ("figures/frontier.svg", "mine", "holds figures, which is not ours"),
        ("unmask.json", '{"kind": "run"}', "is a run: name another --out"),
    ],
)
def test_files_of_somebody_else_are_not_replaced(evaluated, tmp_path, refused, verb, name, content, message) -> None:
    mine = tmp_path / "mine" / name
    mine.parent.mkdir(parents=True)
    mine.write_text(content)
    words = [*MODELS, *SMALL] if verb == "evaluate" else ["out"]
    assert message in refused(verb, *words, "--out", tmp_path / "mine")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [mine]
    assert mine.read_text() == content


def test_a_place_that_cannot_be_written_is_found_out_before_any_work(place, tmp_path, refused, monkeypatch) -> None:
    monkeypatch.setattr("unmask.studies.cells.sample", None)  # nothing is drawn
    (tmp_path / "file").write_text("mine")
    cells = ["--cells", str(tmp_path / "file"), "--out", str(tmp_path / "out")]
    for out in (["--out", str(tmp_path / "file")], ["--out", str(tmp_path / "file" / "deeper")], cells):
        assert refused("evaluate", *MODELS, *SMALL, *out).startswith(f"unmask: cannot write {tmp_path / 'file'}")
