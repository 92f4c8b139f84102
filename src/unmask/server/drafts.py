"""What texts that were asked for come back as: a stream of drafts, a message a step, or the whole text, filled in."""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any

from unmask.core.errors import UserError
from unmask.data.tokenizer import Tokenizer
from unmask.plans.plan import by_threshold
from unmask.server.engine import Change, Finished, Stepped, Task
from unmask.server.request import InfillRequest
from unmask.server.wait import Fault, Texts, TimedOut

BROKEN = "�"  # bytes that are no character, or not yet
Spell = Callable[[int, int], str | None]  # (position, token) -> what it adds to the text


def message(content: dict[str, Any] | str) -> str:
    return f"data: {content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)}\n\n"


@lru_cache(maxsize=2**16)
def piece(tokenizer: Tokenizer | None, token: int) -> str | None:
    """The text of one token; None where there is no tokenizer."""
    return None if tokenizer is None else tokenizer.decode([token])


class Spelling:
    """The text of every token of a draft, in the order in which they come to stand. A token that is part of a character
    adds nothing; the one that completes it adds all of it."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self.tokenizer, self.tokens = tokenizer, dict[int, int]()
        self.texts: dict[int, str] = {}

    def add(self, position: int, token: int) -> str | None:
        """What a token adds to the text; None where there is no tokenizer."""
        if self.tokenizer is None:
            return None
        self.tokens[position] = token
        text = self.tokenizer.decode([token])
        if BROKEN in text:
            first, end = position, position + 1
            while self._is_part(first - 1):
                first -= 1
            while self._is_part(end):
                end += 1
            whole = self.tokenizer.decode([self.tokens[at] for at in range(first, end)]).replace(BROKEN, "")
            before = sum(len(self.texts[at]) for at in range(first, position))
            after = sum(len(self.texts[at]) for at in range(position + 1, end))
            text = whole[before : len(whole) - after]
        self.texts[position] = text
        return text

    def _is_part(self, position: int) -> bool:
        """Whether what stands there is part of a character."""
        return BROKEN in (piece(self.tokenizer, self.tokens[position]) or "") if position in self.tokens else False


def finite(value: float) -> float | None:
    """A number as JSON can hold it: null for a law that is not known."""
    return value if math.isfinite(value) else None


def total(log_q: list[float]) -> float | None:
    return finite(math.fsum(log_q)) if all(map(math.isfinite, log_q)) else None


async def stream_drafts(texts: Texts, name: str, task: Task) -> AsyncIterator[str]:
    tokenizer, given = task.how.checkpoint.tokenizer, task.given_L.tolist()
    # at most: a plan that goes by a threshold may take a step for each blank
    steps = int((task.given_L < 0).sum()) if by_threshold(task.how.plan) else task.how.grid.steps
    spelling = Spelling(tokenizer)
    # where a token may change it is spelled by itself: its neighbours would have to be spelled anew
    spell = spelling.add if task.how.checkpoint.process.by_plan else lambda position, token: piece(tokenizer, token)
    yield message({
        "type": "start", "length": len(given), "tokens": [None if token < 0 else token for token in given],
        "texts": [None if token < 0 else spelling.add(position, token) for position, token in enumerate(given)],
        "given": [token >= 0 for token in given], "steps": steps,
        "plan": task.how.plan.name, "model": name,
    })  # fmt: skip
    try:
        async for _, event in texts.events():
            yield message(_event_json(event, tokenizer, spell))
    except (TimedOut, Fault, UserError) as error:
        yield message({"type": "error", "message": str(error)})


def _event_json(event: Stepped | Finished, tokenizer: Tokenizer | None, spell: Spell) -> dict[str, Any]:
    if isinstance(event, Finished):
        text = tokenizer.decode(event.tokens) if tokenizer else ""
        return {
            "type": "done", "text": text, "tokens": event.tokens, "log_prob": total(event.log_q), **event.counts(),
            "seconds": event.seconds,
        }  # fmt: skip
    return {
        "type": "step", "step": event.step, "steps": event.steps, "nfe": event.nfe, "seconds": event.seconds,
        "changes": [_change_json(change, tokenizer, spell) for change in event.changes],
    }  # fmt: skip


def _change_json(change: Change, tokenizer: Tokenizer | None, spell: Spell) -> dict[str, Any]:
    others = [
        {"token": token, "text": piece(tokenizer, token), "probability": probability}
        for token, probability in change.alternatives
    ]
    return {
        "position": change.position, "token": change.token, "text": spell(change.position, change.token),
        "probability": math.exp(change.log_prob), "log_prob": finite(change.log_prob), "alternatives": others,
    }  # fmt: skip


async def filled(texts: Texts, body: InfillRequest, tasks: Sequence[Task]) -> dict[str, Any]:
    done: dict[int, Finished] = {}
    async for number, event in texts.events():
        if isinstance(event, Finished):
            done[number] = event
    choices = [_choice(number, task, done[number]) for number, task in enumerate(tasks)]
    blanks = int((tasks[0].given_L < 0).sum())
    given, new = len(tasks[0].given_L) - blanks, blanks * len(tasks)
    return {
        "id": f"infill-{secrets.token_hex(12)}", "object": "infill", "created": int(time.time()), "model": body.model,
        "choices": choices, "usage": {"prompt_tokens": given, "completion_tokens": new, "total_tokens": given + new},
        "unmask": {"seed": tasks[0].how.seed},
    }  # fmt: skip


def _choice(number: int, task: Task, done: Finished) -> dict[str, Any]:
    tokenizer, blank = task.how.checkpoint.tokenizer, (task.given_L < 0).tolist()
    runs = [[at for at, _ in run] for is_blank, run in groupby(enumerate(blank), key=lambda one: one[1]) if is_blank]
    return {
        "index": number, "text": tokenizer.decode(done.tokens) if tokenizer else "", "tokens": done.tokens,
        "blanks": [tokenizer.decode([done.tokens[at] for at in run]) if tokenizer else "" for run in runs],
        "log_prob": total(done.log_q),
        "log_probs": [finite(q) if new else None for q, new in zip(done.log_q, blank, strict=True)],
        **done.counts(),
    }  # fmt: skip
