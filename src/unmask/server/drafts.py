"""What texts that were asked for come back as: a stream of drafts, a message a step, or the whole text, filled in."""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any

from unmask.core.errors import UserError
from unmask.data.tokenizer import Tokenizer
from unmask.plans.plan import by_threshold
from unmask.server.engine import Change, Finished, Stepped, Task
from unmask.server.request import InfillRequest
from unmask.server.wait import Fault, Texts, TimedOut


def message(content: dict[str, Any] | str) -> str:
    return f"data: {content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)}\n\n"


@lru_cache(maxsize=2**16)
def piece(tokenizer: Tokenizer | None, token: int) -> str | None:
    """The text of one token; None where there is no tokenizer."""
    return None if tokenizer is None else tokenizer.decode([token])


def finite(value: float) -> float | None:
    """A number as JSON can hold it: null for a law that is not known."""
    return value if math.isfinite(value) else None


def total(log_q: list[float]) -> float | None:
    return finite(math.fsum(log_q)) if all(map(math.isfinite, log_q)) else None


async def stream_drafts(texts: Texts, name: str, task: Task) -> AsyncIterator[str]:
    tokenizer, given = task.how.checkpoint.tokenizer, task.given_L.tolist()
    # at most: a plan that goes by a threshold may take a step for each blank
    steps = int((task.given_L < 0).sum()) if by_threshold(task.how.plan) else task.how.grid.steps
    yield message({
        "type": "start", "length": len(given), "tokens": [None if token < 0 else token for token in given],
        "texts": [None if token < 0 else piece(tokenizer, token) for token in given],
        "given": [token >= 0 for token in given], "steps": steps,
        "plan": task.how.plan.name, "model": name,
    })  # fmt: skip
    try:
        async for _, event in texts.events():
            yield message(_event_json(event, tokenizer))
    except (TimedOut, Fault, UserError) as error:
        yield message({"type": "error", "message": str(error)})


def _event_json(event: Stepped | Finished, tokenizer: Tokenizer | None) -> dict[str, Any]:
    if isinstance(event, Finished):
        text = tokenizer.decode(event.tokens) if tokenizer else ""
        return {
            "type": "done", "text": text, "tokens": event.tokens, "log_prob": total(event.log_q), **event.counts(),
            "seconds": event.seconds,
        }  # fmt: skip
    return {
        "type": "step", "step": event.step, "steps": event.steps, "nfe": event.nfe, "seconds": event.seconds,
        "changes": [_change_json(change, tokenizer) for change in event.changes],
    }  # fmt: skip


def _change_json(change: Change, tokenizer: Tokenizer | None) -> dict[str, Any]:
    def token_json(token: int, probability: float) -> dict[str, Any]:
        return {"token": token, "text": piece(tokenizer, token), "probability": probability}

    return {
        "position": change.position, **token_json(change.token, math.exp(change.log_prob)),
        "log_prob": finite(change.log_prob), "alternatives": [token_json(*other) for other in change.alternatives],
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
