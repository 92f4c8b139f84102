"""Hub names, on a fake cache and without a network."""

import shutil

import pytest
import torch

pytest.importorskip("huggingface_hub")

from unmask.checkpoint.io import load
from unmask.core.errors import UserError


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and a hub that is out of reach."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "cache"


def put(cache, owner, name, commit, folder, revision):
    """Lay a folder into the cache as a download would: blobs, a snapshot of links, a ref."""
    home = cache / f"models--{owner}--{name}"
    snapshot = home / "snapshots" / commit
    for part in (home / "blobs", home / "refs", snapshot):
        part.mkdir(parents=True, exist_ok=True)
    for item in folder.iterdir():
        blob = home / "blobs" / f"{commit}-{item.name}"
        shutil.copy(item, blob)
        (snapshot / item.name).symlink_to(blob)
    (home / "refs" / revision).write_text(commit)


def test_a_hub_name_loads_the_revision_asked_for(cache, random_dit, mdlm_folder):
    first, second = random_dit(seed=1), random_dit(seed=2)
    put(cache, "someone", "mdlm-owt", "a" * 40, mdlm_folder(first, "one"), "main")
    put(cache, "someone", "mdlm-owt", "b" * 40, mdlm_folder(second, "two"), "step_10000")
    for revision, model in ((None, first), ("step_10000", second), ("b" * 40, second)):
        got = load("someone/mdlm-owt", revision=revision).model
        assert torch.equal(got.head.linear.weight, model.head.linear.weight)


def test_what_the_hub_does_not_have_is_one_line(cache):
    message = r"no folder 'someone/nothing', and the hub did not give .*at revision 'x'"
    with pytest.raises(UserError, match=message) as caught:
        load("someone/nothing", revision="x")
    assert "\n" not in str(caught.value)


def test_a_misspelt_folder_is_not_looked_for_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    with pytest.raises(UserError, match="no checkpoint 'runs/teecher'"):
        load("runs/teecher")
