"""Questions with known answers, in GSM8K's format: what an instruction model makes right, and at what cost.

A line is `{"question": …, "answer": "… #### 72"}`. A model is right if the number after its last `####` is the one in
the file; where it writes no `####`, its last number counts. Beside the share of right answers stand tokens a forward
and seconds, since fewer steps cost right answers: one row a number of steps is the frontier of a model.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from unmask.checkpoint.io import Checkpoint
from unmask.core.errors import UserError, reading
from unmask.inference.cache import Caching, block_of
from unmask.models.denoiser import is_causal
from unmask.plans.grids import make_grid
from unmask.sampling.answers import answer
from unmask.sampling.verbs import chosen_plan
from unmask.studies.fingerprint import behaviour
from unmask.studies.results import Json

PLAN = "confidence"
Keep = Callable[[str, list[Any], Callable[[], Json]], Json]  # (model, what decides a row, what makes it)
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+")


def read_questions(path: Path) -> list[tuple[str, str]]:
    """(question, the number that answers it) of each line."""
    with reading(path, "the file of questions", "write one JSON object with question and answer a line"):
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
        pairs = [(str(row["question"]), str(row["answer"])) for row in rows]
    for number, (_, known) in enumerate(pairs, 1):
        if "####" not in known or final_number(known) is None:
            raise UserError(f"{path}, question {number}: the answer has no number after ####")
    if not pairs:
        raise UserError(f"{path} holds no questions")
    return [(question, str(final_number(known))) for question, known in pairs]


def final_number(text: str) -> str | None:
    """The number after the last `####`, or where there is none the last number, spelled without commas and zeros."""
    _, mark, end = text.rpartition("####")
    numbers = NUMBER.findall(end)
    if not numbers:
        return None
    return f"{float((numbers[0] if mark else numbers[-1]).replace(',', '')):.12g}"


def ask(
    checkpoint: Checkpoint, questions: Sequence[tuple[str, str]], *, max_new: int, steps: int | None, chat: bool,
    **how: Any,
) -> Json:  # fmt: skip
    """One row: right answers with their standard error, tokens a forward, seconds, for a number of steps."""
    if checkpoint.tokenizer is None:
        raise UserError("this model has no tokenizer, so it answers no question")
    codec = checkpoint.tokenizer
    prompts = [codec.chat(question) if chat else codec.encode(question) for question, _ in questions]
    written = answer(checkpoint, prompts, max_new, steps=steps, plan=PLAN, **how)
    right = [final_number(one.text) == known for one, (_, known) in zip(written.each, questions, strict=True)]
    share, n = sum(right) / len(right), len(right)
    forwards, tokens = sum(one.nfe for one in written.each), sum(one.tokens for one in written.each)
    return {
        "steps": steps, "questions": n, "exact_match": share,
        "stderr": math.sqrt(share * (1 - share) / (n - 1)) if n > 1 else None,
        "tokens_a_forward": tokens / forwards, "forwards_an_answer": forwards / n, "tokens_an_answer": tokens / n,
        "seconds_an_answer": written.seconds / n, "record": {**written.record, "max_new": max_new},
        "answers": [{"text": one.text, "right": good} for one, good in zip(written.each, right, strict=True)],
    }  # fmt: skip


def unasked(models: Mapping[str, Checkpoint]) -> list[str]:
    """A sentence for each model that is asked no questions; refuses models of which none is."""
    why = {name: kind for name, one in models.items() if (kind := _not_masked(one))}
    if len(why) == len(models):
        raise UserError("questions are for masked models, and none was given: give one with --models")
    return [f"{name} was asked no questions: they are for masked models, and it is {why[name]}." for name in why]


def _not_masked(checkpoint: Checkpoint) -> str | None:
    """What a model is that is asked no questions; None: it is asked."""
    if is_causal(checkpoint.model):
        return "causal"
    return None if checkpoint.process.by_plan else checkpoint.process.name


def ask_models(
    models: Mapping[str, Checkpoint], path: Path, *, steps: Sequence[int] | None, thresholds: Sequence[float] = (),
    max_new: int, block_size: int | None = None, cache: Any = None, report: Callable[[str], None] | None = None,
    keep: Keep | None = None, **how: Any,
) -> list[Json]:  # fmt: skip
    """A row for each masked model and number of steps or threshold (default: 1, 2 and 4 tokens a step), at temperature
    0, the surest positions first; a model with a chat template is asked in its format. `keep` finds a row that was made
    before, by all that decides it, or makes it."""
    questions, rows = read_questions(path), []
    counts = steps or ([] if thresholds else [max_new, max_new // 2, max_new // 4])
    settings: list[tuple[int | None, float | None]] = [(min(max(1, count), max_new), None) for count in counts]
    settings += [(None, threshold) for threshold in thresholds]
    models = {name: checkpoint for name, checkpoint in models.items() if _not_masked(checkpoint) is None}
    for checkpoint in models.values():
        if cache not in (None, "none"):
            Caching(cache).check(checkpoint.model)
    for name, checkpoint in models.items():
        template = checkpoint.tokenizer and checkpoint.tokenizer.specials.chat_template
        stops = checkpoint.tokenizer and sorted(checkpoint.tokenizer.stop_ids)
        for count, threshold in settings:
            way = f"{count} steps" if threshold is None else f"threshold {threshold:g}"
            if report is not None:
                report(f"{name} answers {len(questions)} questions, {way}")
            chosen = {"steps": count, "threshold": threshold, "block_size": block_size, "cache": cache}
            chat = template is not None
            make = partial(ask, checkpoint, questions, max_new=max_new, chat=chat, temperature=0.0, **chosen, **how)
            about = [questions, max_new, template, stops, chosen, _behaviour(checkpoint, count, threshold, block_size)]
            row = make() if keep is None else keep(name, about, make)
            rows.append({"model": name, "way": way, "threshold": threshold, **row})
    return rows


def _behaviour(checkpoint: Checkpoint, steps: int | None, threshold: float | None, block_size: int | None) -> str:
    """What the sampler does, as a key."""
    plan = chosen_plan(PLAN, block_size, threshold, block_of(checkpoint.model))
    grid, own = make_grid("rank", steps or 1), (checkpoint.process, checkpoint.step_law)
    return behaviour(plan, grid, 0.0, *own, True)  # type: ignore[arg-type]
