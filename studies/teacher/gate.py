"""Whether a teacher passes the gate of docs/predictions.md: nats a byte on held-out books, beside pocket.

python studies/teacher/gate.py runs/teacher/bf16 --prose prose.txt.xz --out gate.json
    reads blocks of the teacher's length; the other model reads the same tokens in blocks of its own. Prints each
    criterion with what was found. gate.json has the nats, bytes and book of every block.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import unmask
from unmask.core import provenance
from unmask.core.ranks import pick_device
from unmask.core.streams import stream
from unmask.metrics.nelbo import elbo
from unmask.metrics.texts import Texts, held_out
from unmask.models.family import family_of

MOST, AIM, LESS, LEAST = 1.02, 0.98, 0.02, 1.0
LOOKED = 4  # texts whose attention is looked at, as in training


def shorter(texts: Texts, length: int) -> Texts:
    """The same tokens in blocks of `length`."""
    parts, rest = divmod(texts.tokens_TL.shape[1], length)
    if rest:
        raise SystemExit(f"blocks of {texts.tokens_TL.shape[1]} tokens are no whole number of blocks of {length}")
    assert texts.document_T is not None
    return replace(texts, tokens_TL=texts.tokens_TL.reshape(-1, length),
                   document_T=texts.document_T.repeat_interleave(parts))  # fmt: skip


def nats_of(model: unmask.Checkpoint, texts: Texts, views: int) -> Tensor:
    """The ELBO of each block in nats."""
    found = elbo(model, texts, masks=views).per_token.ratio
    assert found is not None
    return found.top_n


def by_book(values_T: Tensor, book_T: Tensor) -> Tensor:
    number_T = torch.unique(book_T, return_inverse=True)[1]
    return torch.zeros(int(number_T.max()) + 1, dtype=torch.float64).index_add(0, number_T, values_T.double())


def attention(model: Any, texts: Texts) -> list[float]:
    """The median entropy of each block's attention in nats, half of the tokens masked."""
    device = pick_device("auto")
    chosen = torch.arange(min(LOOKED, len(texts))) * len(texts) // min(LOOKED, len(texts))
    x0_BL = texts.tokens_TL[chosen]
    place_BL = torch.rand(x0_BL.shape, generator=stream(0, "attention")).argsort(-1)
    z_BL = x0_BL.masked_fill(place_BL < x0_BL.shape[1] / 2, model.mask_id)
    with torch.no_grad():
        return [entropy for entropy, _ in family_of(model).attention(model.to(device).float(), z_BL.to(device)) or ()]


def mean(values: Tensor) -> str:
    """With half of its 95% interval, books taken as independent."""
    half = 1.96 * float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return f"{float(values.mean()):+.4f} ± {half:.4f}"


def told(
    teacher_T: Tensor, other_T: Tensor, bytes_T: Tensor, book_T: Tensor, entropies: Sequence[float]
) -> Iterator[str]:
    """The registered criteria and what was found; values are of the teacher's blocks."""
    size_G = by_book(bytes_T, book_T)
    teacher_G, other_G = (by_book(nats_T, book_T) / size_G for nats_T in (teacher_T, other_T))
    whole, other = (float(nats_T.sum() / bytes_T.sum()) for nats_T in (teacher_T, other_T))
    less_G = teacher_G - other_G
    yield f"{len(size_G)} books, {len(book_T)} blocks; by book {mean(teacher_G)}, pocket {other:.4f} nats a byte."
    aim = f"aim {AIM}: {_held(whole <= AIM)}"
    yield f"- (1) at most {MOST} nats a byte over all bytes: {whole:.4f}, {_held(whole <= MOST)}; {aim}"
    below = f"{mean(less_G)}, {_held(float(less_G.mean()) <= -LESS)}"
    yield f"- (2) at least {LESS} below pocket, paired by book: {below}"
    lowest = min(entropies)
    yield (f"- (3) no block below {LEAST:g} nat: the least is block {list(entropies).index(lowest)} with {lowest:.2f}, "
           f"{_held(lowest >= LEAST)} ({' '.join(f'{one:.2f}' for one in entropies)})")  # fmt: skip


def _held(held: bool) -> str:
    return "held" if held else "failed"


def machine() -> dict[str, Any]:
    said = provenance.record(pick_device("auto"))
    return {name: said[name] for name in ("unmask", "revision", "torch", "python", "device", "time") if name in said}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("teacher")
    parser.add_argument("--prose", required=True)
    parser.add_argument("--other", default="pocket")
    parser.add_argument("--views", type=int, default=8)
    parser.add_argument("--out", type=Path, required=True)
    said = parser.parse_args()
    teacher, other = unmask.load(said.teacher), unmask.load(said.other)
    assert teacher.tokenizer is not None
    texts = held_out(said.prose, teacher.tokenizer, teacher.model.length)
    assert texts.document_T is not None
    teacher_T = nats_of(teacher, texts, said.views)
    other_t = nats_of(other, shorter(texts, min(other.model.length, teacher.model.length)), said.views)
    other_T = other_t.view(len(texts), -1).sum(1)
    entropies = attention(teacher.model, texts)
    print(*told(teacher_T, other_T, texts.bytes_T, texts.document_T, entropies), sep="\n")
    nats = {"teacher": teacher_T, "other": other_T}
    facts = {name: [round(x, 4) for x in nats_T.tolist()] for name, nats_T in nats.items()}
    found = {"machine": [machine()], "nats": facts, "bytes": texts.bytes_T.tolist(), "book": texts.document_T.tolist(),
             "attention": entropies}  # fmt: skip
    said.out.write_text(json.dumps({**found, "views": said.views, "texts": texts.record}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
