"""`unmask fit-plan` as a user meets it."""

import json

import numpy as np
import pytest
import torch

from unmask.checkpoint.io import Checkpoint, load, save
from unmask.cli.fit_plan import verdict
from unmask.cli.main import main
from unmask.data.shards import ShardSet
from unmask.metrics.score import Score
from unmask.metrics.texts import held_out
from unmask.models.dit.network import DiT
from unmask.plans.grids import make_grid, read_grid
from unmask.sampling.verbs import sample
from unmask.studies.fit_plan import Worth, fit_on


@pytest.fixture(scope="module")
def place(tmp_path_factory, write_corpus):
    """A model with random weights and a corpus with its tokenizer; one of another; one with too little text."""
    folder = tmp_path_factory.mktemp("fit-plan")
    tokens = np.random.default_rng(0).integers(6, size=1000)
    write_corpus(folder / "shards", tokens, tokens[:400], 6)
    write_corpus(folder / "other", tokens, tokens[:400], 9)
    write_corpus(folder / "short", tokens, tokens[:40], 6)
    torch.manual_seed(0)
    model = DiT(vocab_size=7, length=16, hidden=16, cond=8, blocks=1, heads=2)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.5)
    save(Checkpoint(model, tokenizer=ShardSet.open(folder / "shards").tokenizer()), folder / "model")
    save(Checkpoint(model), folder / "wordless")
    causal = DiT(vocab_size=7, length=16, hidden=16, cond=8, blocks=1, heads=2, causal=True)
    save(Checkpoint(causal), folder / "causal")
    return folder


def line(place, words):
    how = "--steps 4 --texts 10 --device cpu --plans golden"
    return f"fit-plan --model {place}/model --data {place}/shards {how} {words}".split()


def run(place, words):
    return main(line(place, words))


def test_a_table_a_picture_and_a_file_that_sample_reads(place, tmp_path, capsys):
    out = tmp_path / "new" / "grid.json"
    assert run(place, f"--seed 5 --out {out}") == 0
    shown = capsys.readouterr().out
    written = json.loads(out.read_text())
    for name in ("fitted", "rank", "cosine"):
        assert f"{written['nelbo'][name]['nats']:.4f} ± {written['nelbo'][name]['stderr']:.4f}" in shown
    for name in ("rank", "cosine"):
        assert f"{written['nelbo'][name]['fitted_minus_this']['nats']:+.4f}" in shown
    stripes = {line.split()[0]: line.split()[1] for line in shown.splitlines() if "░" in line}
    assert stripes["rank"] == "█" * 16 + "░" * 16 + "█" * 16 + "░" * 16
    edges = [0, *np.cumsum(written["nelbo"]["fitted"]["tokens_a_step"])]
    assert stripes["fitted"] == "".join("█░"[k % 2] * round(4 * (edges[k + 1] - edges[k])) for k in range(4))
    assert max(map(len, shown.splitlines())) <= 80 + len(str(out)) * 2
    assert (written["plan"], written["steps"], len(written["grid"]["times"])) == ("golden", 4, 5)
    assert written["record"]["texts"] | {"sha256": ""} == {
        "fitted_on": 5, "measured_on": 5, "clusters": 5, "length": 16, "sha256": "", "data": [str(place / "shards")],
        "split": "validation", "wrap": False,
    }  # fmt: skip
    assert list(read_grid(out).times) == written["grid"]["times"]
    drawn = sample(load(place / "model"), 2, grid=out, device="cpu")
    assert drawn.record["grid"]["name"] == "fitted"
    assert drawn.nfe.tolist() == [4, 4]


def test_its_errors_are_those_of_the_documents_of_all_folders(place, write_corpus, tmp_path):
    """Twelve documents of four blocks each, in one folder or in two."""
    letters = np.random.default_rng(2).integers(5, size=(12, 64))
    letters[:, -1] = 5  # the end of a document
    x_TL = torch.from_numpy(letters).view(48, 16)
    how = {"document_T": torch.arange(48) // 4, "device": "cpu", "plans": ["golden"]}
    expected = fit_on(load(place / "model"), x_TL, 4, **how).to_json()
    write_corpus(tmp_path / "whole", letters.flatten(), letters.flatten(), 6)
    write_corpus(tmp_path / "first", letters.flatten(), letters[:5].flatten(), 6)
    write_corpus(tmp_path / "rest", letters.flatten(), letters[5:].flatten(), 6)
    for folders in ("{0}/whole", "{0}/first {0}/rest"):
        out = tmp_path / "grid.json"
        assert run(place, f"--data {folders.format(tmp_path)} --texts 48 --out {out} --overwrite") == 0
        written = json.loads(out.read_text())
        assert written["record"]["texts"]["clusters"] == 6
        assert written["nelbo"] == expected["nelbo"]


def test_plain_text_is_read_as_evaluate_reads_it(place, tmp_path, refused):
    letters = np.random.default_rng(1).integers(5, size=200)
    file = tmp_path / "text.jsonl"
    file.write_text("".join(json.dumps({"text": chr(ord("a") + i)}) + "\n" for i in letters))
    out = tmp_path / "grid.json"
    assert run(place, f"--data {file} --precision fp32 --out {out}") == 0
    record = json.loads(out.read_text())["record"]
    texts = held_out(file, load(place / "model").tokenizer, 16, count=10)
    assert (record["texts"]["sha256"], record["texts"]["data"]) == (texts.record["sha256"], [str(file)])
    assert (record["texts"]["split"], record["precision"]) == (None, "float32")
    for words, said in {
        f"--data {file} --split test": "plain text and has no test split",
        f"--data {file} {place}/shards": "text.jsonl",  # only prepared folders go together
        f"--data {file} --model {place}/wordless": "no tokenizer to read text with",
        "--data sample": "sample has",  # as a text of one token a book
        "--data smaple": "did you mean 'sample'?",
    }.items():
        assert said in refused(*line(place, f"{words} --out {tmp_path}/other.json"))


def test_json_is_what_was_written_and_the_same_seed_gives_it_again(place, tmp_path, capsys):
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    assert run(place, f"--plans iid --levels 9 --batch 3 --out {first} --json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == json.loads(first.read_text())
    assert run(place, f"--plans iid --levels 9 --batch 3 --out {second} --json") == 0
    again = json.loads(capsys.readouterr().out)
    for moment in (shown, again):
        moment["record"].pop("time")
    assert again == shown


@pytest.mark.parametrize(
    ("gap", "half", "words"),
    [
        (-0.03, 0.02, "better than `rank`"),
        (0.03, 0.02, "worse than `rank`"),
        (-0.01, 0.02, "cannot be distinguished from"),
    ],
)
def test_the_verdict_is_against_the_best_rival_and_knows_its_noise(gap, half, words):
    def score(nats, half):
        return Score(nats, 8, nats - half, nats + half, half / 3, "nats/token")  # of few documents: wider than 2 errors

    def worth(nats, gap, half):
        return Worth(make_grid("rank", 2), score(nats, 0.5), score(gap, half), 2.0, (1.0, 1.0))

    rivals = {"rank": worth(2.0, gap, half), "cosine": worth(3.0, gap - 1, half)}
    assert words in verdict({"fitted": worth(2.0 + gap, 0.0, 0.0), **rivals})


def test_a_file_is_replaced_only_when_asked(place, tmp_path, refused):
    out = tmp_path / "grid.json"
    out.write_text("mine")
    assert "--overwrite" in refused(*line(place, f"--out {out}"))
    assert out.read_text() == "mine"
    assert run(place, f"--out {out} --overwrite") == 0
    assert read_grid(out).steps == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--plans golde", "'golden'"),
        ("--texts 3", "--texts must be at least 4"),
        ("--out {}/grid.txt", ".json"),
        ("--out {}/model/config.json/grid.json --model {}/nowhere", "cannot write"),  # before any work
        ("--data {}/nowhere", "nowhere"),
        ("--data {}/other", "wrong tokenizer"),
        ("--data {}/short", "2 texts of 16 tokens"),
        ("--split test", "0 tokens"),
        ("--model {}/causal", "causal"),
        ("--step 4", "--steps"),
    ],
)
def test_mistakes_are_one_line(place, tmp_path, refused, words, said):
    out = tmp_path / "grid.json"
    assert said in refused(*line(place, f"--out {out} {words.replace('{}', str(place))}"))
    assert not out.exists()
