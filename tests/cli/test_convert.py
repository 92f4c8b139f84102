import pytest
import torch

from unmask.checkpoint.io import Checkpoint, load, save
from unmask.cli.main import main
from unmask.models.dit.network import DiT


def make(folder, seed):
    torch.manual_seed(seed)
    model = DiT(vocab_size=11, length=8, hidden=8, cond=4, blocks=1, heads=2)
    torch.nn.init.normal_(model.head.linear.weight)
    raw = {name: torch.full_like(value, 0.5) for name, value in model.state_dict().items()}
    save(Checkpoint(model), folder, raw=raw)
    return model


def test_convert_writes_either_way(tmp_path, capsys):
    model = make(tmp_path / "ours", 0)
    assert main(["convert", str(tmp_path / "ours"), str(tmp_path / "hub"), "--format", "mdlm"]) == 0
    assert "parameters in mdlm format" in capsys.readouterr().out
    assert main(["convert", str(tmp_path / "hub"), str(tmp_path / "back"), "--dtype", "bf16"]) == 0
    expected = model.head.linear.weight.bfloat16().float()
    assert torch.equal(load(tmp_path / "back").model.head.linear.weight, expected)
    assert main(["convert", str(tmp_path / "ours"), str(tmp_path / "raw"), "--weights", "raw"]) == 0
    assert load(tmp_path / "raw").model.head.linear.weight.unique().tolist() == [0.5]


def test_a_target_is_replaced_only_when_asked_and_only_if_it_is_a_checkpoint(tmp_path, refused):
    first = make(tmp_path / "first", 1)
    second = make(tmp_path / "second", 2)
    command = ["convert", str(tmp_path / "first"), str(tmp_path / "second")]
    assert "--overwrite" in refused(*command)
    assert torch.equal(load(tmp_path / "second").model.head.linear.weight, second.head.linear.weight)
    assert main([*command, "--overwrite"]) == 0
    assert torch.equal(load(tmp_path / "second").model.head.linear.weight, first.head.linear.weight)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    assert "not ours" in refused("convert", tmp_path / "first", tmp_path / "notes", "--overwrite")
    assert (tmp_path / "notes" / "a.txt").read_text() == "mine"


@pytest.mark.parametrize("target", ["run/checkpoint", "run/checkpoint/small", "run/small", "run", "."])
@pytest.mark.parametrize("source", ["run", "run/checkpoint"])
def test_a_target_that_is_the_source_or_overlaps_it_is_refused(tmp_path, monkeypatch, refused, source, target):
    """In place of the source it would lose the raw weights."""
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "run" / "checkpoint", 0)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    if (source, target) == ("run/checkpoint", "run/small"):  # beside it
        assert main(["convert", source, target]) == 0
        return
    said = refused("convert", source, target, "--overwrite")
    assert f"{target} is {source} itself, or lies in it or around it" in said
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_mistake_is_one_line(tmp_path, refused):
    assert "nowhere" in refused("convert", tmp_path / "nowhere", tmp_path / "out")
    assert "did you mean 'mdlm'?" in refused("convert", "pocket", tmp_path / "out", "--format", "mdml")
