"""Texts with blanks, filled: each whole, with what stands in every blank."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from pydantic import Field

from unmask.checkpoint.io import Checkpoint
from unmask.server.drafts import finite, total
from unmask.server.engine import Finished, Task
from unmask.server.limits import Limits, bounded
from unmask.server.request import TemplateRequest, how_of, template_of
from unmask.server.wait import Texts


class InfillRequest(TemplateRequest):
    """A template, filled in n times."""

    n: int = Field(1, ge=1)


def infill_tasks(body: InfillRequest, checkpoint: Checkpoint, limits: Limits) -> list[Task]:
    bounded("n", body.n, limits.max_texts)
    how, template_L = how_of(body, checkpoint, limits), template_of(body, checkpoint, limits)
    return [Task(how, index, template_L) for index in range(body.n)]


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
