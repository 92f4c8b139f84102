"""One thread a test process, since the suite already runs a process a core; and a way to write a tiny corpus."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import tokenizers
import torch

if TYPE_CHECKING:
    from unmask.data.tokenizer import Tokenizer

torch.set_num_threads(1)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are born deaf to it
# a judge with hand-made logits, tiny networks, a cache of its own for every test; the pages in a browser
pytest_plugins = ("tests.scene", "tests.pages")


def write_shards(folder: Path, splits: dict[str, list[np.ndarray]], tokenizer: Tokenizer) -> Path:
    """A prepared corpus by hand: for each split its shards of token ids, in the format as shards.py tells it."""
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
    about = {}
    for split, shards in splits.items():
        entries = []
        for number, ids in enumerate(shards):
            name, raw = f"{split}-{number}.bin", np.asarray(ids).astype("<u2").tobytes()
            (folder / name).write_bytes(raw)
            entries.append({"file": name, "tokens": len(ids), "sha256": hashlib.sha256(raw).hexdigest()})
        tokens = sum(map(len, shards))
        about[split] = {"shards": entries, "tokens": tokens, "documents": 1, "text_bytes": tokens}
    index = {"version": 1, "dtype": "uint16", "splits": about}
    index["tokenizer"] = {**tokenizer.describe(), "file": "tokenizer.json"}
    (folder / "index.json").write_text(json.dumps(index), encoding="utf-8")
    return folder


def _write_corpus(folder: Path, train: np.ndarray, validation: np.ndarray, size: int) -> Path:
    """A prepared corpus of given token ids below `size`; the tokenizer's words are a, b, c ... and the last is EOS."""
    from unmask.data.tokenizer import EOS, Tokenizer

    words = {**{chr(ord("a") + i): i for i in range(size - 1)}, EOS: size - 1}
    tokenizer = Tokenizer(tokenizers.Tokenizer(tokenizers.models.WordLevel(words, EOS)).to_str(), "letters")
    return write_shards(folder, {"train": [train], "test": [], "validation": [validation]}, tokenizer)


@pytest.fixture(scope="session")
def write_corpus() -> Callable[[Path, np.ndarray, np.ndarray, int], Path]:
    return _write_corpus


def _bound_by_permissions() -> bool:
    """Whether a file that nobody may read is closed to this process; root may read anything."""
    with tempfile.NamedTemporaryFile() as closed:
        os.chmod(closed.name, 0)
        return not os.access(closed.name, os.R_OK)


def pytest_configure(config: pytest.Config) -> None:
    """A GPU is shown to its own tests alone (`-m cuda`): with one, `auto` would take it, in bf16, and what the others
    expect is a CPU's. Processes that tests start inherit this."""
    if config.option.markexpr != "cuda":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of permissions are for those whom they bind; .ci/run runs them as such a user."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("cuda"):
                item.add_marker(pytest.mark.skip(reason="needs a GPU and `pytest -m cuda`"))
    marked = [item for item in items if item.get_closest_marker("permissions")]
    if marked and not _bound_by_permissions():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="root may do anything: run as another user"))
