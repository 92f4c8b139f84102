"""What a run keeps to go on from: plain files; damage is one line."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from unmask.core.errors import UserError
from unmask.objectives.elbo import MDLM


def test_states_are_plain_safetensors(model, trainer, corpus, tmp_path):
    """Readable with the public library alone, no pickle; the index gives the shape of every tensor."""
    trainer(steps=2).fit(model, MDLM(), corpus)
    folder = tmp_path / "run" / "state" / "step-00000002"
    tensors = load_file(folder / "rank-00000-of-00001.safetensors")
    index = json.loads((folder / "index.json").read_text())
    assert {name: list(tensor.shape) for name, tensor in tensors.items()} == {
        name: entry["shape"] for name, entry in index["tensors"].items()
    }
    assert torch.equal(tensors["weight.head.linear.weight"], model.head.linear.weight.detach())
    assert int(tensors["adam.n.embedding.weight"]) == 2


def test_a_damaged_state_says_what_to_remove_and_then_the_run_goes_on(model, trainer, corpus, tmp_path):
    trainer(steps=4).fit(model, MDLM(), corpus)
    newest = tmp_path / "run" / "state" / "step-00000004"
    file = next(newest.glob("*.safetensors"))
    raw = bytearray(file.read_bytes())
    raw[-3] ^= 1
    file.write_bytes(raw)
    with pytest.raises(UserError, match=r"step-00000004 is damaged .*remove that folder.*continues from step 2"):
        trainer(steps=6).fit(model, MDLM(), corpus)
    file.write_bytes(raw[:100])
    with pytest.raises(UserError, match="is damaged"):
        trainer(steps=6).fit(model, MDLM(), corpus)
    (newest / "index.json").unlink()
    with pytest.raises(UserError, match="is damaged"):
        trainer(steps=6).fit(model, MDLM(), corpus)
    shutil.rmtree(newest)
    assert trainer(steps=6).fit(model, MDLM(), corpus).provenance["step"] == 6


@pytest.mark.parametrize(
    ("file", "text", "line"),
    [
        ("run.json", "{", "the run's config .*run.json is damaged"),
        ("run.json", '{"sessions": []}', "run.json is damaged .'config' is missing"),
        ("checkpoint/provenance.json", '{"step": "x"}', "provenance.json is damaged"),
        ("state/step-00000002/index.json", '{"format": 3}', "step-00000002 is damaged .'version' is missing"),
        ("state/step-00000002/index.json", "[]", "step-00000002 is damaged"),
        ("state/step-00000002/index.json", "without facts", "step-00000002 is damaged .'watch' is missing"),
    ],
)
def test_damage_is_one_line_that_names_the_file(model, trainer, corpus, tmp_path, file, text, line):
    trainer(steps=2).fit(model, MDLM(), corpus)
    path = tmp_path / "run" / file
    if text == "without facts":
        text = json.dumps({**json.loads(path.read_text()), "facts": {}})
    path.write_text(text)
    with pytest.raises(UserError, match=line):
        trainer(steps=4).fit(model, MDLM(), corpus)


def test_a_state_that_finds_no_memory_on_the_device_is_not_called_damaged(model, trainer, corpus, monkeypatch):
    trainer(steps=2).fit(model, MDLM(), corpus)

    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("unmask.training.state._fill", full)
    with pytest.raises(UserError, match="does not fit in the memory"):
        trainer(steps=4).fit(model, MDLM(), corpus)
