"""A command line from a typed function: its signature gives the options, its docstring their help.

`CommandLine(function, program, present)`: the options are the function's parameters that a line of text can give, and
the presenter's keywords, which are about what is shown. The presenter gets the function with its values filled in, and
calls it. `--config` reads a recipe (YAML), options override it, `--print_config` shows the outcome.
"""

from __future__ import annotations

import argparse
import functools
import shutil
import textwrap
import typing
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from unmask.cli.options import MISSING, Option, options_of
from unmask.core.errors import UserError, nearest, reading
from unmask.core.plugins import load_plugins
from unmask.core.verbs import documented, flattened

Call = functools.partial[Any]  # a verb with the values of its options: what a presenter calls
SHORT = {"n": "-n", "out": "-o"}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> typing.NoReturn:
        raise UserError(f"{message}; see --help")


class _Help(argparse.HelpFormatter):
    """At most 80 columns: paragraphs stay, indented lines stay as they are, a switch is shown once."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=24, width=min(shutil.get_terminal_size().columns, 80) - 1)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = text.split("\n\n")
        return "\n\n".join(part if part.startswith(" ") else textwrap.fill(part, width) for part in parts)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if isinstance(action, argparse.BooleanOptionalAction):
            return action.option_strings[0].replace("--", "--[no-]" if action.const else "--")
        shown = ", ".join(action.option_strings) or str(action.metavar)
        if action.option_strings and action.nargs != 0:
            shown += f" {action.metavar}" + (" ..." if action.nargs == "+" else "")
        lines = textwrap.wrap(shown.replace(",", ", "), self._width - 4, subsequent_indent="    ")
        return shown if len(lines) < 2 else "\n".join(lines).replace(", ", ",")


class CommandLine:
    """The command line of one verb: `positional` parameters need no flag, `machine` gives --threads, `plugins`
    --plugin."""

    def __init__(
        self, function: Callable[..., Any], program: str, present: Callable[..., Any] | None = None, *,
        positional: Sequence[str] = (), machine: bool = False, plugins: bool = False,
    ) -> None:  # fmt: skip
        self.function, self.program, self.present = function, program, present
        self.machine, self.plugins = machine, plugins
        shows = options_of(present, group="Output") if present else []
        self._shows = [option.name for option in shows]
        self.options = {option.name: option for option in [*options_of(function, positional), *shows]}

    @functools.cached_property
    def parser(self) -> argparse.ArgumentParser:
        named = [option for option in self.options.values() if option.positional or option.default is MISSING]
        words = map(_in_usage, named)
        parser = _Parser(
            prog=self.program, usage=f"{self.program} {' '.join(['[options]', *words])}", allow_abbrev=False,
            description=documented(flattened(self.function)[2])[0], formatter_class=_Help,
        )  # fmt: skip
        self.fill(parser)
        return parser

    def fill(self, parser: argparse.ArgumentParser) -> None:
        """Add the options, in the groups of the docstring."""
        groups: dict[str, Any] = {"Args": parser}
        for option in self.options.values():
            title = option.group
            groups[title] = groups.get(title) or parser.add_argument_group(title[0].lower() + title[1:])
            _add(groups[title], option)
        if self.machine:
            machine = groups.get("Machine") or parser.add_argument_group("machine")
            machine.add_argument("--threads", metavar="N", help="threads of torch (default: its own choice)")
        add = parser.add_argument_group("recipe and plug-ins" if self.plugins else "recipe").add_argument
        if self.plugins:
            add(
                "--plugin", metavar="MODULE", action="append", default=[],
                help="a module or .py file to load first, which may add plans, families, metrics (repeatable)",
            )  # fmt: skip
        add("--config", metavar="RECIPE", help="a recipe's name or a YAML file; options override it")
        add("--print_config", action="store_true", help="print the resulting config and stop")

    def parse(self, argv: list[str]) -> dict[str, Any] | None:
        """The values of all options by name, or None if only the config was to be printed."""
        given, extra = self.parser.parse_known_args(self._spelled(argv))
        if extra:
            raise self._unknown(extra[0])
        values = vars(given)
        recipe, only_print, threads = values.pop("config"), values.pop("print_config"), values.pop("threads", None)
        load_plugins(values.pop("plugin", ()))
        chosen = self._read_recipe(recipe) if recipe else {}
        for name, raw in values.items():
            if not (self.options[name].positional and raw == []):
                chosen[name] = self.options[name].convert(raw)
        full = {name: option.default for name, option in self.options.items() if option.default is not MISSING} | chosen
        if only_print:
            shown = {self.options[name].flag: _as_yaml(value) for name, value in full.items()}
            print(yaml.safe_dump(shown, sort_keys=False), end="")
            return None
        if missing := [option.shown for name, option in self.options.items() if name not in full]:
            raise UserError(f"{', '.join(missing)} must be given; see --help")
        if threads is not None:
            _set_threads(Option("threads", int).convert(threads))
        return full

    def call(self, argv: list[str]) -> Any:
        values = self.parse(argv)
        if values is None:
            return None
        shows = {name: values.pop(name) for name in self._shows}
        signature, owners, _ = flattened(self.function)
        for owner, (kind, fields) in owners.items():
            values[owner] = kind(**{name: values.pop(name) for name in fields if name in values})
        first = [values.pop(name) for name, one in signature.parameters.items() if one.kind is one.POSITIONAL_ONLY]
        call = functools.partial(self.function, *first, **values)
        return self.present(call, **shows) if self.present else call()

    def _spelled(self, argv: list[str]) -> list[str]:
        """--block-size is --block_size, and --no_bounds is --no-bounds."""
        end = argv.index("--") if "--" in argv else len(argv)
        known = {f"--{option.flag}" for option in self.options.values()} | {"--print_config"}

        def spelled(word: str) -> str:
            flag, sign, value = word.partition("=")
            name = flag[2:].replace("-", "_")
            if f"--{name}" in known:
                return f"--{name}{sign}{value}"
            is_off = name.startswith("no_") and f"--{name[3:]}" in known
            return f"--no-{name[3:]}{sign}{value}" if is_off else word

        return [spelled(word) if word.startswith("--") else word for word in argv[:end]] + argv[end:]

    def _unknown(self, word: str) -> UserError:
        name = word.split("=")[0]
        if not name.startswith("--"):
            return UserError(f"unexpected argument {word!r}; see --help")
        allowed = [flag[2:] for action in self.parser._actions for flag in action.option_strings if flag[:2] == "--"]
        # --temp of --temperature, --steps where there are --round_steps
        longer = [flag for flag in allowed if any(part.startswith(name[2:]) for part in flag.split("_"))]
        guesses = dict.fromkeys(longer or filter(None, [nearest(name[2:], allowed, cutoff=0.6)]))
        meant = " or ".join(f"--{guess}" for guess in guesses)
        return UserError(f"unknown option {name}: " + (f"did you mean {meant}?" if meant else "see --help"))

    def _read_recipe(self, recipe: str) -> dict[str, Any]:
        content = read_recipe(recipe)
        if self.plugins:
            named = content.pop("plugin", [])
            load_plugins([named] if isinstance(named, str) else named)
        by_flag = {option.flag: option for option in self.options.values()}
        chosen = {}
        for key, raw in content.items():
            option = by_flag.get(str(key).replace("-", "_"))
            if option is None and recipe in bundled_recipes():  # whose keys are right for the verb they are made for
                raise UserError(f"the bundled recipe {recipe} is for another verb: this one has no option {key!r}")
            if option is None:
                guess = nearest(str(key), by_flag)
                hint = f"did you mean {guess!r}?" if guess else f"allowed: {', '.join(by_flag)}"
                raise UserError(f"recipe {recipe} has an unknown key {key!r}: {hint}")
            chosen[option.name] = option.convert(raw)
        return chosen


def _in_usage(option: Option) -> str:
    if not option.positional:
        return f"{option.shown} {option.metavar}"
    return option.shown if option.default is MISSING else f"[{option.shown}]"


def _add(group: Any, option: Option) -> None:
    """One option for argparse, which only collects words: `Option.convert` reads them."""
    help_ = option.help.replace("%", "%%")
    if not any(option.default is one for one in (MISSING, None, False)) and option.default not in ([], ()):
        shown = [option.default] if not isinstance(option.default, (list, tuple)) else option.default
        help_ += f" (default: {'on' if option.default is True else ' '.join(map(str, shown))})"
    settings: dict[str, Any] = {"default": argparse.SUPPRESS, "help": help_}
    if option.positional:
        nargs = "*" if option.elements else "?"  # a recipe may have it: `parse` says what is missing
        group.add_argument(option.name, nargs=nargs, metavar=option.flag.upper(), **settings)
        return
    flags = [*([SHORT[option.flag]] if option.flag in SHORT else []), f"--{option.flag}"]
    if option.scalars == [bool] and not option.elements:
        action = group.add_argument(*flags, dest=option.name, action=argparse.BooleanOptionalAction, **settings)
        action.const = option.default is True  # its help shows --no- only where that changes something
    else:
        several = "+" if option.elements else None
        group.add_argument(*flags, dest=option.name, nargs=several, metavar=option.metavar, **settings)


def _set_threads(threads: int) -> None:
    import torch

    if threads < 1:
        raise UserError(f"--threads must be at least 1, not {threads}")
    torch.set_num_threads(threads)


def _as_yaml(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _as_yaml(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_yaml(item) for item in value]
    return str(value) if isinstance(value, Path) else value


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
