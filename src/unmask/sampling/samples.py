"""What sampling gives: tokens, text, log q of every drawn token, and where it all came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Samples:
    """n samples. Shorter ones are padded with -1 up to the longest."""

    tokens: Tensor  # (n, L) int64
    given: Tensor  # (n, L) bool: prompt, suffix or fixed words; padding counts as given
    log_q: Tensor  # (n, L) float64: log-probability of each token under the law it was drawn from; 0 where given
    nfe: Tensor  # (n,) int64: forwards each sample took part in
    text: list[str]  # empty if the model has no tokenizer
    record: dict[str, Any]
    rounds: Tensor | None = None  # (n,) int64: rounds of the step law's head in each sample, where it draws in rounds

    def __len__(self) -> int:
        return self.tokens.shape[0]

    def __repr__(self) -> str:
        plan = (self.record.get("plan") or {}).get("name", "no plan")
        return f"Samples({len(self)} of {self.tokens.shape[1]} tokens, {self.nfe.double().mean():.4g} forwards, {plan})"


@dataclass(frozen=True)
class StepView:
    """What a callback sees after a step: a copy of the batch as it stands, on the CPU. Its to keep."""

    step: int  # counts from 1
    steps: int  # at most
    tokens_BL: Tensor  # the mask where still hidden
    given_BL: Tensor  # prompt, suffix or fixed words
    indices: tuple[int, ...]  # which samples the rows are
    mask_id: int | None

    @property
    def blank(self) -> int:
        """What stands where nothing is written yet: the mask, or -1 where there is none."""
        return -1 if self.mask_id is None else self.mask_id
