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
from pathlib import Path
from typing import Any

from unmask.checkpoint.io import Checkpoint
from unmask.core.errors import UserError, reading
from unmask.models.denoiser import is_causal
from unmask.sampling.answers import answer

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
) -> dict[str, Any]:  # fmt: skip
    """One row: right answers with their standard error, tokens a forward, seconds, for a number of steps."""
    if checkpoint.tokenizer is None:
        raise UserError("this model has no tokenizer, so it answers no question")
    codec = checkpoint.tokenizer
    prompts = [codec.chat(question) if chat else codec.encode(question) for question, _ in questions]
    written = answer(checkpoint, prompts, max_new, steps=steps, **how)
    right = [final_number(one.text) == known for one, (_, known) in zip(written.each, questions, strict=True)]
    share, n = sum(right) / len(right), len(right)
    forwards, tokens = sum(one.nfe for one in written.each), sum(one.tokens for one in written.each)
    return {
        "steps": steps, "questions": n, "exact_match": share,
        "stderr": math.sqrt(share * (1 - share) / (n - 1)) if n > 1 else None,
        "tokens_a_forward": tokens / forwards, "forwards_an_answer": forwards / n, "tokens_an_answer": tokens / n,
        "seconds_an_answer": written.seconds / n,
        "answers": [{"text": one.text, "right": good} for one, good in zip(written.each, right, strict=True)],
    }  # fmt: skip


def ask_models(
    models: Mapping[str, Checkpoint], path: Path, *, steps: Sequence[int] | None, thresholds: Sequence[float] = (),
    max_new: int, report: Callable[[str], None] | None = None, **how: Any,
) -> list[dict[str, Any]]:  # fmt: skip
    """A row for each masked model and number of steps or threshold (default: 1, 2 and 4 tokens a step), at temperature
    0, the surest positions first; a model with a chat template is asked in its format."""
    questions, rows = read_questions(path), []
    counts = steps or ([] if thresholds else [max_new, max_new // 2, max_new // 4])
    settings: list[tuple[int | None, float | None]] = [(min(max(1, count), max_new), None) for count in counts]
    settings += [(None, threshold) for threshold in thresholds]
    for name, checkpoint in models.items():
        if is_causal(checkpoint.model):
            continue
        chat = checkpoint.tokenizer is not None and checkpoint.tokenizer.specials.chat_template is not None
        for count, threshold in settings:
            way = f"{count} steps" if threshold is None else f"threshold {threshold:g}"
            if report is not None:
                report(f"{name} answers {len(questions)} questions, {way}")
            chosen = {"steps": count, "threshold": threshold, "temperature": 0.0, **how}
            row = ask(checkpoint, questions, max_new=max_new, chat=chat, **chosen)
            rows.append({"model": name, "way": way, "threshold": threshold, **row})
    return rows
