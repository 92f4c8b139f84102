"""Plug-ins are loaded once, from files, modules and entry points, and one that fails is one line."""

import builtins
import sys
from importlib.metadata import EntryPoint

import pytest

import unmask
from unmask.core import plugins
from unmask.core.errors import UserError
from unmask.core.plugins import load_plugins

FILE = "import builtins\nbuiltins.seen.append(__file__)\ndef add():\n    builtins.seen.append('called')\n"


@pytest.fixture
def seen(monkeypatch):
    monkeypatch.setattr(builtins, "seen", [], raising=False)
    plugins._load_entry_points.cache_clear()
    yield builtins.seen  # type: ignore[attr-defined]
    plugins._load_entry_points.cache_clear()


def test_a_file_and_a_module_are_loaded_once(tmp_path, monkeypatch, seen) -> None:
    for name in ("one.py", "two_for_test.py"):
        (tmp_path / name).write_text(FILE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    load_plugins(["one.py", str(tmp_path / "one.py"), "two_for_test", "two_for_test"])
    assert seen == [str(tmp_path / "one.py"), str(tmp_path / "two_for_test.py")]
    sys.modules.pop("two_for_test")


def test_an_entry_point_is_a_module_or_a_function_to_call(tmp_path, monkeypatch, seen) -> None:
    (tmp_path / "entry_for_test.py").write_text(FILE)
    monkeypatch.syspath_prepend(tmp_path)
    entries = [EntryPoint(str(i), value, "unmask") for i, value in enumerate(("entry_for_test", "entry_for_test:add"))]
    monkeypatch.setattr(plugins, "entry_points", lambda group: entries)
    unmask.load("pocket")  # whose family an installed package might have brought
    load_plugins()
    assert seen == [str(tmp_path / "entry_for_test.py"), "called"]
    sys.modules.pop("entry_for_test")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("broken.py", "the plug-in broken.py failed to load: ZeroDivisionError: division by zero"),
        ("nowhere.py", "no plug-in .*nowhere.py: check the path"),
        ("not_a_module_of_ours", "ModuleNotFoundError.*give its path with .py"),
    ],
)
def test_one_that_fails_is_one_line(tmp_path, monkeypatch, name: str, said: str) -> None:
    (tmp_path / "broken.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=said):
        load_plugins([name])
