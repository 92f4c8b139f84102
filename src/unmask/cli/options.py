"""Options: what a word on the command line, or a value in a recipe, may be, read off a parameter's type.

A union takes the first of its types that fits, text last; `T | Sequence[T]` takes one value or several; `Mapping` takes
NAME=VALUE; what no word can give (functions, tensors, models) is no option.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from unmask.core.errors import UserError, unknown
from unmask.core.verbs import MANY, WORDS, alternatives, documented, flattened

MISSING = inspect.Parameter.empty
METAVARS = {int: "N", float: "X", bool: "BOOL", Path: "PATH", str: "TEXT"}
TEXT = (str, Path)  # take any word, so they are tried last


@dataclass(frozen=True)
class Option:
    """One value the user may give."""

    name: str
    annotation: Any
    default: Any = MISSING
    positional: bool = False
    group: str = ""
    help: str = ""

    @functools.cached_property
    def scalars(self) -> list[Any]:
        """The types of a single value."""
        return _plain_kinds(alternatives(self.annotation))

    @functools.cached_property
    def elements(self) -> list[Any]:
        """The types of a list's items, or of the values of NAME=VALUE."""
        inner = [get_args(kind)[-1] for kind in alternatives(self.annotation) if _is(kind, (Sequence, Mapping))]
        return _plain_kinds(one for kind in inner for one in alternatives(kind))

    @functools.cached_property
    def named(self) -> bool:
        """Takes NAME=VALUE."""
        return any(_is(kind, Mapping) for kind in alternatives(self.annotation))

    @property
    def flag(self) -> str:
        """Its name on the command line; `from_` is written --from, since Python keeps that word."""
        return self.name.rstrip("_")

    @property
    def shown(self) -> str:
        return self.flag.upper() if self.positional else f"--{self.flag}"

    @property
    def choices(self) -> list[str]:
        return _choices(self.scalars or self.elements)

    @property
    def metavar(self) -> str:
        kinds = self.scalars or self.elements
        if self.choices:
            return "{" + ",".join(self.choices) + "}"
        is_path = Path in alternatives(self.annotation)
        kind = METAVARS[Path if is_path else str if str in kinds else kinds[0]]
        return kind if not self.named else "NAME=VALUE" if len(kinds) > 1 else f"NAME={kind}"

    def convert(self, raw: Any) -> Any:
        """A value from the command line or a recipe, checked; raises UserError in one line."""
        if raw is None:  # a recipe's null
            if type(None) in alternatives(self.annotation):
                return None
            raise UserError(f"{self.shown} must have a value, not null")
        if self.named:
            pairs = raw.items() if isinstance(raw, dict) else self._pairs(raw if isinstance(raw, list) else [raw])
            return {str(name): self._value(value) for name, value in pairs}
        words = raw if isinstance(raw, list) else [raw]
        if isinstance(raw, dict) or (isinstance(raw, list) and not self.elements):
            raise UserError(f"{self.shown} takes one value, not {raw!r}")
        attempts = [(kind, False) for kind in self.scalars] + [(kind, True) for kind in self.elements]
        for kind, several in sorted(attempts, key=lambda one: one[0] in TEXT):
            if (several or len(words) == 1) and all(self._fits(kind, word) for word in words):
                values = [self._read(kind, word) for word in words]
                return values if several else values[0]
        kinds = self.scalars + self.elements
        if wrong := [word for word in words if not any(self._fits(kind, word) for kind in kinds)]:
            raise self._mistake(kinds, wrong[0])
        allowed = [WORDS[kind] for kind in self.scalars] + [MANY[kind] for kind in self.elements]
        raise UserError(f"{self.shown} takes {' or '.join(allowed)}, not {' '.join(map(str, words))!r}")

    def _pairs(self, words: list[Any]) -> Iterable[tuple[str, str]]:
        pairs: dict[str, str] = {}
        for word in words:
            name, sign, value = str(word).partition("=")
            if not (name and sign and value):
                such = f"NAME=VALUE, such as student={str(word).strip('=') or 'pocket'}"  # nothing twice
                raise UserError(f"{self.shown} takes {such}; {word!r} is not of that form")
            if name in pairs:
                raise UserError(f"two of {self.shown} are named {name!r}: give each a name of its own")
            pairs[name] = value
        return pairs.items()

    def _value(self, word: Any) -> Any:
        """The value of NAME=VALUE."""
        for kind in sorted(self.elements, key=lambda kind: kind in TEXT):
            if self._fits(kind, word):
                return self._read(kind, word)
        raise self._mistake(self.elements, word)

    def _mistake(self, kinds: list[Any], word: Any) -> UserError:
        if choices := _choices(kinds):
            return unknown(f"choice for {self.shown}", str(word), choices)
        several = "; put spaces between several" if self.elements and "," in str(word) else ""
        allowed = " or ".join(dict.fromkeys(WORDS[kind] for kind in kinds))
        return UserError(f"{self.shown} takes {allowed}, not {word!r}{several}")

    def _fits(self, kind: Any, word: Any) -> bool:
        try:
            self._read(kind, word)
        except (TypeError, ValueError, OverflowError, ZeroDivisionError):
            return False
        return True

    def _read(self, kind: Any, raw: Any) -> Any:
        """A word as a value of a type; raises ValueError or TypeError where it is none."""
        if get_origin(kind) is Literal:
            return get_args(kind)[list(map(str, get_args(kind))).index(str(raw))]
        if kind is bool and raw in ("true", "false"):
            return raw == "true"
        if isinstance(raw, (list, dict)) or isinstance(raw, bool) is not (kind is bool):
            raise TypeError
        if kind is int:
            return _whole(raw)
        if kind is float and isinstance(raw, str) and "/" in raw:  # 1/512, as the help writes it
            over, _, under = raw.partition("/")
            return float(over) / float(under)
        return kind(raw)


def _whole(raw: Any) -> int:
    """1e5 is a whole number too, and 3.9 is none."""
    try:
        return raw if isinstance(raw, int) else int(str(raw))
    except ValueError:
        if not float(raw).is_integer():
            raise
        return int(float(raw))


def _is(kind: Any, parents: type | tuple[type, ...]) -> bool:
    origin = get_origin(kind)
    return isinstance(origin, type) and issubclass(origin, parents)


def _plain_kinds(kinds: Iterable[Any]) -> list[Any]:
    """Those a word can give; a text stands for a path too where either is taken."""
    found = [kind for kind in dict.fromkeys(kinds) if kind in METAVARS or get_origin(kind) is Literal]
    return [kind for kind in found if not (kind is Path and str in found)]


def _choices(kinds: Iterable[Any]) -> list[str]:
    return [str(choice) for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]


def options_of(function: Callable[..., Any], positional: Sequence[str] = (), group: str = "") -> list[Option]:
    """The options of a function: its parameters that a line of text can give."""
    signature, _, document = flattened(function)
    helps = documented(document)[1]
    found: list[Option] = []
    for name, one in signature.parameters.items():
        title, text = helps.get(name, ("Args", ""))
        is_positional = one.kind is one.POSITIONAL_ONLY or name in positional
        option = Option(name, one.annotation, one.default, is_positional, group or title, text)
        if option.scalars or option.elements:
            found.append(option)
    return found
