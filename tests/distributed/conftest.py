"""A tiny corpus, and a way to start two processes as torchrun does."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]


@pytest.fixture(scope="session")
def corpus(write_corpus: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokens = np.cumsum(np.random.default_rng(0).integers(0, 3, 4000)) % 5
    return write_corpus(tmp_path_factory.mktemp("text") / "corpus", tokens[:3000], tokens[3000:], 6)


@pytest.fixture(scope="session")
def two_processes() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs words (`-m unmask ...`, or a script and what it is given) on two processes."""

    def start(*words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.run([*LAUNCH, *words], capture_output=True, text=True, env=environment, timeout=300)

    return start
