"""Answers to many prompts: what is written to one depends on the prompt, its length and the seed, on nothing else.

A sample's noise is named by a number; here the number is a hash of the request.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from unmask.checkpoint.io import Checkpoint
from unmask.core.errors import UserError
from unmask.core.streams import seed_of
from unmask.inference.cache import block_of
from unmask.plans.plan import by_threshold
from unmask.sampling.infill import answer_of
from unmask.sampling.verbs import chosen_plan, sample

_OF_A_GROUP = ("n", "nfe", "forwards", "rounds")  # in a record: answers are written in groups of one length


@dataclass(frozen=True)
class Answer:
    """What was written to one prompt."""

    text: str
    tokens: int  # up to the one that ends it, that one counted
    nfe: int


@dataclass(frozen=True)
class Written:
    """All of them, and the seconds that they took together."""

    each: list[Answer]
    seconds: float
    record: dict[str, Any]  # of how they were written; what each cost is in `each`


def answer(
    checkpoint: Checkpoint, prompts: Sequence[Sequence[int]], blanks: Sequence[int] | int, *, seed: int = 0,
    steps: int | None = None, plan: str = "confidence", block_size: int | None = None, threshold: float | None = None,
    **how: Any,
) -> Written:  # fmt: skip
    """Write at most `blanks` tokens after each prompt (token ids), by default one a step, where no threshold decides
    how many, and in the network's own blocks, if it has some; `how` is what else `sample` takes."""
    chosen = chosen_plan(plan, block_size, threshold, block_of(checkpoint.model))
    assert chosen is not None
    tokenizer = checkpoint.tokenizer
    if tokenizer is None:
        raise UserError("this model has no tokenizer, so it answers no text")
    lengths = [blanks] * len(prompts) if isinstance(blanks, int) else list(blanks)
    groups: dict[tuple[int, int], list[int]] = {}
    for place, prompt in enumerate(prompts):
        if len(prompt) + lengths[place] > checkpoint.model.length:
            raise UserError(f"a prompt of {len(prompt)} tokens with an answer of {lengths[place]} is longer than the "
                            f"model's {checkpoint.model.length}: allow fewer tokens, or shorten it")  # fmt: skip
        groups.setdefault((len(prompt), lengths[place]), []).append(place)
    found: dict[int, Answer] = {}
    record: dict[str, Any] = {}
    begun = time.perf_counter()
    for (_, size), places in groups.items():
        given = torch.tensor([list(prompts[place]) for place in places], dtype=torch.long)
        numbers = [seed_of("request", size, *prompts[place]) for place in places]
        count = steps if steps is not None or by_threshold(chosen) else size
        made = sample(checkpoint, steps=count, plan=chosen, infill=given, max_new=size, numbers=numbers, seed=seed,
                      **how)  # fmt: skip
        record = {name: said for name, said in made.record.items() if name not in _OF_A_GROUP}
        for place, tokens_L, given_L, nfe in zip(places, made.tokens, made.given, made.nfe.tolist(), strict=True):
            ids = answer_of(tokens_L, torch.where(given_L, tokens_L, -1), tokenizer.stop_ids, alone=True)
            found[place] = Answer(tokenizer.decode(ids), min(len(ids) + 1, size), nfe)
    seconds = time.perf_counter() - begun
    return Written([found[place] for place in range(len(prompts))], seconds, record)
