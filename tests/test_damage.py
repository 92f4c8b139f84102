"""Every reader of files, given what a copy or a disk does to them: it reads, or it is one line that names the file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from unmask import load
from unmask.checkpoint.convert import convert
from unmask.checkpoint.io import Checkpoint, save
from unmask.checkpoint.tensors import read_tensors
from unmask.core.errors import UserError
from unmask.core.files import claim_folder, kind_of, sha256_file
from unmask.data.loader import Loader
from unmask.data.prepare import prepare
from unmask.data.shards import ShardSet
from unmask.data.tokenizer import Tokenizer
from unmask.models.dit.network import DiT
from unmask.plans.grids import read_grid


def read_corpus(folder: Path) -> object:
    shards = ShardSet.open(folder)
    shards.verify()
    loader = Loader([shards], 8)
    return loader.batch(0, 0, 2, 2), shards.count("test", "documents")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of each thing that is read."""
    here = tmp_path_factory.mktemp("whole")
    (here / "text.txt").write_text("\n<|endoftext|>\n".join(f"Call me Ishmael, number {i}. " * 5 for i in range(20)))
    prepare([str(here / "text.txt")], here / "corpus", vocab_size=300, progress=False)
    tokenizer = Tokenizer.load(here / "corpus")
    torch.manual_seed(0)
    model = DiT(tokenizer.size + 1, 12, 16, 8, 1, 2).eval()
    save(Checkpoint(model, tokenizer=tokenizer, provenance={"step": 3}), here / "model")
    claim_folder(here / "claimed", "run")
    convert(here / "model", here / "mdlm", format="mdlm")
    (here / "lightning").mkdir()
    tensors = dict(read_tensors(here / "mdlm" / "model.safetensors"))
    metadata = {"model": {"length": 12}, "n_heads": 2}
    torch.save({"state_dict": tensors, "hyper_parameters": metadata}, here / "lightning" / "last.ckpt")
    (here / "grid").mkdir()
    half = [{"steps": 1, "times": [1, 0]}]
    grid = {"grid": {"times": [1, 0.6, 0], "by": "time", "name": "mine"}, "plan": "iid", "fitting_half": half}
    (here / "grid" / "grid.json").write_text(json.dumps(grid))
    return here


def load_rehashed(folder: Path) -> object:
    """Load a checkpoint whose files are not given away by their hashes."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["files"] = {name: sha256_file(folder / name) for name in config["files"]}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return load(folder)


# file -> how it is read; all of its folder is copied for each damage
READERS: dict[str, Callable[[Path], object]] = {
    "corpus/index.json": read_corpus,
    "corpus/tokenizer.json": read_corpus,
    "corpus/train-00000.bin": read_corpus,
    "model/config.json": load,
    "model/tokenizer.json": load_rehashed,
    "model/model.safetensors": load_rehashed,
    "model/provenance.json": load_rehashed,
    "mdlm/config.json": load,
    "mdlm/model.safetensors": load,
    "lightning/last.ckpt": lambda folder: load(folder / "last.ckpt", weights="raw"),
    "grid/grid.json": lambda folder: (read_grid(folder / "grid.json"), read_grid(folder / "grid.json", 1)),
    "claimed/unmask.json": kind_of,
}

BYTES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda raw: b"",
    "cut in half": lambda raw: raw[: len(raw) // 2],
    "zeros in the middle": lambda raw: raw[: len(raw) // 2] + bytes(40) + raw[len(raw) // 2 + 40 :],
    "another thing": lambda raw: b"PNG" + bytes(range(256)),
    "an empty object": lambda raw: b"{}",
}


def check(read: Callable[[Path], object], folder: Path, name: str, what: str) -> None:
    said = str(folder)
    try:
        read(folder)
    except UserError as error:
        said = str(error)
    except Exception as error:
        pytest.fail(f"{name}, {what}: {type(error).__name__}: {error}")
    assert "\n" not in said, what
    assert str(folder) in said, f"{what}: no file is named"


@pytest.fixture
def place(whole: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A copy of the folder with the file in question."""
    name = request.getfixturevalue("name")
    shutil.copytree(whole / name.split("/")[0], tmp_path / "copy")
    return tmp_path / "copy" / name.split("/")[1]


@pytest.mark.parametrize("what", BYTES)
@pytest.mark.parametrize("name", READERS)
def test_damaged_bytes(place: Path, name: str, what: str) -> None:
    place.write_bytes(BYTES[what](place.read_bytes()))
    check(READERS[name], place.parent, name, what)


def test_every_reader_reads_what_is_whole(whole: Path) -> None:
    for name, read in READERS.items():
        read((whole / name).parent)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_weight_that_is_no_number_is_refused(whole: Path, tmp_path: Path, value: float) -> None:
    checkpoint = load(whole / "model")
    with torch.no_grad():
        next(iter(checkpoint.model.parameters())).view(-1)[3] = value
    save(checkpoint, tmp_path / "bad")
    with pytest.raises(UserError, match="bad holds"):
        load(tmp_path / "bad")
