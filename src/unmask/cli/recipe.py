"""Recipes: option values in YAML, bundled by name or in a file."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from unmask.core.errors import UserError, nearest, reading


def read_recipe(recipe: str) -> dict[str, Any]:
    bundled, path = bundled_recipes(), Path(recipe)
    if recipe not in bundled and not path.is_file():
        guess = nearest(recipe, bundled)
        hint = f"did you mean {guess!r}? " if guess else ""
        raise UserError(f"no recipe {recipe!r}: {hint}bundled: {', '.join(sorted(bundled))}; or give a YAML file")
    with reading(path, "recipe", "save it as YAML in UTF-8"):
        content = yaml.safe_load(bundled.get(recipe, path).read_text(encoding="utf-8")) or {}
        if not isinstance(content, dict):
            raise ValueError("it must map option names to values")
    return {str(name): value for name, value in content.items()}


def bundled_recipes() -> dict[str, Any]:
    """The recipes that come with the package, by name."""
    folder = resources.files("unmask").joinpath("recipes")
    return {item.name[: -len(".yaml")]: item for item in folder.iterdir() if item.name.endswith(".yaml")}
