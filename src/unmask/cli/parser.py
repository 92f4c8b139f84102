"""A command line from a typed function: its signature gives the options, its docstring their help.

Positional-only parameters are positional on the command line, a dataclass parameter is spread out into its fields,
`list[T]` takes several values, `bool` is a switch. `--config` reads a recipe (YAML), options override it,
`--print_config` shows the outcome. Written on argparse, because the house wants three things together that the
ready-made parsers only give in part: space-separated lists, plain switches, and one-line errors with the nearest name.

Refuses to know any verb.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import yaml

from unmask.core.errors import UserError, nearest, os_errors, unknown

MISSING = inspect.Parameter.empty


@dataclasses.dataclass(frozen=True)
class Option:
    """One value the user may give."""

    name: str
    kind: Any  # the element type: str, int, float, bool, Path or a Literal
    many: bool  # takes a list
    optional: bool  # may be None
    default: Any
    positional: bool
    help: str
    owner: str | None  # the dataclass parameter this is a field of, if any

    @property
    def flag(self) -> str:
        """Its name on the command line; `from_` is written --from, since Python keeps that word."""
        return self.name.rstrip("_")

    @property
    def choices(self) -> tuple[Any, ...] | None:
        return get_args(self.kind) if get_origin(self.kind) is Literal else None

    def convert(self, raw: Any) -> Any:
        """A value from the command line or a recipe, checked; raises UserError in one line."""
        if raw is None:  # a recipe's null
            if self.optional:
                return None
            raise UserError(f"--{self.flag} must have a value, not null")
        if self.many:
            items = raw if isinstance(raw, list) else [raw]
            return [self._convert_one(item) for item in items]
        if isinstance(raw, (list, dict)):
            raise UserError(f"--{self.flag} takes one value, not {raw!r}")
        return self._convert_one(raw)

    def _convert_one(self, raw: Any) -> Any:
        if isinstance(raw, str):
            _check_text(raw, self.name.upper() if self.positional else f"--{self.flag}")
        if self.choices is not None:
            for choice in self.choices:
                if str(raw) == str(choice):
                    return choice
            raise unknown(f"choice for --{self.flag}", str(raw), map(str, self.choices))
        if self.kind is bool:
            if isinstance(raw, bool):
                return raw
            raise UserError(f"--{self.flag} takes true or false, not {raw!r}")
        if isinstance(raw, bool) and self.kind in (int, float):
            raise UserError(f"--{self.flag} takes {_NAMES[self.kind]}, not {raw!r}")
        try:
            if not (self.kind is int and isinstance(raw, float)):  # int(3.9) is 3: a whole number is asked for below
                return self._bounded(self.kind(raw))
        except (TypeError, ValueError):
            pass
        if self.kind is int and isinstance(raw, (str, float)):  # 1e5 is a whole number too
            try:
                if float(raw) == int(float(raw)):
                    return self._bounded(int(float(raw)))
            except (ValueError, OverflowError):
                pass
        if self.kind is float and isinstance(raw, str):  # 1/512, as the help writes it
            over, _, under = raw.partition("/")
            try:
                return float(over) / float(under)
            except (ValueError, ZeroDivisionError):
                pass
        several = "; put spaces between several" if self.many and "," in str(raw) else ""
        raise UserError(f"--{self.flag} takes {_NAMES.get(self.kind, self.kind.__name__)}, not {raw!r}{several}")

    def _bounded(self, value: Any) -> Any:
        """Counts and sizes are numbers of 64 bits; a seed is only a name."""
        if self.kind is int and abs(value) >= 2**63 and self.flag != "seed":
            raise UserError(f"--{self.flag} takes a whole number of at most 64 bits, not {value}")
        return value


def _check_text(raw: str, where: str) -> None:
    """Bytes that are not UTF-8 reach Python as halves of characters, which no file and no tokenizer takes."""
    try:
        raw.encode("utf-8")
    except UnicodeEncodeError as error:
        said = raw.encode("utf-8", "backslashreplace").decode("utf-8")
        raise UserError(f"{where} is not UTF-8 text: {said}; give it in UTF-8, rename a file called so") from error


_NAMES = {int: "a whole number", float: "a number", str: "a text", Path: "a path"}


def _split_type(annotation: Any) -> tuple[Any, bool, bool]:
    """(element type, many, optional) of an annotation such as `list[float] | None`."""
    optional = False
    if get_origin(annotation) in (Union, types.UnionType):
        rest = [part for part in get_args(annotation) if part is not type(None)]
        optional = len(rest) < len(get_args(annotation))
        # a union such as `float | str` is parsed by the function itself, from text
        annotation = rest[0] if len(rest) == 1 else str
    if get_origin(annotation) in (list, tuple):
        return get_args(annotation)[0], True, optional
    return annotation, False, optional


def _helps(docstring: str | None) -> tuple[str, dict[str, str]]:
    """The opening text of a docstring and the help of each argument in its `Args:` section."""
    text = inspect.cleandoc(docstring or "")
    head, _, tail = text.partition("\nArgs:\n")
    helps: dict[str, str] = {}
    name = None
    for line in tail.splitlines():
        if line and not line.startswith(" "):
            break
        start = re.match(r"    (\w+): (.*)", line)
        if start and not line.startswith("     "):
            name = start.group(1)
            helps[name] = start.group(2).strip()
        elif name and line.strip():
            helps[name] += " " + line.strip()
    return head.strip(), helps


def options_of(function: Callable[..., Any], owner: str | None = None) -> list[Option]:
    """The options of a function or dataclass, dataclass parameters spread out into their fields."""
    hints = typing.get_type_hints(function)  # of a dataclass: its fields, inherited ones too
    helps = _helps(function.__doc__)[1]
    found: list[Option] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if dataclasses.is_dataclass(hints[name]):
            found += options_of(hints[name], owner=name)
            continue
        kind, many, optional = _split_type(hints[name])
        default = parameter.default
        if default is not MISSING and not isinstance(default, (str, int, float, bool, list, tuple, Path, type(None))):
            default = None  # a dataclass field with a factory
        positional = parameter.kind is parameter.POSITIONAL_ONLY
        shown = name.rstrip("_")  # `from_` is --from
        found.append(Option(shown, kind, many, optional, default, positional, helps.get(name, ""), owner))
    return found


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> typing.NoReturn:
        raise UserError(f"{message}; see --help")


def _shown(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return " ".join(map(_shown, value))
    return str(value)


def _metavar(option: Option) -> str:
    if option.choices:
        return "{" + ",".join(map(str, option.choices)) + "}"
    return {int: "N", float: "X", Path: "PATH"}.get(option.kind, "TEXT")


class CommandLine:
    """The command line of one verb."""

    def __init__(self, function: Callable[..., Any], program: str) -> None:
        self.function = function
        self.options = {option.name: option for option in options_of(function)}
        self.parser = _Parser(
            prog=program,
            description=_helps(function.__doc__)[0],
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for option in self.options.values():
            self._add(option)
        add = self.parser.add_argument
        add("--config", metavar="RECIPE", help="a recipe's name or a YAML file; options override it")
        add("--print_config", "--print-config", action="store_true", help="print the resulting config and stop")

    def _add(self, option: Option) -> None:
        shown = option.help.replace("%", "%%")
        nothing = (MISSING, None, False)  # by identity, for 0 == False, and 0 is a default that is told
        if not any(option.default is one for one in nothing) and option.default != []:
            shown += f" (default: {_shown(option.default)})"
        if option.positional:
            nargs = "*" if option.many else ("?" if option.default is not MISSING else None)
            metavar = option.name.upper()
            self.parser.add_argument(
                option.name, nargs=nargs, default=argparse.SUPPRESS, help=shown, metavar=metavar
            ).required = False  # a recipe may have it: `parse` says what is missing
            return
        flags = list(dict.fromkeys(f"--{spelling}" for spelling in (option.flag, option.flag.replace("_", "-"))))
        settings: dict[str, Any] = {"dest": option.name, "default": argparse.SUPPRESS, "help": shown}
        if option.kind is bool and not option.many:
            self.parser.add_argument(*flags, action=argparse.BooleanOptionalAction, **settings)
        elif option.many:
            self.parser.add_argument(*flags, nargs="+", metavar=_metavar(option), **settings)
        else:
            self.parser.add_argument(*flags, metavar=_metavar(option), **settings)

    def parse(self, argv: list[str]) -> dict[str, Any] | None:
        """The function's keyword values by option name, or None if only the config was to be printed."""
        given, extra = self.parser.parse_known_args(argv)
        if extra:
            raise self._unknown(extra[0])
        values = vars(given)
        recipe, only_print = values.pop("config"), values.pop("print_config")
        chosen = self._read_recipe(recipe) if recipe else {}
        chosen |= {
            name: self.options[name].convert(raw)
            for name, raw in values.items()
            if not (self.options[name].positional and self.options[name].many and raw == [])
        }
        full = {name: option.default for name, option in self.options.items() if option.default is not MISSING} | chosen
        if only_print:
            shown = {self.options[name].flag: _plain(value) for name, value in full.items()}
            print(yaml.safe_dump(shown, sort_keys=False), end="")
            return None
        missing = [option for name, option in self.options.items() if name not in full]
        if missing:
            names = ", ".join(o.name.upper() if o.positional else f"--{o.flag}" for o in missing)
            raise UserError(f"{names} must be given; see --help")
        return full

    def call(self, argv: list[str]) -> Any:
        """Parse and run."""
        values = self.parse(argv)
        if values is None:
            return None
        positional: list[Any] = []
        keywords: dict[str, Any] = {}
        groups: dict[str, dict[str, Any]] = {}
        hints = typing.get_type_hints(self.function)
        for name, option in self.options.items():
            if option.owner:
                groups.setdefault(option.owner, {})[name] = values[name]
            elif option.positional:
                positional.append(values[name])
            else:
                keywords[name if name in hints else f"{name}_"] = values[name]
        for owner, fields in groups.items():
            keywords[owner] = hints[owner](**fields)
        return self.function(*positional, **keywords)

    def _unknown(self, word: str) -> UserError:
        name = word.split("=")[0]
        if not name.startswith("--"):
            return UserError(f"unexpected argument {word!r}; see --help")
        allowed = ["--config", "--print_config", "--help"]
        allowed += [f"--{option.flag}" for option in self.options.values() if not option.positional]
        guess = nearest(name[2:], [option[2:] for option in allowed], cutoff=0.6)  # the dashes make any two alike
        return UserError(f"unknown option {name}: " + (f"did you mean --{guess}?" if guess else "see --help"))

    def _read_recipe(self, recipe: str) -> dict[str, Any]:
        source, text = _find_recipe(recipe)
        try:
            content = yaml.safe_load(text) or {}
        except (yaml.YAMLError, ValueError) as error:  # ValueError: a date such as 2024-13-01
            raise UserError(f"recipe {source} is not valid YAML: {error}") from error
        if not isinstance(content, dict):
            raise UserError(f"recipe {source} must be a mapping from option names to values")
        by_flag = {option.flag: option for option in self.options.values()}
        chosen = {}
        for key, raw in content.items():
            option = by_flag.get(str(key).replace("-", "_"))
            if option is None and source in _bundled():  # whose keys are right for the verb they are made for
                raise UserError(f"the bundled recipe {source} is for another verb: this one has no option {key!r}")
            if option is None:
                guess = nearest(str(key), by_flag)
                hint = f"did you mean {guess!r}?" if guess else f"allowed: {', '.join(by_flag)}"
                raise UserError(f"recipe {source} has an unknown key {key!r}: {hint}")
            chosen[option.name] = option.convert(raw)
        return chosen


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _bundled() -> dict[str, Any]:
    """The recipes that come with the package, by name."""
    return {
        item.name.removesuffix(".yaml"): item
        for item in resources.files("unmask").joinpath("recipes").iterdir()
        if item.name.endswith(".yaml")
    }


def _find_recipe(recipe: str) -> tuple[str, str]:
    """(where it came from, its text): a bundled recipe by name, else a YAML file."""
    bundled = _bundled()
    if recipe in bundled:
        return recipe, bundled[recipe].read_text(encoding="utf-8")
    path = Path(recipe)
    if path.is_file():
        with os_errors("read", path):
            raw = path.read_bytes()
        try:
            return recipe, raw.decode("utf-8")
        except UnicodeDecodeError as error:
            where = f"byte 0x{raw[error.start]:02x} at offset {error.start}"
            raise UserError(f"recipe {recipe} is not UTF-8 text ({where}): save it as UTF-8") from error
    guess = nearest(recipe, bundled)
    hint = f"did you mean {guess!r}? " if guess else ""
    raise UserError(f"no recipe {recipe!r}: {hint}bundled: {', '.join(sorted(bundled)) or 'none'}; or give a YAML file")
