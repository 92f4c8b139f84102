"""`unmask distill` as a user types it: a whole run with its table, and each mistake as one line and exit code 2."""

import json
import math
import shutil
from itertools import product
from pathlib import Path

import pytest
import torch
import yaml

import unmask
from unmask.checkpoint.identity import weights_hash
from unmask.checkpoint.io import load
from unmask.cli.main import main
from unmask.training.rounds import takes

QUICK = "--device cpu --no-tensorboard --no-progress"
OPTIONS = f"--rounds 2 --round_steps 3 --delta 0.1 --batch 4 --eval_batches 1 --save_every 2 --samples 4 {QUICK}"


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A corpus, one of another tokenizer, a teacher and a causal judge."""
    folder = tmp_path_factory.mktemp("place")
    words = product(("big", "small", "old"), ("cat", "dog", "owl"), ("mat", "wall", "moon"))
    text = "".join(f"the {size} {animal} sat on the {place}.\n" for size, animal, place in words)
    (folder / "text.txt").write_text(text * 20)
    for name, size in (("corpus", "280"), ("other", "270")):
        assert main(["prepare", str(folder / "text.txt"), "--vocab_size", size, "--out", str(folder / name)]) == 0
    for name, kind in (("teacher", "mdlm"), ("judge", "ar")):
        words = f"--preset tiny --length 12 --steps 6 --lr 1e-2 --batch 8 --eval_batches 1 --objective {kind} {QUICK}"
        assert main(["train", "--data", str(folder / "corpus"), *words.split(), "--out", str(folder / name)]) == 0
    return folder


def command(place, *words) -> list:
    return ["distill", "--data", place / "corpus", "--teacher", place / "teacher", *OPTIONS.split(), *words]


def run(capsys, place, *words: str) -> tuple[int, str, str]:
    code = main([str(word) for word in command(place, *words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_whole_run_with_a_judge(capsys, place, tmp_path):
    out = tmp_path / "run"
    code, shown, _ = run(capsys, place, "--out", str(out), "--judge", str(place / "judge"), "--sample_steps", "3")
    assert code == 0
    for word in ("round 1", "round 2", "teacher", "T=0.893", "Gen PPL", "entropy", "ELBO", "NFE"):
        assert word in shown

    table = json.loads((out / "rounds.json").read_text())
    rows = table["rows"]
    assert [(row["name"], row["temperature"]) for row in rows] == [
        ("teacher", 1), ("teacher", pytest.approx(0.96 * 0.93)), ("round 1", 1), ("round 2", 1),
    ]  # fmt: skip
    assert all(row["nfe"] == 3 and row["gen_ppl"]["value"] > 1 for row in rows)
    assert (table["judge"]["protocol"], table["plan"], table["grid"]) == ("mdlm", "comb", "rank")
    # a row says what anyone can find again with the loadable student of the round
    student = unmask.load(out / "rounds/2")
    drawn = unmask.sample(student, 4, 3, device="cpu").tokens
    shares = [torch.bincount(row) / len(row) for row in drawn]
    entropy = [-sum(p * math.log(p) for p in share.tolist() if p) for share in shares]
    assert rows[-1]["entropy"]["value"] == pytest.approx(sum(entropy) / 4)
    assert rows[-1]["elbo"] == student.provenance["score"]
    assert rows[-1]["round"]["delta"] == pytest.approx(0.2)

    # the student knows its teacher by place and by weights
    teacher = student.provenance["config"]["facts"]["teacher"]
    assert teacher["weights"] == weights_hash(load(teacher["source"]).model)
    assert Path(teacher["source"]) == place / "teacher"

    # again: nothing to train, the same table, wherever the teacher lies now
    moved = tmp_path / "moved"
    shutil.copytree(place / "teacher", moved)
    words = f"--out {out} --judge {place / 'judge'} --sample_steps 3 --teacher {moved} --json".split()
    code, shown, said = run(capsys, place, *words)
    assert (code, json.loads(shown)["rows"]) == (0, rows)
    assert "is finished" in said


def test_the_table_is_drawn_on_the_plan_of_the_run_and_says_so(capsys, place, tmp_path):
    out = tmp_path / "run"
    code, shown, _ = run(capsys, place, "--out", str(out), "--sample_steps", "3", "--plan", "iid")
    assert code == 0
    assert "4 samples in 3 steps on the plan iid;" in " ".join(shown.split())
    table = json.loads((out / "rounds.json").read_text())
    assert (table["plan"], table["grid"]) == ("iid", "uniform")
    drawn = unmask.sample(unmask.load(out / "rounds/2"), 4, 3, device="cpu", plan="iid", grid="uniform")
    assert table["rows"][-1]["nfe"] == pytest.approx(float(drawn.nfe.double().mean()))


def test_a_duo_is_distilled_in_rounds_with_a_table(capsys, place, tmp_path):
    """The same rounds, guard, files and table as of any method; and stopped in between, the same student to the bit."""
    teacher, corpus = tmp_path / "duo", place / "corpus"
    words = f"--process uniform --preset tiny --length 12 --steps 2 --batch 4 --eval_batches 1 {QUICK}"
    assert main(["train", "--data", str(corpus), *words.split(), "--out", str(teacher)]) == 0
    words = f"--method dcd --teacher {teacher} --data {corpus} {OPTIONS} --sample_steps 3"
    assert main(["distill", *words.split(), "--out", str(tmp_path / "whole")]) == 0
    assert "on the plan ancestral;" in " ".join(capsys.readouterr().out.split())
    table = json.loads((tmp_path / "whole/rounds.json").read_text())
    assert (table["plan"], [row["nfe"] for row in table["rows"]]) == ("ancestral", [3, 3, 3])
    said = [json.loads(line) for line in (tmp_path / "whole/metrics.jsonl").read_text().splitlines()]
    assert [(one["round"], one["delta"]) for one in said if "loss" in one][-1] == (2, 0.2)
    parts = tmp_path / "parts"
    assert main(["distill", *words.replace("--rounds 2", "--rounds 1").split(), "--out", str(parts)]) == 0
    assert main(["distill", *words.split(), "--out", str(parts)]) == 0
    whole, again = (load(folder / "rounds/2").model for folder in (tmp_path / "whole", parts))
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), again.parameters(), strict=True))
    assert main(["distill", *words.replace("dcd", "sdtt").split(), "--out", str(tmp_path / "no")]) == 2
    assert "SDTT rolls out a masked process" in capsys.readouterr().err


def test_a_student_starts_as_its_teacher(capsys, place, tmp_path):
    for method in ("mcd", "sdtt", "cd4lm", "elbo"):
        words = f"--lr 1e-30 --rounds 1 --round_steps 1 --method {method} --guard off --batch 4 --eval_every 0 {QUICK}"
        words += " --delta 0.1" if method in ("mcd", "sdtt") else ""
        folders = f"--data {place / 'corpus'} --teacher {place / 'teacher'} --out {tmp_path / method}"
        assert main(["distill", *words.split(), *folders.split()]) == 0
        begun, ended = load(place / "teacher").model, load(tmp_path / method / "rounds/1").model
        assert all(torch.allclose(a, b) for a, b in zip(begun.parameters(), ended.parameters(), strict=True))
    assert "ELBO" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--data", "OTHER"], "wrong tokenizer"),
        (["--teacher", "JUDGE"], "is a causal model and has no mask state"),
        (["--teacher", "nowhere"], "no checkpoint 'nowhere'"),
        (["--rounds", "5"], "reaches 1.6 in round 5, but must stay below 1"),
        (["--tau", "0"], "must stay above 0"),
        (["--delta", "-1"], "0 < delta < 1"),
        (["--method", "elbo"], "delta is a setting of mcd, sdtt"),
        (["--divergence", "revers"], "did you mean 'reverse'?"),
        (["--reduction", "sum", "--method", "sdtt"], "reduction is a setting of mcd"),
        (["--round_steps", "0"], "at least 1 optimiser step"),
        (["--eval_every", "0"], "--guard off"),
        (["--guard", "off", "--elbo_rise", "1"], "no guard to keep --elbo_rise: leave it out, or say --guard warn"),
        (["--judge", "TEACHER"], "is a masked model: a judge reads from left to right"),
        (["--samples", "1"], "samples must be at least 2"),
        (["--length", "13"], "13 tokens are longer than the model's 12"),
        (["--length", "0"], "a block of 0 tokens is too short"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_leaves_nothing(refused, place, tmp_path, words, line):
    names = {"OTHER": "other", "JUDGE": "judge", "TEACHER": "teacher"}
    given = [str(place / names[word]) if word in names else word for word in words]
    assert line in refused(*command(place, "--out", tmp_path / "run", *given))
    assert not (tmp_path / "run").exists()


def test_a_folder_of_another_config_is_left_as_it_is(capsys, refused, place, tmp_path):
    out = tmp_path / "run"
    assert run(capsys, place, "--out", str(out), "--rounds", "1")[0] == 0
    (out / "state/step-00000003").rename(tmp_path / "last")  # as if interrupted
    shutil.rmtree(out / "rounds")
    before = files(out)
    for words, line in (
        (["--tau", "0.9"], "objective.curriculum.tau_start 0.96 -> 0.9"),
        (["--method", "sdtt"], "objective.method.name mcd -> sdtt"),
        (["--snapshot", "ema"], "objective.snapshot raw -> ema"),
        (["--seed", "1"], "trainer.seed 0 -> 1"),
    ):
        assert line in refused(*command(place, "--out", out, "--rounds", "1", *words))
        assert files(out) == before
    teacher = files(place / "teacher")
    assert "another config" in refused(*command(place, "--out", place / "teacher"))  # a slip of the hand
    assert files(place / "teacher") == teacher
    assert run(capsys, place, "--out", str(out), "--rounds", "2")[0] == 0  # goes on, with one round more
    assert sorted(path.name for path in (out / "rounds").iterdir()) == ["1", "2"]


@pytest.mark.parametrize("recipe", ["demo-distill", "mcd-owt", "pocket-distill"])
def test_bundled_recipes_are_valid(capsys, recipe):
    assert main(["distill", "--config", recipe, "--print_config"]) == 0
    chosen = yaml.safe_load(capsys.readouterr().out)
    assert chosen["method"] == "mcd"
    if recipe != "demo-distill":  # a race changes --method alone: nothing in the recipe may be one method's own
        assert [key for key in takes("mcd") if chosen[key] is not None] == []


def test_in_python_too_from_a_model_in_memory(place, tmp_path):
    common = {"rounds": 1, "round_steps": 2, "delta": 0.1, "batch": 4, "eval_batches": 1, "samples": 4, "device": "cpu"}
    teacher, corpus = unmask.load(place / "teacher"), place / "corpus"
    student = unmask.distill(teacher, corpus, method="mcd", progress=False, out=tmp_path / "run", **common)
    again = unmask.distill(str(place / "teacher"), [str(corpus)], progress=False, **common)  # in memory alone
    assert weights_hash(student.model) == weights_hash(again.model) == weights_hash(load(tmp_path / "run").model)
    assert (tmp_path / "run" / "rounds.json").exists()
    with pytest.raises(unmask.UserError, match="rounds takes a whole number, not '5'"):
        unmask.distill(teacher, corpus, rounds="5")
