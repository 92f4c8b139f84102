import json
import os
import resource

import pytest
import torch
from tests.checkpoint.conftest import same_weights

from unmask.checkpoint.io import Checkpoint, load, save
from unmask.core.errors import UserError
from unmask.core.files import claim_folder
from unmask.models.dit.network import DiT
from unmask.processes import Masked
from unmask.processes.schedule import LogLinear


def test_load_save_load_is_bit_equal(checkpoint, tmp_path):
    save(checkpoint, tmp_path / "a")
    first = load(tmp_path / "a")
    save(first, tmp_path / "b")
    second = load(tmp_path / "b")
    assert same_weights(checkpoint.model, second.model)
    assert second.model.config == checkpoint.model.config
    assert second.process.schedule == checkpoint.process.schedule
    assert second.provenance == checkpoint.provenance
    assert (second.tokenizer.name, second.tokenizer.hash) == (checkpoint.tokenizer.name, checkpoint.tokenizer.hash)
    names = sorted(item.name for item in (tmp_path / "a").iterdir())
    assert names == ["config.json", "model.safetensors", "provenance.json", "tokenizer.json"]
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_whoever_may_read_a_new_file_may_read_the_weights(checkpoint, tmp_path):
    before = os.umask(0o027)
    try:
        save(checkpoint, tmp_path / "a")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "a").iterdir()} == {0o640}


def test_a_loaded_model_computes_the_same_and_is_ready_to_use_or_train(checkpoint, tmp_path):
    save(checkpoint, tmp_path / "a")
    model = load(tmp_path / "a").model
    z_BL = torch.randint(20, (2, 12))
    assert not model.training
    assert torch.equal(model(z_BL), checkpoint.model(z_BL))
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_raw_weights_lie_beside_the_average(checkpoint, random_dit, tmp_path):
    raw = random_dit(seed=1, vocab_size=checkpoint.model.vocab_size)
    save(checkpoint, tmp_path / "a", raw=raw.state_dict())
    assert same_weights(load(tmp_path / "a").model, checkpoint.model)
    assert same_weights(load(tmp_path / "a", weights="raw").model, raw)
    save(checkpoint, tmp_path / "a")
    with pytest.raises(UserError, match="holds one set of weights"):
        load(tmp_path / "a", weights="raw")


def test_a_run_folder_is_searched_for_its_checkpoint(checkpoint, tmp_path):
    save(checkpoint, tmp_path / "run" / "checkpoint")
    assert same_weights(load(tmp_path / "run").model, checkpoint.model)


def test_loading_keeps_the_stored_precision(random_dit, tmp_path):
    model = random_dit()
    save(Checkpoint(model), tmp_path / "half", dtype=torch.bfloat16)
    save(Checkpoint(model), tmp_path / "full")
    got = load(tmp_path / "half").model
    for name, parameter in got.named_parameters():
        assert torch.equal(parameter, model.state_dict()[name].bfloat16())  # equal in type too
        assert parameter.dtype == torch.bfloat16
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("half", "full")]
    assert sizes[0] < 0.6 * sizes[1]
    save(Checkpoint(model.double()), tmp_path / "double")
    z_BL = torch.randint(20, (2, 12))
    assert torch.equal(load(tmp_path / "double").model(z_BL), model(z_BL))


def test_a_compiled_model_is_saved_as_itself(random_dit, tmp_path):
    model = random_dit()
    save(Checkpoint(torch.compile(model, backend="eager")), tmp_path / "a")
    assert same_weights(load(tmp_path / "a").model, model)


def test_a_failed_save_leaves_the_old_checkpoint_whole(checkpoint, random_dit, tmp_path):
    """The operating system refuses the write half-way (here by a limit on file size; a full disk looks the same)."""
    save(checkpoint, tmp_path / "a")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(UserError, match="cannot write"):
            save(Checkpoint(random_dit(hidden=64)), tmp_path / "a")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert same_weights(load(tmp_path / "a").model, checkpoint.model)
    assert [item.name for item in tmp_path.iterdir()] == ["a"]


@pytest.mark.permissions
@pytest.mark.parametrize("locked", ["folder", "file"])
def test_a_place_without_permission_is_one_line(checkpoint, locked, tmp_path):
    folder = tmp_path / "a"
    save(checkpoint, folder)
    shut = folder if locked == "folder" else folder / "model.safetensors"
    shut.chmod(0o000)
    with pytest.raises(UserError, match=r"cannot read .* permission denied"):
        load(folder)
    shut.chmod(0o755)
    tmp_path.chmod(0o555)
    with pytest.raises(UserError, match=r"cannot write .* permission denied"):
        save(checkpoint, folder)
    tmp_path.chmod(0o755)
    assert same_weights(load(folder).model, checkpoint.model)


def test_save_never_replaces_somebody_elses_model_or_notes(checkpoint, tmp_path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "config.json").write_text('{"model_type": "gpt2"}')
    (theirs / "model.safetensors").write_bytes(b"weights")
    with pytest.raises(UserError, match=r"holds config\.json, which is not ours"):
        save(checkpoint, theirs)
    assert (theirs / "model.safetensors").read_bytes() == b"weights"
    save(checkpoint, ours)
    save(checkpoint, ours)
    (ours / "notes.txt").write_text("what I saw in it")
    with pytest.raises(UserError, match=r"notes\.txt beside a checkpoint, which would be lost"):
        save(checkpoint, ours)
    assert (ours / "notes.txt").read_text() == "what I saw in it"


def _edit_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def _flip_a_bit(folder):
    raw = bytearray((folder / "model.safetensors").read_bytes())
    raw[-1] ^= 1
    (folder / "model.safetensors").write_bytes(raw)


def _truncate(name):
    def act(folder):
        raw = (folder / name).read_bytes()
        (folder / name).write_bytes(raw[: len(raw) // 2])

    return act


DAMAGE = {
    "no config": (lambda folder: (folder / "config.json").unlink(), "holds no checkpoint"),
    "half a config": (_truncate("config.json"), "damaged .not valid JSON"),
    "half the weights": (_truncate("model.safetensors"), "model.safetensors does not match its sha256"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors is missing"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json is missing"),
    "a flipped bit": (_flip_a_bit, "model.safetensors does not match its sha256"),
    "another shape": (lambda folder: _edit_config(folder, model={"hidden": 8}), "is damaged"),
    "no shape": (lambda folder: _edit_config(folder, model=None), "is damaged"),
    "a newer format": (lambda folder: _edit_config(folder, version=3), "format version 3, this unmask reads 2"),
    "a plug-in's family": (
        lambda folder: _edit_config(folder, family="conv"),
        "needs the model family 'conv'.*--plugin",
    ),
    "another kind": (lambda folder: _edit_config(folder, format="other"), "of no family that is known"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_checkpoint_is_one_line(checkpoint, tmp_path, what):
    save(checkpoint, tmp_path / "a")
    damage, message = DAMAGE[what]
    damage(tmp_path / "a")
    with pytest.raises(UserError, match=message) as caught:
        load(tmp_path / "a")
    assert "\n" not in str(caught.value)


def test_missing_and_misshapen_tensors_are_named(random_dit, tmp_path):
    class Lacking(DiT):
        def state_dict(self, *args, **kwargs):
            state = super().state_dict(*args, **kwargs)
            del state["blocks.1.qkv.weight"]
            return state

    model = random_dit()
    model.__class__ = Lacking
    save(Checkpoint(model), tmp_path / "a")
    with pytest.raises(UserError, match=r"the tensor 'blocks.1.qkv.weight' is missing"):
        load(tmp_path / "a")
    save(Checkpoint(random_dit()), tmp_path / "b")
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    _edit_config(tmp_path / "b", model=config["model"] | {"vocab_size": 24})
    with pytest.raises(UserError, match=r"'embedding.weight' has shape .23, 24., not .24, 24."):
        load(tmp_path / "b")


def test_what_cannot_be_found_is_refused_with_what_could(tmp_path):
    with pytest.raises(UserError, match=r"no checkpoint .*nowhere.*give a folder, a Lightning .ckpt file, a hub name"):
        load(tmp_path / "nowhere")
    with pytest.raises(UserError, match="belongs to a hub name"):
        load(tmp_path, revision="main")
    with pytest.raises(UserError, match="unknown weights 'eam': did you mean 'ema'"):
        load(tmp_path, weights="eam")
    with pytest.raises(UserError, match="no device 'gpu'"):
        load(tmp_path, device="gpu")


def test_a_run_that_stopped_before_its_first_checkpoint_is_no_common_folder(tmp_path):
    claim_folder(tmp_path, "run")
    with pytest.raises(UserError, match=r"is a run without a checkpoint yet: run the same `unmask train`.* again"):
        load(tmp_path)


def test_bundled_names_are_found_and_suggested(checkpoint, tmp_path, monkeypatch):
    package = tmp_path / "package"
    save(checkpoint, package / "assets" / "pocket")
    monkeypatch.setattr("unmask.checkpoint.locate.resources.files", lambda name: package)
    assert same_weights(load("pocket").model, checkpoint.model)
    with pytest.raises(UserError, match=r"no checkpoint 'poket': did you mean 'pocket'\?.*bundled name .pocket."):
        load("poket")


def test_a_tokenizer_larger_than_the_model_is_refused(random_dit, tokenizer):
    with pytest.raises(UserError, match="do not belong together"):
        Checkpoint(random_dit(vocab_size=tokenizer.size), Masked(LogLinear()), tokenizer)
