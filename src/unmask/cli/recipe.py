"""Recipes: option values in YAML, bundled by name or in a file."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from unmask.core.errors import UserError, nearest, os_errors


def read_recipe(recipe: str) -> dict[str, Any]:
    """The values of a recipe by name."""
    text = _text(recipe)
    try:
        content = yaml.safe_load(text) or {}
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date such as 2024-13-01
        raise UserError(f"recipe {recipe} is not valid YAML: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"recipe {recipe} must be a mapping from option names to values")
    return {str(name): value for name, value in content.items()}


def bundled_recipes() -> dict[str, Any]:
    """The recipes that come with the package, by name."""
    folder = resources.files("unmask").joinpath("recipes")
    return {item.name[: -len(".yaml")]: item for item in folder.iterdir() if item.name.endswith(".yaml")}


def _text(recipe: str) -> str:
    """Of a bundled recipe by name, else of a YAML file."""
    bundled = bundled_recipes()
    if recipe in bundled:
        return str(bundled[recipe].read_text(encoding="utf-8"))
    path = Path(recipe)
    if path.is_file():
        with os_errors("read", path):
            raw = path.read_bytes()
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            where = f"byte 0x{raw[error.start]:02x} at offset {error.start}"
            raise UserError(f"recipe {recipe} is not UTF-8 text ({where}): save it as UTF-8") from error
    guess = nearest(recipe, bundled)
    hint = f"did you mean {guess!r}? " if guess else ""
    raise UserError(f"no recipe {recipe!r}: {hint}bundled: {', '.join(sorted(bundled)) or 'none'}; or give a YAML file")
