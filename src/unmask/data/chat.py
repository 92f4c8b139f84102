"""What stands beside a tokenizer.json: special tokens, what ends an answer, the chat template (in jinja's sandbox)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unmask.core.errors import UserError, reading
from unmask.core.files import read_json

FILE = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
GENERATION = "generation_config.json"
Messages = Sequence[Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Specials:
    """The special tokens that a tokenizer_config.json names, ids that end an answer, and the chat template."""

    bos_token: str | None = None
    eos_token: str | None = None
    pad_token: str | None = None
    mask_token: str | None = None
    chat_template: str | None = None
    stop_ids: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return self != Specials()

    def to_json(self) -> dict[str, Any]:
        """As the hub's tokenizer_config.json, with `stop_ids` beside."""
        said = {name: value for name, value in vars(self).items() if value}
        return {**said, "stop_ids": list(self.stop_ids)} if self.stop_ids else said

    @classmethod
    def beside(cls, tokenizer: Path) -> Specials:
        """What the files of its folder say; nothing where there are none."""
        folder = tokenizer.parent
        said = read_json(folder / FILE, "tokenizer config") if (folder / FILE).is_file() else {}
        names = ("bos_token", "eos_token", "pad_token", "mask_token")
        template = said.get("chat_template")
        if isinstance(template, list):  # several, each with a name
            template = next((one.get("template") for one in template if one.get("name") == "default"), None)
        if (folder / TEMPLATE).is_file():
            with reading(folder / TEMPLATE, "chat template", "download it again"):
                template = (folder / TEMPLATE).read_text(encoding="utf-8")
        stops = said.get("stop_ids", [])
        if (folder / GENERATION).is_file():
            ends = read_json(folder / GENERATION, "generation config").get("eos_token_id")
            stops = [*stops, *(ends if isinstance(ends, list) else [ends])]
        ids = tuple(sorted({one for one in stops if type(one) is int}))
        tokens = {name: _text(said.get(name)) for name in names}
        return cls(**tokens, chat_template=template if isinstance(template, str) else None, stop_ids=ids)


def _text(token: Any) -> str | None:
    """A token as its own text, or as an object that holds it."""
    token = token.get("content") if isinstance(token, Mapping) else token
    return token if isinstance(token, str) else None


def as_messages(chat: str | Messages) -> list[dict[str, str]]:
    """One message of the user, or a conversation: each message with its role and its text."""
    if isinstance(chat, str):
        return [{"role": "user", "content": chat}]
    for message in chat:
        if not isinstance(message, Mapping) or not all(isinstance(message.get(k), str) for k in ("role", "content")):
            raise UserError('a chat is a text, or messages such as {"role": "user", "content": "Hello"}')
    if not chat:
        raise UserError("the chat is empty: give at least one message")
    return [{"role": message["role"], "content": message["content"]} for message in chat]


def render(specials: Specials, messages: Messages, owner: str, *, open_answer: bool = True) -> str:
    """The conversation as the model read it in training, up to where its next answer begins (`open_answer`)."""
    from jinja2 import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    if specials.chat_template is None:
        raise UserError(f"{owner} has no chat template, as base models have none: give prompt instead of chat, or take "
                        "the instruct model")  # fmt: skip

    def refuse(message: str) -> None:
        raise UserError(f"the chat template of {owner} refuses these messages: {message}")

    def tojson(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    jinja = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    jinja.filters["tojson"] = tojson
    jinja.globals["raise_exception"] = refuse
    names = {name: value for name, value in vars(specials).items() if name.endswith("_token") and value}
    try:
        made = jinja.from_string(specials.chat_template)
        return made.render(messages=list(messages), add_generation_prompt=open_answer, **names)
    except (TemplateError, TypeError, ValueError) as error:
        raise UserError(f"the chat template of {owner} does not work: {error}") from error
