"""What may be asked for, checked and bounded: the fields of a request, and the tasks that an engine gets from them.

Nothing in a request names a file: plans come from the table of plans, models from those that the operator named.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from unmask.checkpoint.io import Checkpoint
from unmask.core.errors import UserError
from unmask.data.tokenizer import Tokenizer
from unmask.inference.cache import block_of
from unmask.inference.categorical import Law
from unmask.models.denoiser import states_of
from unmask.sampling.drafts import How
from unmask.sampling.infill import templates
from unmask.sampling.verbs import chosen_plan, plan_and_grid
from unmask.server.engine import Task
from unmask.server.limits import ALTERNATIVES, Limits, bounded

SEEDS = 2**63


class TextRequest(BaseModel):
    """The fields of every request for texts. A wrong type is refused, and so is a field that nobody reads."""

    model_config = ConfigDict(strict=True, extra="forbid")

    model: str
    steps: int | None = Field(None, ge=1)
    plan: str | None = None
    block_size: int | None = Field(None, ge=1)
    threshold: float | None = Field(None, gt=0)
    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    seed: int | None = Field(None, ge=-SEEDS, lt=SEEDS)

    @model_validator(mode="before")
    @classmethod
    def _null_is_left_out(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            return fields
        try:
            json.dumps(fields, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("a text holds half of a character (a lone surrogate)") from None
        return {name: value for name, value in fields.items() if value is not None}


class TemplateRequest(TextRequest):
    """What is given, and what is blank."""

    prompt: str | None = None
    infill: str | None = None
    tokens: list[int | None] | None = None
    length: int | None = Field(None, ge=1)
    seed: int = Field(0, ge=-SEEDS, lt=SEEDS)


class DraftRequest(TemplateRequest):
    """One text, whose drafts are streamed."""

    index: int = Field(0, ge=0, lt=SEEDS)
    alternatives: int = Field(0, ge=0)


def how_of(body: TextRequest, checkpoint: Checkpoint, limits: Limits) -> How:
    """The settings of `sample` that a request asks for. Without a seed a fresh one is drawn, which the answer tells."""
    bounded("steps", body.steps or 1, limits.max_steps)
    plan = chosen_plan(body.plan, body.block_size, body.threshold, block_of(checkpoint.model))
    chosen, grid = plan_and_grid(checkpoint.process, plan, None, body.steps)
    bounded("steps", grid.steps, limits.max_steps)
    seed = secrets.randbelow(2**31) if body.seed is None else body.seed
    how = How(checkpoint, chosen, grid, Law(body.temperature, body.top_p), seed=seed)
    how.check()
    return how


def longest(checkpoint: Checkpoint, limits: Limits) -> int:
    return min(checkpoint.model.length, limits.max_length)


def template_of(body: TemplateRequest, checkpoint: Checkpoint, limits: Limits) -> Tensor:
    """What is given and what is blank, as `sample` has it."""
    kinds = {"prompt": body.prompt, "infill": body.infill, "tokens": body.tokens}
    if len(given := [name for name, value in kinds.items() if value is not None]) > 1:
        raise UserError(f"give only one of prompt, infill and tokens, not {' and '.join(given)}")
    infill = body.infill if body.tokens is None else ids_of(body.tokens, checkpoint)
    (template_L,) = templates(
        1, longest=longest(checkpoint, limits), states=states_of(checkpoint.model), tokenizer=checkpoint.tokenizer,
        length=body.length, prompt=body.prompt, infill=infill,
    )  # fmt: skip
    return template_L


def tokenizer_of(checkpoint: Checkpoint) -> Tokenizer:
    """Whoever asks in words needs one."""
    if checkpoint.tokenizer is None:
        raise UserError("this model has no tokenizer, so it takes no text: give token ids to /v1/drafts or /v1/infill")
    return checkpoint.tokenizer


def ids_of(tokens: Sequence[int | None], checkpoint: Checkpoint) -> Tensor:
    """Token ids from a request, null where it is blank."""
    vocabulary, mask = checkpoint.model.vocab_size, checkpoint.model.mask_id
    if not tokens:
        raise UserError("tokens is empty: give token ids, null where it is blank")
    if strange := [one for one in tokens if one is not None and (one == mask or not 0 <= one < vocabulary)]:
        but = "" if mask is None else f" but {mask}"
        raise UserError(f"there is no token {strange[0]}: give ids from 0 to {vocabulary - 1}{but}, null for a blank")
    return torch.tensor([-1 if token is None else token for token in tokens])


def draft_tasks(body: DraftRequest, checkpoint: Checkpoint, limits: Limits) -> list[Task]:
    bounded("alternatives", body.alternatives, ALTERNATIVES)
    how, template_L = how_of(body, checkpoint, limits), template_of(body, checkpoint, limits)
    return [Task(how, body.index, template_L, watch=True, alternatives=body.alternatives)]


class InfillRequest(TemplateRequest):
    """A template, filled in n times."""

    n: int = Field(1, ge=1)


def infill_tasks(body: InfillRequest, checkpoint: Checkpoint, limits: Limits) -> list[Task]:
    bounded("n", body.n, limits.max_texts)
    how, template_L = how_of(body, checkpoint, limits), template_of(body, checkpoint, limits)
    return [Task(how, index, template_L) for index in range(body.n)]
