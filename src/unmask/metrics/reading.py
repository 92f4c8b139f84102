"""How a judge reads texts: which tokens it sees, which of them it scores, in windows where a text is too long.

One pass gives, for each text, the sum of -log p over the scored tokens, their number, and, where asked, the sum of the
judge's entropy there. Texts of similar length share a forward; a pad on the right changes nothing for a causal model.
What was said is kept (cache.Store) every few texts, so that a rerun costs nothing and a killed run goes on.

Shapes: B windows in a forward, T tokens of each, V states.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from unmask.core.errors import UserError
from unmask.core.hashing import key_of
from unmask.core.ranks import interleaved, joined
from unmask.metrics.cache import Store
from unmask.metrics.judges import Judge
from unmask.metrics.texts import Texts, join_documents
from unmask.objectives.divergences import at_least_float32

EosRule = Literal["all", "first", "none"]
_SAVED = (64, 256)  # texts after which what was said is kept, on a CPU and on a GPU


@dataclass(frozen=True)
class Reading:
    """What of a text is read and scored.

    `cut`: tokens of a text at most. `width` and `stride`: of the sliding window, where a text is longer than it.
    `eos`: which end-of-document tokens are scored. `begin`: the first token is scored too, predicted from the token
    that starts a document; else it is only seen. `entropy`: the judge's own is wanted too, two more passes over a table
    of all states.
    """

    cut: int | None = None
    width: int | None = None
    stride: int | None = None
    eos: EosRule = "all"
    begin: bool = False
    entropy: bool = True


@dataclass(frozen=True)
class _Window:
    """Tokens start .. end of a text; those from `first` on are scored there."""

    text: int
    start: int
    end: int
    first: int


# Gen PPL, the path gap and MAUVE read the same texts one after the other. By the judge's name, as long as the texts
# live: to keep the judge itself would be to keep its weights on the device
_SPELLED: WeakKeyDictionary[Texts, tuple[str, list[list[int]]]] = WeakKeyDictionary()


def retokenised(texts: Texts, judge: Judge) -> list[list[int]]:
    """What the texts spell, in the judge's tokens, its own end-of-document token between documents."""
    if texts not in _SPELLED or _SPELLED[texts][0] != judge.id:
        if judge.eos_id is None:
            raise UserError(
                f"the judge {judge.name!r} has no end-of-document token, which reading whole texts needs: take "
                "a raw-id protocol (sdtt, sedd) or another judge"
            )
        encoded = iter(judge.encode([document for documents in texts.documents for document in documents]))
        rows = [join_documents([next(encoded) for _ in documents], judge.eos_id) for documents in texts.documents]
        _SPELLED[texts] = judge.id, rows
    return _SPELLED[texts][1]


def scored(ids: Sequence[int], eos_id: int | None, rule: EosRule) -> Tensor:
    """Which tokens count; whether the first one does is decided by what it is predicted from."""
    ids_T = torch.tensor(ids)
    if eos_id is None or rule == "all":
        return torch.ones_like(ids_T, dtype=torch.bool)
    is_eos_T = ids_T == eos_id
    return ~is_eos_T | (is_eos_T.cumsum(0) == 1) if rule == "first" else ~is_eos_T


def windows(text: int, length: int, width: int, stride: int) -> Iterator[_Window]:
    """The first window scores all but its first token, each later one its last `stride`; every token once."""
    yield _Window(text, 0, min(width, length), 1)
    start = stride
    while start + width - stride < length:
        yield _Window(text, start, min(start + width, length), start + width - stride)
        start += stride


def judge_rows(judge: Judge, rows: Sequence[Sequence[int]], reading: Reading, *, store: Store | None = None) -> Tensor:
    """What a judge says of texts given as its own token ids: nll, count and entropy (NaN where nobody asked), summed
    over the scored tokens of each, (3, texts). Under torchrun the processes share what is not known."""
    prepared = [_prepare(judge, row, reading) for row in rows]
    keys = [key_of(judge.id, asdict(reading), row) for row in prepared]
    with joined(judge.device.type) as ranks:
        judged = ranks.on_first(lambda: store.find(keys) if store else [None] * len(keys))
        missing = [i for i, numbers in enumerate(judged) if numbers is None]
        missing.sort(key=lambda i: -len(prepared[i]))  # similar lengths together, and memory runs out at once or never
        size = _SAVED[judge.device.type == "cuda"] * ranks.world
        for start in range(0, len(missing), size):
            part = missing[start : start + size]
            answers = ranks.together(partial(_read, judge, prepared, part[ranks.rank :: ranks.world], reading))
            for i, numbers in zip(part, interleaved(answers), strict=True):
                judged[i] = numbers
            if store:
                ranks.on_first(partial(store.keep, {keys[i]: judged[i] for i in part}))
    return torch.tensor(judged, dtype=torch.float64).T


def _prepare(judge: Judge, row: Sequence[int], reading: Reading) -> list[int]:
    """The tokens that are read: cut, with a token before the first where that one is to be scored."""
    if not row:
        raise UserError("an empty text cannot be judged: leave it out")
    if max(row) >= judge.states or min(row) < 0:
        raise UserError(f"token {max(row)} is none of the judge's {judge.states}: it has another tokenizer")
    row = list(row[: reading.cut])
    if reading.begin:
        if judge.start_id is None:
            raise UserError(f"the judge {judge.name!r} has no token to start a text from: take another judge")
        row = [judge.start_id, *row]
    return row


def _read(judge: Judge, rows: Sequence[Sequence[int]], share: Sequence[int], reading: Reading) -> list[list[float]]:
    """[nll, count, entropy] of some of the rows."""
    # the last token of a window is only predicted, so one more fits; a token that must come first takes a place
    most = judge.context + 1 - (judge.bos_id is not None)
    width = min(reading.width or most, most)
    stride = min(reading.stride or width, max(1, width // 2))
    every = [window for i in share for window in windows(i, len(rows[i]), width, stride)]
    counts = {i: scored(rows[i], judge.eos_id, reading.eos) for i in share}
    sums = {i: torch.zeros(3, dtype=torch.float64) for i in share}
    for batch in _batches(judge, every):
        # the token a judge must see first, unless the text was begun with it
        leads = [[] if judge.bos_id is None or (reading.begin and not w.start) else [judge.bos_id] for w in batch]
        seen = [[*lead, *rows[w.text][w.start : w.end]] for lead, w in zip(leads, batch, strict=True)]
        counted_BT = torch.zeros(len(batch), max(map(len, seen)) - 1, dtype=torch.bool)
        for b, (window, lead) in enumerate(zip(batch, leads, strict=True)):
            at = window.first - window.start + len(lead) - 1  # where its first scored token is predicted
            tokens = counts[window.text][window.first : window.end]
            counted_BT[b, at : at + len(tokens)] = tokens
        for window, sum_3 in zip(batch, _score(judge, seen, counted_BT, reading.entropy), strict=True):
            sums[window.text] += sum_3
    return [sums[i].tolist() for i in share]


def _batches(judge: Judge, every: Sequence[_Window]) -> Iterator[list[_Window]]:
    """Windows that go through together: at most 2 GiB of float32 logits on a GPU, 128 MiB elsewhere."""
    budget = 2**29 if judge.device.type == "cuda" else 2**25
    most = max((window.end - window.start for window in every), default=1)
    size = max(1, budget // (judge.states * most))
    for start in range(0, len(every), size):
        yield list(every[start : start + size])


@torch.inference_mode()
def _score(judge: Judge, rows: Sequence[Sequence[int]], counted_BT: Tensor, entropy: bool) -> Tensor:
    """Of each row the sum of -log p over the counted tokens after its first, their number, and the judge's entropy."""
    if not counted_BT.shape[1]:
        return torch.zeros(len(rows), 3, dtype=torch.float64)
    ids_BT = pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    logits_BTV = judge.logits(ids_BT[:, :-1])
    next_BT = ids_BT[:, 1:].to(logits_BTV.device)
    # one text after the other: of all further tables only one text's stands at a time, small enough for a GPU's cache
    score_BNT = torch.stack([_nats(logits_BTV[b], next_BT[b], entropy) for b in range(len(rows))]).cpu().double()
    within_BT = torch.arange(1, ids_BT.shape[1]) < torch.tensor([len(row) for row in rows])[:, None]
    scores = score_BNT.unbind(1)
    if not all(bool(value_BT[within_BT].isfinite().all()) for value_BT in scores):
        raise UserError(
            f"the judge {judge.name!r} gave NaN, or no probability at all, for a token of a text: load it "
            "in fp32, or take another judge"
        )
    nll_B, *entropy_B = [torch.where(counted_BT, value_BT, 0).sum(1) for value_BT in scores]
    return torch.stack([nll_B, counted_BT.sum(1), *(entropy_B or [torch.full_like(nll_B, torch.nan)])], dim=1)


def _nats(logits_TV: Tensor, next_T: Tensor, entropy: bool) -> Tensor:
    """Of a text's tokens -log p, and where it is wanted the judge's entropy, in float32 or better: (1 or 2, T)."""
    log_p_TV = at_least_float32(logits_TV).log_softmax(-1)
    scores = [-log_p_TV.gather(-1, next_T[:, None])[:, 0]]
    if entropy:  # where p is 0 nothing is added: 0 log 0 is 0, not NaN
        scores.append(-log_p_TV.exp().mul_(log_p_TV.clamp_(min=torch.finfo(log_p_TV.dtype).min)).sum(-1))
    return torch.stack(scores)
