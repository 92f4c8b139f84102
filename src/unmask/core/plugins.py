"""Plug-ins: modules that add plans, processes, families, step laws, objectives or metrics by `register_...`.

Installed packages name theirs as entry points of the group `unmask`; the command line takes `--plugin module`.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from unmask.core.errors import UserError

GROUP = "unmask"


def load_plugins(modules: Iterable[str] = ()) -> None:
    """Load what installed packages offer, once, and then the named modules or .py files."""
    _load_entry_points()
    for name in modules:
        try:
            load_file(name) if name.endswith(".py") else importlib.import_module(name)
        except UserError:
            raise
        except Exception as error:
            here = "; for a file, give its path with .py" if isinstance(error, ModuleNotFoundError) else ""
            raise _failed(f"the plug-in {name}", error, here) from error


def load_file(name: str) -> ModuleType:
    """A .py file as a module; once, however often it is named."""
    return _load_file(Path(name).resolve())


@functools.cache
def _load_entry_points() -> None:
    for entry in entry_points(group=GROUP):
        try:
            loaded = entry.load()
            if not isinstance(loaded, ModuleType) and callable(loaded):
                loaded()
        except Exception as error:
            raise _failed(f"the plug-in {entry.name} ({entry.value})", error, ": mend it, or uninstall it") from error


@functools.cache
def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UserError(f"no plug-in {path}: check the path")
    name = f"unmask_plugin_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _failed(what: str, error: Exception, advice: str) -> UserError:
    return UserError(f"{what} failed to load: {type(error).__name__}: {error}{advice}")
