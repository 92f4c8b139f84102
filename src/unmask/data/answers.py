"""Prompts with their answers, as batches for supervised fine-tuning: the prompt is given, the answer is learnt.

A line of the JSONL is `{"prompt": …, "answer": …}`, taken as it stands, or `{"messages": [{"role": …, "content": …}]}`,
spelled by the model's chat template; its last message is the answer. An answer ends with EOS, and a row is filled with
EOS up to the longest row of its global batch, as LLaDA does it: the model learns that nothing follows. So any number of
processes, and any micro-batch, fills alike.

Shapes: T rows of the global batch, B of them here, L positions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unmask.core.errors import UserError, reading
from unmask.core.progress import note
from unmask.data.chat import as_messages
from unmask.data.loader import Batch, Loader, evenly, shuffled
from unmask.data.tokenizer import Tokenizer

HELD_OUT = 20  # one row in so many, the last of the file, is for validation


def is_answers(source: object) -> bool:
    """Whether it is a file of prompts and answers rather than a prepared corpus."""
    return isinstance(source, (str, Path)) and str(source).endswith(".jsonl")


class Answers:
    """The rows of a JSONL in the order of a seed; it reads like a Loader.

    Args:
        path: the file
        tokenizer: the model's
        length: tokens in a row at most; longer ones are left out, which is said
        split: train, or validation: the last twentieth of the file
        seed: names the order of the rows
    """

    def __init__(
        self, path: Path | str, tokenizer: Tokenizer, length: int, *, split: str = "train", seed: int = 0
    ) -> None:
        self.path, self.tokenizer, self.length, self.split, self.seed = Path(path), tokenizer, length, split, seed
        with reading(self.path, "", "write one JSON object a line"):
            text = self.path.read_bytes()
        self.content = hashlib.sha256(text).hexdigest()[:16]
        lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        pairs = [_pair(self.path, number, line, tokenizer) for number, line in lines]
        first_held = len(pairs) - max(1, len(pairs) // HELD_OUT)
        if first_held < 1:
            raise UserError(f"{self.path} has {len(pairs)} rows: at least 2 are needed, one of them for validation")
        self._take(pairs[:first_held] if split == "train" else pairs[first_held:])

    def _take(self, pairs: list[tuple[list[int], list[int]]]) -> None:
        """Tokens of every row, and how many of them are its prompt's."""
        rows = [(np.array([*prompt, *answer, self.tokenizer.eos_id]), len(prompt)) for prompt, answer in pairs]
        self.rows = [row for row in rows if len(row[0]) <= self.length]
        longest = max(len(ids) for ids, _ in rows)
        if not self.rows:
            raise UserError(f"no row of the {self.split} split of {self.path} has at most {self.length} tokens, the "
                            f"longest has {longest}: give a larger --length, or shorter rows")  # fmt: skip
        if len(self.rows) < len(rows):
            left_out = f"{len(rows) - len(self.rows)} of {len(rows)} rows of {self.path} ({self.split})"
            note(f"{left_out} are longer than {self.length} tokens, up to {longest}, and are left out")
        self.lengths = np.array([len(ids) for ids, _ in self.rows])

    @property
    def blocks(self) -> int:
        """Rows in an epoch."""
        return len(self.rows)

    def held_out(self) -> Answers:
        """The validation rows of the same file."""
        return Answers(self.path, self.tokenizer, self.length, split="validation", seed=self.seed)

    def describe(self) -> dict[str, Any]:
        """What it reads, by content."""
        settings = {name: getattr(self, name) for name in ("length", "seed", "split")}
        return {"content": self.content, "tokenizer": self.tokenizer.hash[:16], "answers": self.path.name, **settings}

    def batch(self, step: int, start: int, count: int, total: int) -> Batch:
        """Rows start .. start+count of the global batch of `total` rows at `step`."""
        return self._batch(self._rows_of(step, total), start, count)

    def eval_batches(self, count: int | None, batch: int) -> Iterator[Batch]:
        """A fixed pass in the order of the file; all rows are as long as the longest of them."""
        chosen = evenly(self.blocks, count)
        for start in range(0, len(chosen), batch):
            yield self._batch(chosen, start, min(batch, len(chosen) - start))

    def tokens(self, first: int, stop: int, total: int) -> int:
        """Tokens in the global batches of steps first .. stop - 1."""
        return sum(int(self.lengths[self._rows_of(step, total)].max()) * total for step in range(first, stop))

    def _rows_of(self, step: int, total: int) -> np.ndarray:
        places = np.arange(step * total, (step + 1) * total, dtype=np.int64)
        return shuffled(places, self.blocks, self.seed, 0)

    def _batch(self, chosen: np.ndarray, start: int, count: int) -> Batch:
        tokens_BL = np.full((count, int(self.lengths[chosen].max())), self.tokenizer.eos_id, dtype=np.int64)
        for row, place in zip(tokens_BL, chosen[start : start + count].tolist(), strict=True):
            ids, _ = self.rows[place]
            row[: len(ids)] = ids
        prompts_T = torch.tensor([self.rows[place][1] for place in chosen.tolist()])
        return Batch(torch.from_numpy(tokens_BL), start, len(chosen), prompts_T)


def _pair(path: Path, number: int, line: bytes, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Tokens of the prompt and of the answer of a line."""
    try:
        row = json.loads(line)
        if "messages" in row:
            messages = as_messages(row["messages"])
            if len(messages) < 2 or messages[-1]["role"] != "assistant":
                raise UserError("the last message is the answer, so its role is assistant")
            return tokenizer.exchange(messages)
        prompt, answer = row["prompt"], row["answer"]
        if not isinstance(prompt, str) or not isinstance(answer, str):
            raise TypeError
        return tokenizer.encode(prompt), tokenizer.encode(answer)
    except UserError as error:
        raise UserError(f"{path}, line {number}: {error}") from error
    except (ValueError, TypeError, KeyError) as error:
        wanted = '{"prompt": …, "answer": …} or {"messages": [{"role": …, "content": …}, …]}, all of it text'
        raise UserError(f"{path}, line {number}: wanted {wanted}") from error


Data = Loader | Answers  # what a training reads
