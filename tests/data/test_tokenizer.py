"""Tokenizers: GPT-2's published ids, exact round trips, one hash for one tokenizer, and files that are none."""

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from unmask.core.errors import UserError
from unmask.data.tokenizer import Tokenizer

Prose = Callable[[int, int], str]


@pytest.fixture(scope="module")
def gpt2() -> Tokenizer:
    return Tokenizer.load("gpt2")


def test_against_gpt2_published_ids(gpt2: Tokenizer) -> None:
    assert gpt2.encode("hello world") == [31373, 995]
    assert gpt2.encode("Hello, I'm a language model,") == [15496, 11, 314, 1101, 257, 3303, 2746, 11]
    assert (gpt2.size, gpt2.eos_id, gpt2.bos_id) == (50257, 50256, 50256)


@pytest.mark.parametrize("name", ["gpt2", "small"])
def test_any_text_comes_back_and_holds_no_end_of_document(name: str, gpt2: Tokenizer, small: Tokenizer) -> None:
    tokenizer = {"gpt2": gpt2, "small": small}[name]
    draw = random.Random(0)
    letters = [chr(draw.randrange(1, 0xD800)) for _ in range(300)] + list("aeiou \n\t'") * 20 + ["<|endoftext|>", "😀"]
    texts = ["".join(draw.choices(letters, k=draw.randrange(60))) for _ in range(200)]
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        assert tokenizer.decode(ids) == text
        assert ids == tokenizer.encode(text)
        assert tokenizer.eos_id not in ids
        assert all(i < tokenizer.size for i in ids)


def test_training_gives_the_same_tokenizer_in_every_process(tmp_path: Path, small: Tokenizer, prose: Prose) -> None:
    (tmp_path / "texts.json").write_text(json.dumps([prose(seed, 400) for seed in range(4)]), encoding="utf-8")
    script = (
        "import json, sys; from unmask.data.tokenizer import Tokenizer\n"
        f"print(Tokenizer.train(json.load(open({str(tmp_path / 'texts.json')!r})), 300).hash)"
    )
    for hash_seed in ("1", "2"):
        command, environment = [sys.executable, "-c", script], {"PYTHONHASHSEED": hash_seed}
        found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert found.stdout.strip() == small.hash
    assert small.size == 300


def test_the_hash_names_the_tokenizer_and_not_its_spelling(tmp_path: Path, small: Tokenizer) -> None:
    spread_out = json.dumps(json.loads(small.to_json()), indent=3)
    (tmp_path / "tokenizer.json").write_text(spread_out, encoding="utf-8")
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        again = Tokenizer.load(path)
        assert again.hash == small.hash
        assert again.name == tmp_path.name
    changed = json.loads(spread_out)
    changed["model"]["merges"].pop()
    assert Tokenizer(json.dumps(changed)).hash != small.hash


def test_what_is_no_tokenizer_is_refused(tmp_path: Path, small: Tokenizer) -> None:
    with pytest.raises(UserError, match="did you mean 'gpt2'"):
        Tokenizer.load("gtp2")
    for content in (b"{}", b"\xff\xfe", b'{"model": 1}'):
        (tmp_path / "bad.json").write_bytes(content)
        with pytest.raises(UserError, match=r"tokenizer .*bad\.json is damaged .* give a valid tokenizer"):
            Tokenizer.load(tmp_path / "bad.json")
    endless = json.loads(small.to_json())
    endless["added_tokens"] = []
    del endless["model"]["vocab"]["<|endoftext|>"]
    with pytest.raises(UserError, match="end-of-document"):
        Tokenizer(json.dumps(endless))
    with pytest.raises(UserError, match="257"):
        Tokenizer.train(["text"], 256)


def test_a_models_tokenizer_goes_by_its_name_its_folder_or_its_run(tmp_path, small, monkeypatch):
    for folder in ("package/assets/minnow", "run/checkpoint", "elsewhere/minnow"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "tokenizer.json").write_text(small.to_json(), encoding="utf-8")
    monkeypatch.setattr("unmask.data.tokenizer.resources.files", lambda name: tmp_path / "package")
    for source in ("minnow", tmp_path / "run", tmp_path / "run" / "checkpoint"):
        assert Tokenizer.load(source).hash == small.hash
    with pytest.raises(UserError, match=r"no tokenizer 'minow': did you mean 'minnow'\? bundled: gpt2, minnow"):
        Tokenizer.load("minow")
    monkeypatch.chdir(tmp_path / "elsewhere")  # what is here goes before what is bundled
    (tmp_path / "elsewhere" / "minnow" / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match=r"tokenizer.json is damaged"):
        Tokenizer.load("minnow")


def test_rows_are_decoded_together_as_each_alone():
    tokenizer = Tokenizer.load("gpt2")
    rows = [tokenizer.encode("the sea "), [], [*tokenizer.encode("ä 東"), tokenizer.size]]  # the last id is no token
    assert tokenizer.decode_batch(rows) == [tokenizer.decode(row) for row in rows] == ["the sea ", "", "ä 東"]
