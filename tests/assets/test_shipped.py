"""The models in the package: whole, small, theirs to give, and ready for a newcomer."""

import json
import re

import pytest
import torch

from unmask.checkpoint.identity import weights_hash
from unmask.checkpoint.io import load
from unmask.checkpoint.locate import bundled
from unmask.cli.main import main
from unmask.core.files import sha256_file
from unmask.data.tokenizer import Tokenizer
from unmask.metrics.judges import load_judge
from unmask.metrics.nelbo import nelbo
from unmask.metrics.texts import held_out

# The release's models: weights are committed once, so a name is added here in the commit that adds its folder.
SHIPPED, HEADS = ["pocket", "pocket-judge", "pocket-mcd"], ["pocket-chain"]
NAMES = sorted({*SHIPPED, *bundled()} - {*HEADS})
MOST = 40_000_000  # bytes of all of them together


def test_what_is_said_to_ship_is_there_and_small():
    assert sorted(bundled()) == sorted([*SHIPPED, *HEADS])
    assert sum(file.stat().st_size for folder in bundled().values() for file in folder.iterdir()) <= MOST


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_model_is_whole_and_says_what_it_is(name):
    folder = bundled()[name]
    files = {"README.md", "config.json", "model.safetensors", "provenance.json", "tokenizer.json"}
    assert {file.name for file in folder.iterdir()} == files
    checkpoint = load(name)  # checks every sha256
    assert {parameter.dtype for parameter in checkpoint.model.parameters()} == {torch.bfloat16}
    card = (folder / "README.md").read_text(encoding="utf-8")
    for file in ("model.safetensors", "tokenizer.json"):
        assert f"{sha256_file(folder / file)}  {file}" in card
    assert "| licence | Apache-2.0" in card
    assert "public domain" in card
    assert re.search(r"^\| held-out text \| \d+\.\d+ ± ", card, re.MULTILINE)
    assert checkpoint.tokenizer.hash == Tokenizer.load(name).hash == Tokenizer.load("pocket").hash


@pytest.mark.parametrize("name", [*NAMES, *HEADS])
def test_a_shipped_model_names_no_folder_of_anybody(name):
    for file in ("README.md", "provenance.json", "config.json"):
        text = (bundled()[name] / file).read_text(encoding="utf-8")
        assert not re.search(r"""["'`(\s](/\w|[A-Za-z]:\\)""", text), f"{name}/{file}"


def test_the_shipped_student_was_distilled_from_the_shipped_teacher():
    teacher = json.loads((bundled()["pocket-mcd"] / "provenance.json").read_text())["config"]["facts"]["teacher"]
    assert teacher == {"source": "pocket", "weights": weights_hash(load("pocket").model)}


def test_the_shipped_head_is_worth_in_two_steps_what_its_card_says():
    folder = bundled()["pocket-chain"]
    assert f"{sha256_file(folder / 'model.safetensors')}  model.safetensors" in (folder / "README.md").read_text()
    head, alone = load("pocket-chain"), load("pocket")
    assert weights_hash(head.model) == weights_hash(alone.model), "the model itself is not touched"
    shown = held_out("sample", alone.tokenizer, alone.model.length, count=8)
    known, unknown = (nelbo(one, shown, 2, plan="comb", device="cpu").per_token.value for one in (head, alone))
    assert unknown - known > 0.35  # 0.466 on its own held-out books


def test_sample_without_a_word_writes_text(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["sample"]) == 0
    said = capsys.readouterr()
    letters = re.findall(r"[A-Za-z]", said.out)
    assert len(letters) > 300
    assert "32 forwards" in said.err


@torch.no_grad()
def test_the_shipped_judge_prefers_a_sentence_to_its_words_in_alphabetical_order():
    judge = load_judge("pocket-judge", device="cpu")
    text = "It was a bright morning, and the old man walked slowly down to the sea with his dog at his side."
    scores = []
    for said in (text, " ".join(sorted(text.split()))):
        ids_BT = torch.tensor(judge.encode([said]))
        log_p_BTV = judge.logits(ids_BT).log_softmax(-1)
        scores.append(float(log_p_BTV[:, :-1].gather(-1, ids_BT[:, 1:, None]).mean()))
    assert scores[0] > scores[1] + 0.5
