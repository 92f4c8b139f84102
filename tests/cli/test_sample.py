"""`unmask sample` as a user meets it: text, records, what it shows while it writes, and what it refuses."""

import io
import json
import os
import re
import subprocess
import sys

import pytest

from unmask.checkpoint.io import load
from unmask.cli.main import main, open_streams
from unmask.core.errors import Terminated, UserError
from unmask.sampling.sample import Run
from unmask.sampling.verbs import sample
from unmask.studies.plans_on_grids import fitted_for_others, plans_on_grids

L = 24  # of the models in conftest.py


def strict(line):
    """JSON as other programs read it: no NaN."""
    return json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


# --- text and records -------------------------------------------------------------------------------------------------


def test_text_is_the_librarys_and_pipes_cleanly(unmask, folder):
    out, err = unmask("--steps", "5", "--seed", "3")
    made = sample(load(folder / "model"), 1, 5, seed=3, device="cpu")
    assert out == made.text[0] + "\n"  # nothing but the text
    nats = -float(made.log_q.sum()) / L
    assert re.fullmatch(
        rf"24 tokens in \d+\.\d\d s \([\d,]+ tokens/s\) · 5 forwards · {nats:.3f} nats/token · comb, drawn in float64"
        r" · seed 3 · .* CPU.*\n", err,
    ), err  # fmt: skip

    out, err = unmask("--n", "3", "--steps", "4", "--batch", "2")
    texts = sample(load(folder / "model"), 3, 4, device="cpu").text
    rules = re.findall(r"^── (\d) of 3 · 4 forwards · \d\.\d{3} nats/token ─+$", out, re.MULTILINE)
    assert rules == ["1", "2", "3"]
    assert all(text in out for text in texts)
    assert "\x1b" not in out.replace("".join(texts), "")  # no colours of ours
    assert err.count("\n") == 1


def test_json_lines_hold_the_run_and_every_sample(unmask, folder):
    words = ["--prompt", "once upon", "a wolf", "there", "--length", "24", "12", "20", "--steps", "3", "--seed", "1"]
    out, _ = unmask(*words, "--suffix", " time", "--json", "--top_k", "9")
    *records, run = map(strict, out.splitlines())
    made = sample(
        load(folder / "model"), 3, 3, prompt=["once upon", "a wolf", "there"], length=[24, 12, 20], suffix=" time",
        seed=1, top_k=9, device="cpu",
    )  # fmt: skip
    assert (run["kind"], run["n"], run["steps"]) == ("run", 3, 3)
    assert (run["plan"]["name"], run["grid"]["name"]) == ("comb", "rank")
    assert (run["draw"], run["seed"], run["top_k"], run["nfe"]) == ("float64", 1, 9, 3.0)
    assert [record["index"] for record in records] == [0, 1, 2]
    for i, (record, length) in enumerate(zip(records, (24, 12, 20), strict=True)):
        assert (record["kind"], record["text"], record["nfe"]) == ("sample", made.text[i], 3)
        assert record["tokens"] == made.tokens[i, :length].tolist()
        assert record["given"] == made.given[i, :length].tolist()
        assert record["token_log_q"] == pytest.approx(made.log_q[i, :length].tolist(), abs=1e-12)
        assert record["log_q"] == pytest.approx(sum(record["token_log_q"]))
        assert record["text"].startswith(words[1 + i])
        assert record["text"].endswith(" time")

    out, _ = unmask("--plan", "iid", "--grid", "mdlm", "--draw", "legacy_fp32", "--steps", "3", "--json")
    record, run = map(strict, out.splitlines())
    assert (run["draw"], record["log_q"], record["token_log_q"], record["nfe"]) == ("legacy_fp32", None, None, 4)


def test_a_pattern_is_filled_between_its_words(unmask):
    out, _ = unmask("once upon a ____ there ______.", "--n", "4", "--json")
    records = [strict(line) for line in out.splitlines()[:-1]]
    assert len({record["text"] for record in records}) == 4
    for record in records:
        assert record["given"].count(False) == 10
        assert re.fullmatch(r"once upon a.* there.*\.", record["text"], re.DOTALL)


@pytest.mark.parametrize(
    ("words", "plan", "steps", "forwards"),
    [
        ("--plan blocks --steps 6", "blocks(32, golden)", 6, 6),
        ("--plan blocks --block_size 8 --steps 6", "blocks(8, golden)", 6, 6),
        ("--plan blocks --block_size 8 --threshold 1e-9", "blocks(8, confidence)", None, 3),
        ("--plan blocks --block_size 10 --steps 24", "blocks(10, golden)", 24, 24),
        ("--plan confidence --threshold 1e-9", "confidence", None, 1),
        ("--plan entropy --threshold 1e-9", "entropy", None, 24),
        ("--plan entropy_bounded --threshold 1e-9", "entropy_bounded", None, 24),
        ("--plan entropy_bounded --block_size 8 --threshold 1e-9", "blocks(8, entropy_bounded)", None, 24),
        ("--block_size 8 --steps 6", "blocks(8, comb)", 6, 6),
        ("--plan confidence --block_size 12 --steps 6", "blocks(12, confidence)", 6, 6),
        ("--plan left_to_right --grid 0.75 0.5 0.25", "left_to_right", 4, 4),
        ("--plan stride --grid 0.5", "stride", 2, 2),
        ("--plan iid --grid fitted.json", "iid", 3, 3),
        ("--plan iid --grid fitted.json --steps 3", "iid", 3, 3),
        ("--plan iid --grid uniform --remask cap --eta 0.3 --steps 9", "iid", 9, 9),
    ],
)
def test_plans_and_grids_by_name(words, plan, steps, forwards, unmask, tmp_path):
    grid = {"grid": {"name": "fitted", "times": [1, 0.6, 0.3, 0], "by": "rank"}}
    (tmp_path / "fitted.json").write_text(json.dumps(grid))
    run = strict(unmask(*words.split(), "--json")[0].splitlines()[-1])
    assert (run["plan"]["name"], run["steps"]) == (plan, steps)
    assert ("threshold" in words) == (run["grid"] is None)
    assert ("1e-09" in json.dumps(run["plan"])) == ("threshold" in words)
    assert run["nfe"] == forwards or ("remask" in words and 1 < run["nfe"] <= forwards)  # steps may reveal nothing
    assert run["remask"] == ({"rule": "cap", "eta": 0.3} if "remask" in words else None)


@pytest.fixture
def fitted(tmp_path):
    """The file of a grid of 3 steps for golden, as `unmask fit-plan` writes it."""
    times = [[1, 0], [1, 0.4, 0], [1, 0.6, 0.3, 0]]
    content = {
        "grid": {"name": "fitted", "times": times[-1], "by": "rank"},
        "plan": "golden",
        "fitting_half": [{"steps": len(edges) - 1, "times": edges} for edges in times],
    }
    path = tmp_path / "fitted.json"
    path.write_text(json.dumps(content))
    return path


def test_a_fitted_grid_means_the_same_to_sample_and_evaluate(unmask, fitted):
    (one,) = plans_on_grids([f"golden@{fitted}"], [1, 2, 3])
    for steps in (1, 2, 3):
        run = strict(unmask("--grid", str(fitted), "--steps", str(steps), "--json")[0].splitlines()[-1])
        assert (run["grid"], run["steps"], run["nfe"]) == (one.at(steps).to_json(), steps, steps)
    said = unmask("--grid", "fitted.json", "--steps", "5", expect=2)[1]
    assert "fitted.json holds no grid of 5 steps, only of 1 to 3: take one of these, or fit one with" in said
    assert "steps must be at least 1, not 0" in unmask("--grid", "fitted.json", "--steps", "0", expect=2)[1]


def test_a_grid_that_was_fitted_for_another_plan_is_taken_and_said(unmask, fitted):
    (said,) = fitted_for_others(plans_on_grids([f"iid@{fitted.name}"], [3]), 3)
    out, err = unmask("--plan", "iid", "--grid", fitted.name)
    assert err.splitlines()[0] == said
    assert said not in out
    assert "was fitted for" not in unmask("--plan", "golden", "--grid", fitted.name)[1]


def test_more_steps_than_tokens_cost_nothing(unmask):
    run = "--plan", "golden", "--json"
    one_a_token, as_many = (unmask(*run, "--steps", steps)[0].splitlines() for steps in (str(L), "300"))
    assert strict(as_many[1])["nfe"] == strict(one_a_token[1])["nfe"] == L
    assert as_many[0] == one_a_token[0]


# --- texts as they come -----------------------------------------------------------------------------------------------


@pytest.fixture
def interrupted(monkeypatch):
    """Ctrl-C, or what is raised in its place, once so many batches are done."""

    def after(batches, kind=KeyboardInterrupt):
        made, begun = [], Run.batch

        def batch(run, indices, tokens):
            if len(made) == batches:
                raise kind
            made.append(indices)
            return begun(run, indices, tokens)

        monkeypatch.setattr(Run, "batch", batch)

    return after


@pytest.mark.parametrize(
    ("kind", "code", "word"), [(KeyboardInterrupt, 130, "interrupted"), (Terminated, 143, "terminated")]
)
def test_an_interrupt_keeps_what_is_done(kind, code, word, unmask, interrupted):
    words = ["--n", "5", "--steps", "2", "--batch", "2"]
    whole = unmask(*words)[0]
    interrupted(1, kind)
    out, err = unmask(*words, expect=code)
    assert err == f"unmask: {word}; 2 of 5 texts were printed\n"
    assert whole.startswith(out)
    assert "2 of 5" in out
    assert "3 of 5" not in out


def test_texts_come_in_order_whatever_is_done_first(unmask, interrupted):
    words = ["--steps", "2", "--n", "4", "--batch", "1", "--length", "24", "12", "24", "12"]  # equal lengths together
    assert re.findall(r"^── (\d) of 4", unmask(*words)[0], re.MULTILINE) == ["1", "2", "3", "4"]
    interrupted(2)
    assert re.findall(r"^── (\d) of 4", unmask(*words, expect=130)[0], re.MULTILINE) == ["1", "3"]


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_file_is_whole_or_not_there(unmask, interrupted, tmp_path, form):
    interrupted(1)
    words = ["--n", "4", "--batch", "2", "--out", "story.txt", *form]
    assert unmask(*words, expect=130) == ("", "unmask: interrupted; nothing was written\n")
    assert list(tmp_path.iterdir()) == []


def test_json_comes_line_by_line(unmask, interrupted):
    whole = unmask("--n", "4", "--batch", "2", "--json")[0].splitlines()
    interrupted(1)
    out, _ = unmask("--n", "4", "--batch", "2", "--json", expect=130)
    assert out.splitlines() == whole[:2]


def test_a_terminal_shows_the_step_and_wipes_it_before_a_text(unmask, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr("sys.stdout", screen)
    unmask("--steps", "4", "--n", "2", "--batch", "1")
    *_, pictures, last = screen.getvalue().split("── 2 of 2")
    assert re.search(r"step, 1 of 2 texts done.*4/4", pictures)
    assert re.search(r"\x1b\[2K\n(\x1b\[2m)?$", pictures)  # wiped, then the empty line between two texts
    assert "step" not in last
    monkeypatch.setenv("TERM", "dumb")
    unmask("--steps", "4")
    assert "step" not in screen.getvalue().split("── 2 of 2")[-1]


# --- files ------------------------------------------------------------------------------------------------------------


def test_out_holds_what_stdout_would(unmask, tmp_path):
    shown, _ = unmask("--n", "2", "--steps", "2")
    (tmp_path / "story.txt").write_text("an older one")
    out, err = unmask("--n", "2", "--steps", "2", "--out", "story.txt")
    assert (out, err.count("\n")) == ("", 1)
    assert (tmp_path / "story.txt").read_text(encoding="utf-8") == shown
    assert [path.name for path in tmp_path.iterdir()] == ["story.txt"]


def test_no_encoding_of_stdout_loses_the_text(unmask, folder, tmp_path):
    """In a locale that lacks what the model writes, a file or a pipe gets the bytes that --out writes: UTF-8."""
    words = ["--n", "4", "--steps", "2", "--prompt", "日本語 🙂"]
    unmask(*words, "--out", "story.txt")
    command = [sys.executable, "-m", "unmask", "sample", *words, "--model", str(folder / "model"), "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, check=True, env=os.environ | {"PYTHONIOENCODING": "cp1252"})
    assert (tmp_path / "story.txt").read_bytes() == done.stdout
    assert done.stdout.decode().count("日本語 🙂") == 4


def test_a_terminal_shows_what_it_has(monkeypatch):
    class Terminal(io.TextIOWrapper):
        def isatty(self):
            return True

    shown = io.BytesIO()
    monkeypatch.setattr("sys.stdout", Terminal(shown, encoding="latin-1"))
    open_streams()
    print("naïve 日本", flush=True)
    assert shown.getvalue() == "naïve ??\n".encode("latin-1")
    monkeypatch.setattr("sys.stdout", io.StringIO())  # a program's own stream is left as it is
    open_streams()


def test_in_python_the_same(folder):
    model = str(folder / "model")
    made = sample(model, prompt=["once", "a wolf"], steps=2, plan="blocks", block_size=8, device="cpu")
    assert [text[:4] for text in made.text] == ["once", "a wo"]
    assert made.record["plan"]["name"] == "blocks(8, golden)"
    with pytest.raises(UserError, match="steps takes a whole number, not '8'"):
        sample(model, steps="8")


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--steps", "0"], "steps must be at least 1, not 0"),
        (["--temperature", "-1"], "temperature must be at least 0"),
        (["--top_p", "0"], "top_p must be above 0 and at most 1"),
        (["--top_k", "0"], "top_k must be at least 1"),
        (["--batch", "0"], "batch must be at least 1"),
        (["--prompt", "a", "b", "--n", "3"], "2 entries for 3 samples"),
        (["--plan", "goldn"], "did you mean 'golden'?"),
        (["--grid", "unifrom"], "did you mean 'uniform'?"),
        (["--grid", "0.5", "rank"], "--grid takes a text or several numbers, not '0.5 rank'"),
        (["--grid", "0.2", "0.8"], "must fall from 1 to 0"),
        (["--grid", "nowhere.json"], "nowhere.json: it does not exist"),
        (["--threshold", "0.5"], "threshold is for the plans confidence, entropy, entropy_bounded and blocks"),
        (["--threshold", "-1", "--plan", "confidence"], "threshold on probability must be"),
        (["--block_size", "0", "--plan", "blocks"], "at least 1 position"),
        (["--eta", "0.1"], "eta belongs to remask"),
        (["--remask", "cap"], "take plan iid"),
        (["--remask", "rescael"], "did you mean 'rescale'?"),
        (["--draw", "legacy_fp32"], "take plan iid, grid mdlm"),
        (["--draw", "float46"], "did you mean 'float64'?"),
        (["--gif", "film.png"], "must end in .gif"),
        (["--out", "."], "it is a folder, not a file"),
        (["--out", os.devnull], "a device or a pipe, not a file"),
        (["--out", "new/story.txt", "--top_p", "0"], "top_p must be"),  # no folder is left behind
        (["--threshold", "inf", "--plan", "entropy"], "a finite entropy in nats above 0"),
    ],
)
def test_mistakes_are_one_line(words, said, unmask, tmp_path):
    assert said in unmask(*words, expect=2)[1]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--out story.txt", "--gif film.gif", "--html film.html"])
def test_a_file_that_cannot_be_written_is_found_out_before_any_work(option, unmask, tmp_path, monkeypatch):
    flag, name = option.split()
    monkeypatch.setattr("unmask.cli.sample.load", lambda *_, **__: pytest.fail("read the model first"))
    (tmp_path / "file").write_text("mine")
    (tmp_path / name).mkdir()
    for place, said in ((f"file/{name}", "a part of the path is a file"), (name, "it is a folder")):
        assert unmask(flag, place, expect=2)[1].startswith(f"unmask: cannot write {place}: {said}")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.permissions
def test_a_folder_without_permission_is_found_out_before_any_work(tmp_path, capsys):
    """The model that the command names does not exist."""
    (tmp_path / "shut").mkdir(mode=0o500)
    for target in (tmp_path / "shut" / "story.txt", tmp_path / "shut" / "new" / "folder" / "story.txt"):
        assert main(["sample", "--model", "nowhere/at/all", "--out", str(target)]) == 2
        assert capsys.readouterr().err.startswith(f"unmask: cannot write {target}: permission denied")


def test_models_that_cannot_serve_are_one_line(unmask, refused, monkeypatch):
    assert "no mask state" in unmask(model="causal", expect=2)[1]
    monkeypatch.setattr("unmask.checkpoint.locate.bundled", dict)
    assert "'pocket'" in refused("sample")


def test_a_first_text_waits_for_no_import_it_does_not_need(folder):
    """Each of these costs up to seconds of a cold start."""
    heavy = ["torch._dynamo", "torch._inductor", "sympy", "matplotlib", "PIL", "rich", "tensorboard", "transformers"]
    program = (
        "import sys; from unmask.cli.main import main; main(sys.argv[1:]); "
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    command = [sys.executable, "-c", program, "sample", "--model", str(folder / "model"), "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
