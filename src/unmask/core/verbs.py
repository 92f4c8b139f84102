"""What makes a function a verb: its types are checked in Python too, and dataclass parameters become plain keywords.

The command line reads the same signature and docstring (cli/parser.py). Sections of a docstring that list parameters
(`Args:`, `Model:`, `Machine:`) are the groups of its help.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import numbers
import re
import textwrap
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from unmask.core.errors import UserError, unknown
from unmask.core.plugins import load_plugins

Function = TypeVar("Function", bound=Callable[..., Any])
WORDS = {int: "a whole number", float: "a number", str: "a text", Path: "a path", bool: "true or false"}
MANY = {int: "several whole numbers", float: "several numbers", str: "several texts", Path: "several paths"}
SCALARS = (str, bytes, int, float, list, tuple, dict, type(None))


def verb(function: Function) -> Function:
    """Check the types of every call, load plug-ins first, and take the fields of dataclass parameters as keywords."""
    signature, owners, document = flattened(function)

    @functools.wraps(function)
    def call(*values: Any, **keywords: Any) -> Any:
        load_plugins()
        bound = signature.bind(*values, **keywords)
        for name, value in bound.arguments.items():
            check_type(name, value, signature.parameters[name].annotation)
        given = dict(bound.arguments)
        for owner, (kind, fields) in owners.items():
            given[owner] = kind(**{name: given.pop(name) for name in fields if name in given})
        only = [name for name, one in signature.parameters.items() if one.kind is one.POSITIONAL_ONLY and name in given]
        first = [given.pop(name) for name in only]
        return function(*first, **given)

    call.__signature__, call.__doc__ = signature, document  # type: ignore[attr-defined]
    return typing.cast(Function, call)


def flattened(function: Callable[..., Any]) -> tuple[inspect.Signature, dict[str, tuple[Any, list[str]]], str]:
    """A signature with its types resolved and dataclass parameters spread out, who owns the fields, the docstring."""
    if hasattr(function, "__signature__"):  # done already
        return function.__signature__, {}, function.__doc__ or ""
    hints = typing.get_type_hints(function)  # of a dataclass: its fields, inherited ones too
    found: list[inspect.Parameter] = []
    owners: dict[str, tuple[Any, list[str]]] = {}
    document = inspect.cleandoc(function.__doc__ or "")
    for name, parameter in inspect.signature(function).parameters.items():
        if dataclasses.is_dataclass(hints[name]) and parameter.default is parameter.empty:
            fields, _, about = flattened(typing.cast(Any, hints[name]))
            own = [one.replace(kind=parameter.KEYWORD_ONLY) for one in fields.parameters.values()]
            owners[name] = hints[name], [one.name for one in own]
            found += own
            document += "".join(f"\n\n{section}" for section in _sections(about)[1:])
        else:
            found.append(parameter.replace(annotation=hints[name]))
    found.sort(key=lambda one: one.kind)
    return inspect.Signature(found), owners, document


def _sections(document: str) -> list[str]:
    """The opening text of a docstring, then every section that begins with a line such as `Args:`."""
    return re.split(r"\n+(?=[A-Z][\w ,]*:\n    )", f"\n{inspect.cleandoc(document)}")


def documented(document: str | None) -> tuple[str, dict[str, tuple[str, str]]]:
    """The opening text of a docstring, and of every parameter the heading of its section and its help."""
    head, *sections = _sections(document or "")
    helps: dict[str, tuple[str, str]] = {}
    for section in sections:
        title, _, body = section.partition(":\n")
        for entry in re.split(r"\n(?=\S)", textwrap.dedent(body)):
            name, sign, text = entry.partition(":")
            if sign and name.isidentifier():
                helps[name] = title, " ".join(text.split())
    return head.strip(), helps


# --- types ------------------------------------------------------------------------------------------------------------


def alternatives(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, or the one type."""
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def check_type(name: str, value: Any, annotation: Any) -> None:
    """One line for a value of the wrong type."""
    if matches(value, annotation):
        return
    choices = [choice for one in alternatives(annotation) if get_origin(one) is Literal for choice in get_args(one)]
    if choices and isinstance(value, str):
        raise unknown(name, value, map(str, choices))
    raise UserError(f"{name} takes {in_words(annotation)}, not {_shown(value)}")


def matches(value: Any, annotation: Any) -> bool:
    """Whether a value is of a type, as far as that can be seen from outside."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if annotation in (Any, inspect.Parameter.empty, object):
        return True
    if origin in (Union, types.UnionType):
        return any(matches(value, one) for one in inner)
    if origin is Literal:
        return any(value == one and type(value) is type(one) for one in inner)
    if annotation is None or annotation is type(None):
        return value is None
    if annotation in (int, float):
        number = numbers.Integral if annotation is int else numbers.Real
        return isinstance(value, number) and not isinstance(value, bool)
    kind = origin or annotation
    if not isinstance(kind, type):
        return True
    if getattr(kind, "_is_protocol", False) and not getattr(kind, "_is_runtime_protocol", False):
        return not isinstance(value, SCALARS)  # its methods are not looked for
    if not isinstance(value, kind) or isinstance(value, (str, bytes)):
        return isinstance(value, kind) and not _holds(kind)  # a text is not a list of texts
    several = value.values() if isinstance(value, Mapping) else value if isinstance(value, Sequence) else ()
    return not inner or all(matches(one, inner[-1 if isinstance(value, Mapping) else 0]) for one in several)


def _holds(kind: Any) -> bool:
    """Whether it is a type of several values."""
    return isinstance(kind, type) and (issubclass(kind, (Sequence, Mapping)) and not issubclass(kind, (str, bytes)))


def in_words(annotation: Any) -> str:
    """A type as a person says it."""
    said: list[str] = []
    for one in alternatives(annotation):
        origin, inner = get_origin(one), get_args(one)
        if origin is Literal:
            said.append(f"one of {', '.join(map(str, inner))}")
        elif one in WORDS:
            said.append(WORDS[one])
        elif _holds(origin) and issubclass(origin, Mapping):
            said.append("a mapping of names")
        elif _holds(origin):
            said += [MANY.get(kind, f"several: {in_words(kind)}") for kind in alternatives(inner[0])]
        elif one is not type(None):
            said.append("a function" if origin is Callable else f"a {getattr(one, '__name__', one)}")
    return " or ".join(dict.fromkeys(said))


def _shown(value: Any) -> str:
    """A value for a message: itself if it is short and plain, else what it is."""
    if isinstance(value, SCALARS) and len(repr(value)) < 60:
        return repr(value)
    return f"a {type(value).__module__}.{type(value).__name__}".replace("builtins.", "")
