"""The scripts of studies/, as modules."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

STUDIES = Path(__file__).parents[2] / "studies"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Loads one by its folder and name; they import one another by their bare names, and are gone afterwards."""

    def load(place: str) -> ModuleType:
        monkeypatch.syspath_prepend(STUDIES / place.split("/")[0])
        return importlib.import_module(place.split("/")[1])

    yield load
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(STUDIES)):
            del sys.modules[name]
