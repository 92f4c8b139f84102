"""Rules that a reader relies on: imports go one way, importing the package is cheap, files stay small."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import unmask

ROOT = Path(unmask.__file__).parent
# each folder knows itself and those before it
ORDER = (
    "core", "processes", "plans", "data", "models", "inference", "checkpoint", "sampling", "theory", "objectives",
    "metrics", "training", "studies", "server", "bench", "cli",
)  # fmt: skip
ALLOWED = {folder: set(ORDER[: place + 1]) for place, folder in enumerate(ORDER)}

MODULES = sorted(path for path in ROOT.rglob("*.py") if path.parent != ROOT)


def imported_folders(path: Path) -> set[str]:
    """Every folder of the package a file imports from, at its top or inside a function."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are written in full"
            whole = node.module == "unmask"
            names += [f"unmask.{alias.name}" for alias in node.names] if whole else [str(node.module)]
    return {name.split(".")[1] for name in names if name.startswith("unmask.")} - {"version"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_folder_knows_only_those_before_it(path: Path) -> None:
    folder = path.relative_to(ROOT).parts[0]
    assert imported_folders(path) <= ALLOWED[folder]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_says_what_it_does_and_stays_readable(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "a module opens by saying what it does"
    assert len(text.splitlines()) <= 400, "a file holds one thing"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
            assert node.end_lineno - body[0].lineno < 50, f"{node.name} does one thing"


def test_importing_the_package_pulls_in_nothing_heavy() -> None:
    heavy = [
        "torch",
        "transformers",
        "datasets",
        "matplotlib",
        "tensorboard",
        "huggingface_hub",
        "aiohttp",
        "flask",
        "fastapi",
    ]
    code = f"import unmask, sys; print([name for name in {heavy!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "[]"


def test_every_public_name_is_there() -> None:
    for name in unmask.__all__:
        assert getattr(unmask, name) is not None
        assert name in dir(unmask)
    with pytest.raises(AttributeError, match="smaple"):
        unmask.smaple  # noqa: B018
