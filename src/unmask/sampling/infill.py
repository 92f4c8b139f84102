"""What is given and what is blank: prompts, suffixes and `"Once upon a ____ there ____"` as token templates.

A template is one sequence to fill: its token ids, (L,), -1 where it is blank.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from unmask.core.errors import UserError
from unmask.processes import States

BLANK = re.compile(r"_{3,}")  # one underscore a token, at least three


USUAL_LENGTH = 1024  # of a text where nobody says, of models that take longer ones
USUAL_ANSWER = 128  # tokens of an answer where nobody says


class TextCodec(Protocol):
    def encode(self, text: str) -> list[int]: ...
    def chat(self, chat: str) -> list[int]: ...
    def decode(self, ids: list[int]) -> str: ...


def _encode(text: str, tokenizer: TextCodec | None) -> list[int]:
    if tokenizer is None:
        raise UserError("this model has no tokenizer, so it takes no text: give infill as a tensor of token ids")
    return list(tokenizer.encode(text))


def from_prompt(prompt: str, suffix: str, length: int, tokenizer: TextCodec | None) -> Tensor:
    """The prompt at the start, the suffix at the end, blanks between."""
    head = _encode(prompt, tokenizer) if prompt else []
    tail = _encode(suffix, tokenizer) if suffix else []
    blanks = length - len(head) - len(tail)
    if blanks < 1:
        raise UserError(f"the given text has {len(head) + len(tail)} tokens and leaves no blank in {length}: "
                        "shorten it, or raise the length up to the model's")  # fmt: skip
    return torch.tensor(head + [-1] * blanks + tail)


def from_pattern(pattern: str, tokenizer: TextCodec | None) -> Tensor:
    """Words with blanks: a run of three or more underscores stands for as many tokens."""
    if not BLANK.search(pattern):
        raise UserError(f"the infill {pattern!r} has no blank: mark one with underscores, one a token, at least three")
    ids: list[int] = []
    start = 0
    for blank in BLANK.finditer(pattern):
        # the space before a blank belongs to the blank's first token, as byte-level BPE writes it
        given = pattern[start : blank.start()].removesuffix(" ")
        ids += _encode(given, tokenizer) if given else []
        ids += [-1] * len(blank.group())
        start = blank.end()
    ids += _encode(pattern[start:], tokenizer) if pattern[start:] else []
    return torch.tensor(ids)


def answer_of(tokens_L: Tensor, template_L: Tensor, stop_ids: Collection[int], *, alone: bool) -> list[int]:
    """A text up to the first token that ends it, that one left out; `alone`: without what was given before."""
    tokens, blank_L = tokens_L.tolist(), template_L < 0
    start = int(blank_L.int().argmax())
    end = next((i for i in range(start, len(tokens)) if tokens[i] in stop_ids), len(tokens))
    return tokens[start if alone else 0 : end]


def _per_sample(name: str, value: object, n: int) -> list:
    """One value for every sample: a single one is repeated, a list must have n."""
    if value is None or isinstance(value, (str, int)):
        return [value] * n
    assert isinstance(value, Sequence)
    if len(value) != n:
        raise UserError(f"{name} has {len(value)} entries for {n} samples: give one, or one for each sample")
    return list(value)


def from_ids(ids: Tensor, n: int, states: States) -> list[Tensor]:
    """Token ids as they stand, blank where they are the mask or -1: (L,) for every sample, or (n, L)."""
    if ids.ndim not in (1, 2) or ids.is_floating_point():
        raise UserError(f"infill is (L,) or (n, L) token ids, not {tuple(ids.shape)} of {ids.dtype}")
    rows = ids.long().cpu().expand(n, -1) if ids.ndim == 1 else ids.long().cpu()
    if len(strange := rows[(rows < -1) | (rows >= states.size)]):
        blank = -1 if states.mask is None else states.mask
        raise UserError(f"infill has the id {int(strange[0])}: give ids below {states.size}, {blank} where it is blank")
    if states.mask is not None:
        rows = rows.masked_fill(rows == states.mask, -1)
    return _per_sample("infill", list(rows), n)


def templates(
    n: int, *, longest: int, states: States, tokenizer: TextCodec | None, length: int | Sequence[int] | None = None,
    prompt: str | Sequence[str] | None = None, suffix: str | Sequence[str] | None = None,
    infill: str | Sequence[str] | Tensor | None = None, chat: str | Sequence[str] | None = None,
    max_new: int | None = None,
) -> list[Tensor]:  # fmt: skip
    """A template for each of n samples."""
    if n < 1:
        raise UserError(f"n must be at least 1, not {n}")
    if infill is not None and (prompt or suffix or length):
        raise UserError("infill says everything that is given: leave out prompt, suffix and length")
    is_ids = isinstance(infill, Tensor)
    _check_answer(max_new, suffix=suffix, length=length, infill=None if is_ids else infill)
    if chat is not None and (prompt or suffix or length or infill is not None):
        raise UserError("chat says everything that is given: leave out prompt, suffix, infill and length, and bound "
                        "the answer with max_new")  # fmt: skip
    if isinstance(infill, Tensor):
        found = from_ids(infill, n, states)
        found = [torch.nn.functional.pad(ids_L, (0, max_new or 0), value=-1) for ids_L in found]
    elif chat is not None:
        if tokenizer is None:
            raise UserError("this model has no tokenizer, so it takes no chat: give infill as a tensor of token ids")
        blanks = [-1] * (max_new or USUAL_ANSWER)
        found = [torch.tensor(tokenizer.chat(text) + blanks) for text in _per_sample("chat", chat, n)]
    elif max_new is not None:
        heads = [_encode(text or "", tokenizer) for text in _per_sample("prompt", prompt, n)]
        found = [torch.tensor(head + [-1] * max_new) for head in heads]
    elif infill is not None:
        found = [from_pattern(text, tokenizer) for text in _per_sample("infill", infill, n)]
    else:
        given = {"prompt": prompt, "suffix": suffix, "length": length}
        parts = [_per_sample(name, value, n) for name, value in given.items()]

        @cache  # mostly all are alike
        def one(head: str | None, tail: str | None, size: int | None) -> Tensor:
            return from_prompt(head or "", tail or "", _checked(size, longest), tokenizer)

        found = [one(*each) for each in zip(*parts, strict=True)]
    for template_L in {id(template_L): template_L for template_L in found}.values():
        if len(template_L) > longest:
            raise UserError(f"the given text and its blanks take {len(template_L)} tokens, the model at most {longest}")
        if not bool((template_L < 0).any()):
            raise UserError("a sample has no blank to fill: leave at least one position masked")
    return found


def _check_answer(max_new: int | None, **others: object) -> None:
    if max_new is None:
        return
    if max_new < 1:
        raise UserError(f"max_new must be at least 1, not {max_new}")
    if clash := [name for name, value in others.items() if value is not None]:
        raise UserError(f"max_new bounds what is written after a prompt or a chat: leave out {clash[0]}")


def _checked(length: int | None, longest: int) -> int:
    if length is None:
        return min(longest, USUAL_LENGTH)
    if not 1 <= length <= longest:
        raise UserError(f"length must be between 1 and the model's {longest}, not {length}")
    return length
