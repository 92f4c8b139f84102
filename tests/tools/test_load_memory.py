"""A published model is loaded in little more host memory than its files are long: no second copy, none in float32."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from tools.load_memory import write


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_loading_takes_less_than_1_2_times_the_files(tmp_path):
    write(tmp_path / "model", blocks=2, states=4096)  # 0.9 GB
    command = [sys.executable, "-m", "tools.load_memory", str(tmp_path / "model"), "--measure"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert found["held"] > 0.99 * found["files"] > 8e8
    assert found["ratio"] < 1.2
