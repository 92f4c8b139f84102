"""The page's own JavaScript under node, or a clear skip where there is none."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "docs" / "playground" / "src"
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="no node here: apt-get install nodejs")


def run_node(script: Path | str, value: Any) -> Any:
    """What a script (a file, or its text) prints as JSON when it reads a value as JSON."""
    assert NODE is not None
    command = [NODE, str(script)] if isinstance(script, Path) else [NODE, "--input-type=module", "-e", script]
    done = subprocess.run(command, input=json.dumps(value), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def write(requests: list[dict[str, Any]], **model: Any) -> list[dict[str, Any]]:
    """Each request's messages: its start, its steps, its end."""
    said: list[dict[str, Any]] = run_node(HERE / "write.mjs", {"sources": str(SOURCES), "requests": requests, **model})
    return said
