"""The plug-in, known while the tests of this folder run and gone afterwards: other tests list what is registered."""

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from unmask.core.plugins import load_plugins
from unmask.inference.step_law import STEP_LAWS
from unmask.metrics.registry import METRICS
from unmask.models.family import FAMILIES
from unmask.plans.plan import PLANS
from unmask.processes import PROCESSES

PLUGIN = Path(__file__).with_name("plugin.py")
REGISTRIES = (PLANS, PROCESSES, FAMILIES, STEP_LAWS, METRICS)


@pytest.fixture(scope="module", autouse=True)
def plugin() -> Iterator[ModuleType]:
    from unmask.core import plugins

    before = [dict(registry) for registry in REGISTRIES]
    plugins._load_file.cache_clear()
    load_plugins([str(PLUGIN)])
    yield plugins._load_file(PLUGIN.resolve())
    for registry, known in zip(REGISTRIES, before, strict=True):
        registry.clear()
        registry.update(known)


@pytest.fixture(scope="session")
def plugin_path() -> str:
    return str(PLUGIN)
