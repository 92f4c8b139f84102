"""Shards on disk: reads across files, and every way a folder can be damaged, unfinished or someone else's."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from unmask.core.errors import UserError
from unmask.core.files import claim_folder
from unmask.data.shards import Shard, ShardSet, check_tokenizer, dtype_for
from unmask.data.tokenizer import Tokenizer


def test_a_split_reads_as_one_stream(shard_set: Callable[..., ShardSet]) -> None:
    whole = np.arange(100) % 300
    tokens = shard_set("corpus", [whole[:40], whole[40:41], whole[41:]]).tokens("train")
    assert len(tokens) == 100
    for start in range(0, 101, 3):
        for stop in range(start, 101, 7):
            assert np.array_equal(tokens[start:stop], whole[start:stop])
    assert np.array_equal(tokens[95:200], whole[95:])


def test_the_type_holds_the_mask_too(small: Tokenizer) -> None:
    def of_size(size: int) -> Tokenizer:
        tokenizer = Tokenizer(small.to_json(), "sized")
        tokenizer.size = size
        return tokenizer

    assert [dtype_for(of_size(size)) for size in (50257, 65535, 65536)] == ["uint16", "uint16", "uint32"]


def test_damage_is_found_and_named(shard_set: Callable[..., ShardSet]) -> None:
    folder = shard_set("corpus", [np.arange(50), np.arange(60)]).folder
    ShardSet.open(folder).verify()
    shard = folder / "train-1.bin"
    whole = shard.read_bytes()

    shard.write_bytes(whole[:-1])
    with pytest.raises(UserError, match=r"train-1.bin is damaged \(119 bytes where the index says 60 tokens\)"):
        ShardSet.open(folder)
    shard.write_bytes(whole[:-1] + b"\x01")  # the right size, so only a full reading can tell
    with pytest.raises(UserError, match=r"train-1.bin is damaged .its sha256"):
        ShardSet.open(folder).verify()
    with pytest.raises(UserError, match="damaged"):
        ShardSet.open(folder).verify_once("train")
    shard.unlink()
    with pytest.raises(UserError, match=r"train-1.bin: it does not exist"):
        ShardSet.open(folder)
    shard.write_bytes(whole)

    (folder / "tokenizer.json").write_text(Tokenizer.load("gpt2").to_json(), encoding="utf-8")
    with pytest.raises(UserError, match=r"tokenizer.json is damaged"):
        ShardSet.open(folder).verify()


def test_a_split_is_verified_once_and_alone(shard_set: Callable[..., ShardSet]) -> None:
    shards = shard_set("corpus", [np.arange(50), np.arange(60)])
    other = shards.folder / "test-0.bin"
    other.write_bytes(bytes(8))
    shards.shards["test"] = [Shard(other, 4, "0" * 64)]
    shards.verify_once("train")
    (shards.folder / "train-1.bin").write_bytes(bytes(120))
    shards.verify_once("train")  # known to be good: not read a second time
    with pytest.raises(UserError, match=r"test-0.bin is damaged"):
        shards.verify_once("test")


def test_a_folder_without_a_good_index_is_refused(shard_set: Callable[..., ShardSet], tmp_path: Path) -> None:
    folder = shard_set("corpus", [np.arange(50)]).folder
    index = json.loads((folder / "index.json").read_text())
    for content, message in (
        (json.dumps({**index, "version": 99}), "version 99"),
        (json.dumps({**index, "dtype": "float8"}), "'float8'"),
    ):
        (folder / "index.json").write_text(content)
        with pytest.raises(UserError, match=message):
            ShardSet.open(folder)
    with pytest.raises(UserError, match="does not exist"):
        ShardSet.open(tmp_path / "nowhere")
    with pytest.raises(UserError, match="unmask prepare sample --out FOLDER"):  # the bundled text, which is no folder
        ShardSet.open("sample")
    (tmp_path / "verse.txt").touch()
    with pytest.raises(UserError, match=r"verse.txt is a file, .* give a folder made by `unmask prepare`"):
        ShardSet.open(tmp_path / "verse.txt")
    (folder / "index.json").unlink()
    with pytest.raises(UserError, match="unmask prepare"):
        ShardSet.open(folder)
    claim_folder(tmp_path / "begun", "corpus")
    with pytest.raises(UserError, match="not finished"):
        ShardSet.open(tmp_path / "begun")


@pytest.mark.parametrize(
    ("tokenizer", "owner", "option"),
    [
        ("pocket", "pocket", "--tokenizer pocket"),
        ("gpt2", "a/model", "--tokenizer gpt2"),  # a checkpoint without a tokenizer's file
        ("pocket", "the model", "--tokenizer set to the one of the model"),  # nobody knows where it is
    ],
)
def test_a_wrong_tokenizer_names_the_option_that_mends_it(shard_set, tokenizer, owner, option):
    wanted = Tokenizer.load(tokenizer)
    wanted.name = "tok" if tokenizer == "pocket" else wanted.name  # what a checkpoint calls it says nothing
    with pytest.raises(UserError, match=f"prepare the text again with {option}$"):
        check_tokenizer(shard_set("corpus", [np.arange(50)]), wanted, owner)
