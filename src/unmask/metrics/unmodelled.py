"""Texts that no model wrote and that please a judge: the controls which a report must not credit.

All are put together from real passages. Each is a sampler with a law: log q of a text is the logarithm of one over the
number of choices, so their own entropy is known, and next to nothing. That Gen PPL can be had so was shown in arXiv
2606.08417, with other samplers.

Shapes: T texts, L positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from unmask.core.errors import UserError
from unmask.core.streams import stream
from unmask.metrics.texts import Texts, real_text

PASSAGES = 16  # of the parrot and of the phrase bank
PARTS = 4  # of a text


def parrot(real: Texts, count: int, seed: int = 0) -> Texts:
    """Each text is one of the first 16 real passages, whole."""
    _need(real, PASSAGES)
    passage_T = torch.arange(count) % PASSAGES
    return _made(real.tokens_TL[passage_T], real, passage_T, math.log(PASSAGES))


def period(real: Texts, count: int, seed: int = 0) -> Texts:
    """Each text repeats the first quarter of a real passage."""
    _need(real, 1)
    passage_T, width = torch.arange(count) % len(real), _width(real)
    length = real.tokens_TL.shape[1]
    tokens_TL = real.tokens_TL[passage_T, :width].repeat(1, math.ceil(length / width))[:, :length]
    return _made(tokens_TL, real, passage_T, math.log(len(real)))


def mirror(real: Texts, count: int, seed: int = 0) -> Texts:
    """Each text is two pieces of a real passage, and the two in reverse order: a b b a."""
    _need(real, 1)
    passage_T, width = torch.arange(count) % len(real), _width(real)
    first_TW, second_TW = real.tokens_TL[passage_T, :width], real.tokens_TL[passage_T, width : 2 * width]
    return _made(torch.cat([first_TW, second_TW, second_TW, first_TW], 1), real, passage_T, math.log(len(real)))


def phrase_bank(real: Texts, count: int, seed: int = 0) -> Texts:
    """Each text is four of 16 real phrases, a quarter of a text each, drawn with replacement."""
    _need(real, PASSAGES)
    phrase_KW = real.tokens_TL[:PASSAGES, : _width(real)]
    drawn_TP = torch.randint(PASSAGES, (count, PARTS), generator=stream(seed, "phrase bank"))
    return _made(phrase_KW[drawn_TP].flatten(1), real, torch.arange(count), PARTS * math.log(PASSAGES))


Control = Callable[[Texts, int, int], Texts]
UNMODELLED: dict[str, Control] = {"parrot": parrot, "period": period, "mirror": mirror, "phrase bank": phrase_bank}


def _need(real: Texts, passages: int) -> None:
    if len(real) < passages:
        raise UserError(f"this control is made of {passages} real passages, and there are {len(real)}: give more text")
    if real.tokens_TL.shape[1] < PARTS or bool((real.tokens_TL < 0).any()):
        raise UserError(f"this control is made of whole real passages of {PARTS} tokens or more: give longer text")


def _width(real: Texts) -> int:
    return real.tokens_TL.shape[1] // PARTS


def _made(tokens_TL: Tensor, real: Texts, document_T: Tensor, nats: float) -> Texts:
    """Texts of a sampler that has e^nats of them, all alike."""
    texts = real_text(tokens_TL.contiguous(), real.tokenizer, document_T, source=real.record.get("source"), made=True)
    return replace(texts, log_q_T=torch.full((len(texts),), -nats, dtype=torch.float64))
