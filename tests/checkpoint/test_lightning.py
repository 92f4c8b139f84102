"""Lightning files: a pickle full of foreign objects, read for its tensors, never run."""

import pickle
import sys
import time
import types
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.checkpoint.conftest import same_weights

from unmask.checkpoint.io import load
from unmask.core.errors import UserError
from unmask.processes import Uniform

FOREIGN = '''
from pathlib import Path

MARKER = Path({marker!r})

class Config:
    """Like OmegaConf's nodes: content under _content, values under _val, and a way back to the parent."""
    def __init__(self, content):
        self._content = {{key: Node(value, self) for key, value in content.items()}}
        self._parent = None
    def __setstate__(self, state):
        MARKER.write_text("a foreign __setstate__ ran")

class Node:
    def __init__(self, value, parent):
        self._val, self._parent = value, parent

class Trap:
    def __reduce__(self):
        return (exec, ("import pathlib; pathlib.Path({marker!r}).write_text('a foreign function ran')",))

class Words(dict):
    pass
'''


@pytest.fixture
def foreign(tmp_path):
    """A module that exists while the file is written and writes a marker if any of its code runs afterwards."""
    marker = tmp_path / "executed"
    module = types.ModuleType("foreign_lightning_lib")
    sys.modules[module.__name__] = module
    exec(FOREIGN.format(marker=str(marker)), module.__dict__)
    module.marker = marker
    yield module
    sys.modules.pop(module.__name__, None)


@pytest.fixture
def lightning_file(foreign, random_dit, mdlm_tensors, tmp_path):
    """(path, raw model, averaged model) of a file as MDLM's training writes it."""

    def make(compiled=False, **facts):
        raw, averaged = random_dit(seed=1), random_dit(seed=2)
        state = mdlm_tensors(raw)
        if compiled:
            state = {name.replace("backbone.", "backbone._orig_mod."): value for name, value in state.items()}
        shadow = [value for name, value in mdlm_tensors(averaged).items() if "inv_freq" not in name]
        content = {"time_conditioning": False, "diffusion": "absorbing_state", "parameterization": "subs",
                   "model": {"length": 12, "dropout": 0.1}} | facts  # fmt: skip
        path, extra = tmp_path / "last.ckpt", foreign.Words(a=1)
        torch.save(
            {
                "epoch": 0,
                "global_step": 1000,
                "state_dict": state,
                "ema": {"decay": 0.9999, "num_updates": 1000, "shadow_params": shadow},
                "optimizer_states": [{"state": {0: {"exp_avg": torch.ones(5), "step": torch.tensor(3.0)}}}],
                "hyper_parameters": {"config": foreign.Config(content), "tokenizer": foreign.Trap(), "extra": extra},
                "callbacks": {"Trap": foreign.Trap()},
            },
            path,
        )
        return path, raw, averaged

    return make


@pytest.mark.parametrize("compiled", [False, True])
def test_raw_and_averaged_weights_load_and_nothing_is_executed(foreign, lightning_file, compiled):
    path, raw, averaged = lightning_file(compiled)
    for gone in (False, True):  # with the foreign code at hand, and without it
        if gone:
            del sys.modules["foreign_lightning_lib"]
        loaded = load(path)
        assert same_weights(loaded.model, averaged)
        assert loaded.model.config == averaged.config
        assert same_weights(load(path, weights="raw").model, raw)
    assert not foreign.marker.exists()


def test_the_trap_is_live(foreign, lightning_file):
    """The same file does run foreign code when it is unpickled the usual way: the fixture is a real test."""
    path, _, _ = lightning_file()
    torch.load(path, weights_only=False)
    assert foreign.marker.exists()


@pytest.mark.parametrize(
    ("facts", "message"),
    [({"algo": {"name": "duo"}}, "contradicts itself"), ({"time_conditioning": True}, "time-conditioned")],
)
def test_duo_is_known_by_its_metadata_inside_foreign_objects(lightning_file, facts, message):
    path, _, _ = lightning_file(**facts)
    with pytest.raises(UserError, match=message):
        load(path)


def test_duos_own_file_is_read_as_duos(lightning_file):
    """Its names and its list of averages are MDLM's."""
    said = {"time_conditioning": True, "diffusion": "uniform", "parameterization": "mean", "algo": {"name": "duo_base"}}
    path, raw, averaged = lightning_file(**said)
    for weights, model in (("raw", raw), ("ema", averaged)):
        loaded = load(path, weights=weights)
        assert loaded.process == Uniform()
        assert loaded.model.config == replace(model.config, time=True)
        assert same_weights(loaded.model, model)


def test_averages_that_do_not_fit_are_refused(lightning_file, mdlm_tensors, random_dit, tmp_path):
    state = mdlm_tensors(random_dit())
    path = tmp_path / "other.ckpt"
    torch.save({"state_dict": state}, path)
    with pytest.raises(UserError, match="holds no EMA weights: load it with weights='raw'"):
        load(path)
    assert same_weights(load(path, weights="raw").model, random_dit())
    torch.save({"state_dict": state, "ema": {"shadow_params": list(state.values())}}, path)
    with pytest.raises(UserError, match="EMA of 31 tensors that does not fit its 30 parameters"):
        load(path)


def test_views_and_other_types_are_rebuilt_as_torch_does(tmp_path):
    from unmask.checkpoint.safe_pickle import LazyTensor, read_torch_file

    base = torch.arange(24.0).reshape(4, 6)
    content = {
        "view": base[1:, ::2], "turned": base.t(), "half": base.bfloat16(), "whole": torch.arange(3),
        "parameter": torch.nn.Parameter(base[0]), "number": torch.tensor(2.5),
    }  # fmt: skip
    torch.save(content, tmp_path / "some.pt")
    got = read_torch_file(tmp_path / "some.pt")
    assert got.keys() == content.keys()
    for name, expected in content.items():
        assert isinstance(got[name], LazyTensor)
        assert torch.equal(got[name].read(), expected)


def test_damaged_files_are_one_line(lightning_file, tmp_path):
    path, _, _ = lightning_file()
    whole = path.read_bytes()
    at = whole.index(b"data.pkl") + 200
    for content, said in (
        (whole[: len(whole) // 2], "half-written"),
        (whole[:at] + bytes(60) + whole[at + 60 :], "is damaged"),
        (b"not a checkpoint at all", "not a whole torch checkpoint"),
    ):
        path.write_bytes(content)
        with pytest.raises(UserError, match=said):
            load(path)
    torch.save([1, 2], path)
    with pytest.raises(UserError, match="holds no state_dict"):
        load(path)


def as_torch_file(path, program, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("last/data.pkl", program)


# a pair of the same pair of the same pair ...: some hundred bytes that mean 2^60 entries
PAIRS = b"]q\x00" + b"h\x00\x86q\x00" * 60
ENDLESS = {
    "shared entries": b"}(X\n\x00\x00\x00state_dict}X\x10\x00\x00\x00hyper_parameters" + PAIRS + b"u.",
    "a name that takes for ever to print": PAIRS + PAIRS + b"\x93.",
    "deep nesting": b"](" * 100_000 + b"e" * 100_000 + b".",
    "an empty stack": b"t.",
}


@pytest.mark.parametrize("what", ENDLESS)
def test_a_file_that_would_take_for_ever_is_one_line_at_once(tmp_path, what):
    as_torch_file(tmp_path / "a.ckpt", b"\x80\x04" + ENDLESS[what])
    start = time.monotonic()
    with pytest.raises(UserError, match=r"a\.ckpt") as caught:
        load(tmp_path / "a.ckpt")
    assert "\n" not in str(caught.value)
    assert time.monotonic() - start < 60


def test_a_compressed_program_is_not_unpacked(tmp_path):
    as_torch_file(tmp_path / "a.ckpt", b"\x80\x02" + b"0" * 10_000_000, zipfile.ZIP_DEFLATED)
    with pytest.raises(UserError, match=r"a\.ckpt is damaged \(.*compressed"):
        load(tmp_path / "a.ckpt")


def test_a_tensor_of_more_numbers_than_it_has_is_damage(tmp_path):
    from unmask.checkpoint.safe_pickle import read_torch_file

    torch.save({"wide": torch.zeros(1).expand(10**12)}, tmp_path / "a.pt")
    with pytest.raises(UserError, match=r"a\.pt is damaged \(a tensor of shape"):
        read_torch_file(tmp_path / "a.pt")["wide"].read()


@pytest.mark.parametrize("protocol", [2, 4])
def test_every_call_and_class_is_inert(tmp_path, foreign, protocol):
    """os.system, exec and a class's own __setstate__, in the instructions of either protocol: none runs."""
    bomb = pickle.dumps({"state_dict": foreign.Trap(), "more": foreign.Config({"a": 1})}, protocol)
    system = b"\x80\x02cos\nsystem\nX" + len(call := b"touch executed").to_bytes(4, "little") + call + b"\x85R."
    for program in (bomb, system):
        as_torch_file(tmp_path / "a.ckpt", program)
        with pytest.raises(UserError, match="holds no state_dict"):
            load(tmp_path / "a.ckpt")
    assert not foreign.marker.exists()
    assert not Path("executed").exists()
