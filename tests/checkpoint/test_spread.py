"""Models over main memory and disk, by accelerate: they compute and write what they do in one place."""

import json

import pytest
import torch
from tests.models.hub_folder import write_folder

pytest.importorskip("accelerate")

from unmask.checkpoint.io import load, save
from unmask.cli.main import main
from unmask.core.errors import UserError
from unmask.sampling.verbs import sample

HALF = {"model.embed_tokens": "cpu", "model.layers.0": "disk", "model.layers.1": "cpu", "model.norm": "cpu",
        "lm_head": "disk"}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("spread") / "llada"
    write_folder(path)
    return path


@pytest.mark.parametrize("device_map", ["cpu", "auto", "sequential", HALF], ids=str)
@torch.no_grad()
def test_a_spread_model_computes_and_writes_the_same(folder, device_map):
    whole, spread = load(folder), load(folder, device_map=device_map)
    ids = torch.randint(250, (2, 12), generator=torch.Generator().manual_seed(0))
    expected = whole.model.logits(whole.model.features(ids))
    assert torch.equal(spread.model.logits(spread.model.features(ids)), expected)
    options = {"chat": "Write.", "max_new": 12, "steps": 4, "seed": 1, "device": "cpu"}
    assert torch.equal(sample(spread, **options).tokens, sample(whole, **options).tokens)


def test_what_lies_on_disk_takes_no_memory_and_nothing_is_written(folder, tmp_path):
    before = sorted(path.name for path in folder.iterdir())
    model = load(folder, device_map=HALF).model
    assert {value.device.type for value in model.model.layers[0].parameters()} == {"meta"}
    assert {value.device.type for value in model.model.layers[1].parameters()} == {"cpu"}
    assert sorted(path.name for path in folder.iterdir()) == before


def test_our_own_format_spreads_too(folder, tmp_path):
    save(load(folder), tmp_path / "own")
    ids = torch.randint(250, (1, 8))
    spread, whole = load(tmp_path / "own", device_map=HALF).model, load(folder).model
    with torch.no_grad():
        assert torch.equal(spread.logits(spread.features(ids)), whole.logits(whole.features(ids)))


def test_the_command_takes_a_map(folder, capsys):
    command = ["sample", "--model", str(folder), "--chat", "Hello", "--max_new", "8", "--steps", "2", "--device", "cpu"]
    assert main(command) == 0
    expected = capsys.readouterr().out
    assert main([*command, "--device_map", json.dumps(HALF)]) == 0
    assert capsys.readouterr().out == expected


def test_maps_that_make_no_sense(folder):
    with pytest.raises(UserError, match="accelerate cannot go by this device_map"):
        load(folder, device_map={"model.layers.0": "cpu"})
    with pytest.raises(UserError, match="is no JSON"):
        load(folder, device_map="{cpu}")
    with pytest.raises(UserError, match="the family dit does not go over several devices"):
        load("pocket", device_map="auto")
