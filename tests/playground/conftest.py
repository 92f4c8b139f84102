"""The static page as `make playground` builds it, once for all tests of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.playground import build

from unmask.core.errors import UserError


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install 'unmask[export]'")
    target = tmp_path_factory.mktemp("playground") / "site"
    try:
        build(target)
    except UserError as error:
        if "npm" not in str(error):
            raise
        pytest.skip(f"the runtime of the static page cannot be had here: {error}")
    return target
