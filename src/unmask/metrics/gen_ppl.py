"""Gen PPL: how likely drawn text is to a causal judge, under a named protocol, with unigram entropy beside it.

Gen PPL is at least four different numbers in the literature. A protocol says what the judge reads, which tokens are
scored, and what is averaged before the exponential:

| name  | reads                                          | average                       | EOS scored        |
|-------|------------------------------------------------|-------------------------------|-------------------|
| mdlm  | decoded, re-tokenised, cut at 1024             | all scored tokens             | the first of each |
| sdtt  | raw ids                                        | mean of per-sample means      | all               |
| sedd  | raw ids                                        | mean of per-sample PPLs       | all               |
| bd3lm | decoded, re-tokenised, windows 1024, stride 512 | all scored tokens            | none              |

The first token of a text is never scored, and neither is padding. By itself Gen PPL rewards dull text: never quote it
without the entropy. Shapes: T texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import torch
from torch import Tensor

from unmask.core import provenance
from unmask.core.errors import UserError, named
from unmask.data.tokenizer import Tokenizer
from unmask.metrics.cache import Store
from unmask.metrics.judges import Judge, vocabulary_hash
from unmask.metrics.reading import EosRule, Reading, judge_rows, retokenised
from unmask.metrics.score import Ratio, Score, Unavailable
from unmask.metrics.texts import Texts


@dataclass(frozen=True)
class Protocol:
    """One way to turn texts and a judge into a number."""

    name: str
    raw_ids: bool
    average: Literal["tokens", "samples", "perplexities"]
    eos: EosRule
    cut: int | None = None
    width: int | None = None
    stride: int | None = None

    def reading(self, judge: Judge) -> Reading:
        """What the judge reads: never more than its context at once."""
        most = judge.context - (judge.bos_id is not None)
        if self.width is not None:
            return Reading(width=min(self.width, most), stride=self.stride, eos=self.eos)
        return Reading(cut=min(self.cut or most, most), eos=self.eos)


PROTOCOLS = {
    "mdlm": Protocol("mdlm", raw_ids=False, average="tokens", eos="first", cut=1024),
    "sdtt": Protocol("sdtt", raw_ids=True, average="samples", eos="all"),
    "sedd": Protocol("sedd", raw_ids=True, average="perplexities", eos="all"),
    "bd3lm": Protocol("bd3lm", raw_ids=False, average="tokens", eos="none", width=1024, stride=512),
}
PROTOCOL = "mdlm"  # unless another is asked for


@dataclass(frozen=True, eq=False)
class GenPPL:
    """Gen PPL, and how sure the judge was: quote it beside the entropy of the texts' words (`unigram_entropy`)."""

    ppl: Score
    judge_entropy: Score  # of the judge's next-token law over the scored tokens, nats per token of the judge


def gen_ppl(
    texts: Texts, judge: Judge, *, protocol: str = PROTOCOL, store: Store | None = None, seed: int = 0
) -> GenPPL:
    """Gen PPL of texts, drawn or real, under a judge; `store` remembers what the judge said."""
    chosen = named("protocol", protocol, PROTOCOLS)
    reading = chosen.reading(judge)
    if chosen.raw_ids:
        check_raw_ids(texts.tokenizer, judge, protocol)
        rows: Sequence[Sequence[int]] = texts.rows
    else:
        rows = retokenised(texts, judge)
    nll_T, count_T, judged_T = judge_rows(judge, rows, reading, store=store)
    record = provenance.record(
        judge.device, protocol=protocol, reading=vars(reading), judge=judge.record(),
        texts=texts.record, scored_tokens=int(count_T.sum()), seed=seed,
    )  # fmt: skip

    def score(ratio: Ratio, unit: str, name: str) -> Score:
        return Score.of(ratio.together(texts.cluster_T), unit, {**record, "score": name}, seed=seed)

    return GenPPL(
        score(average(nll_T, count_T, chosen.average), "perplexity", "gen_ppl"),
        score(Ratio.of(judged_T, count_T), "nats/token", "judge_entropy"),
    )


def check_judge(judge: Judge, tokenizer: Tokenizer, protocol: str) -> None:
    """A judge that cannot read what the models write is rejected before they write."""
    if PROTOCOLS[protocol].raw_ids:
        check_raw_ids(tokenizer, judge, protocol)
    if judge.eos_id is None:
        raise UserError(f"the judge {judge.name!r} has no end-of-document token to read texts with: take another judge")


def check_raw_ids(tokenizer: Tokenizer, judge: Judge, protocol: str) -> None:
    """Refuse to hand a judge ids that mean something else to it."""
    if vocabulary_hash(tokenizer) != judge.vocabulary:
        why = f"the protocol {protocol!r} hands raw token ids to the judge, but {judge.name!r} has another tokenizer"
        raise UserError(f"{why} than {tokenizer.name!r}: take a protocol that re-tokenises (mdlm, bd3lm)")


def average(nll_T: Tensor, count_T: Tensor, how: str) -> Ratio:
    """The protocol's average as a statistic of samples."""
    if how == "tokens":
        if not bool(count_T.any()):
            raise Unavailable("no token of any text is scored (one token each, or only ends of documents): draw longer")
        return Ratio.of(nll_T, count_T, exponential=True)
    if not bool(count_T.all()):
        raise Unavailable("a text has no scored token, and this protocol averages over texts: take mdlm or longer ones")
    mean_T = nll_T / count_T
    return Ratio.mean(mean_T, exponential=True) if how == "samples" else Ratio.mean(mean_T.exp())


def unigram_entropy(rows: Sequence[Sequence[int]]) -> Tensor:
    """The entropy of the token frequencies within each text, in nats: at most the log of its length."""
    length_T = torch.tensor([len(row) for row in rows])
    text_N = torch.arange(len(rows)).repeat_interleave(length_T)
    token_N = torch.tensor(list(chain.from_iterable(rows)))
    states = int(token_N.max()) + 1
    pair_P, count_P = (text_N * states + token_N).unique(return_counts=True)
    text_P = pair_P // states
    surprise_P = torch.special.entr(count_P.double() / length_T[text_P])
    return torch.zeros(len(rows), dtype=torch.float64).index_add_(0, text_P, surprise_P)
