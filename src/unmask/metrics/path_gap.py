"""The path gap R: how far what a sampler writes is from what a judge believes, in nats per byte.

R = E[log q_u(x) - log p_judge(x)] over samples = E_u KL(q_u || judge) >= KL(sampler || judge), where log q_u is the sum
of the log-probabilities of the tokens actually drawn, as the sampler recorded it. It is Gen PPL minus the sampler's
*real* entropy: a sampler that turns dull loses on one side what it gains on the other.

The judge reads the decoded text, all of it: the first token too, predicted from the token that starts a document, and
every end of a document. A text may be spelled by several token sequences; log q counts the drawn one, so R understates
the gap of the texts by the sampler's own doubt about spelling. Refuses to know samplers. Shapes: T texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from unmask.core import provenance
from unmask.core.errors import UserError
from unmask.metrics.cache import Store
from unmask.metrics.judges import Judge
from unmask.metrics.reading import Progress, Reading, judge_rows, retokenised, sums
from unmask.metrics.score import DRAWS, Ratio, Score, choose_least
from unmask.metrics.texts import Texts

WHOLE = Reading(eos="all", begin=True, entropy=False)  # longer than the judge's context: windows that overlap by half


@dataclass(frozen=True, eq=False)
class PathGap:
    """R, and its two halves in the same unit: R = judge_nll - sampler_entropy."""

    gap: Score
    judge_nll: Score
    sampler_entropy: Score  # -log q_u, of the sampler given its plan
    gap_T: Tensor  # log q - log p of each sample, in nats
    ratio: Ratio


def path_gap(
    texts: Texts, judge: Judge, *, store: Store | None = None, seed: int = 0, progress: Progress | None = None
) -> PathGap:
    """R of drawn texts under a judge."""
    log_q_T = _log_q(texts)
    rows = retokenised(texts, judge)
    nll_T, count_T, _ = sums(judge_rows(judge, rows, WHOLE, store=store, progress=progress))
    if int(texts.bytes_T.sum()) == 0:
        raise UserError("the samples spell no text at all (nothing but ends of documents): R has no bytes to count")
    record = provenance.record(
        judge.device, score="path_gap", judge=judge.record(), reading=vars(WHOLE), texts=texts.record,
        judged_tokens=int(count_T.sum()), bytes=int(texts.bytes_T.sum()), seed=seed,
    )  # fmt: skip
    gap_T = log_q_T + nll_T
    ratio = Ratio.of(gap_T, texts.bytes_T)
    return PathGap(
        Score.of(ratio, "nats/byte", record, seed=seed),
        Score.of(Ratio.of(nll_T, texts.bytes_T), "nats/byte", {**record, "score": "judge_nll"}, seed=seed),
        Score.of(Ratio.of(-log_q_T, texts.bytes_T), "nats/byte", {**record, "score": "sampler_entropy"}, seed=seed),
        gap_T, ratio,
    )  # fmt: skip


def _log_q(texts: Texts) -> Tensor:
    """log q of each sample, if it is the log-probability of the whole text."""
    if texts.log_q_T is None:
        raise UserError("the path gap compares a sampler's own log q with a judge: real text has none")
    if texts.prompted:
        raise UserError("these samples were given part of their text, whose log q nobody knows: draw without a prompt")
    if texts.record.get("remask") is not None:
        raise UserError("with remasking, log q of the tokens kept is not that of the text: draw without it")
    if not bool(texts.log_q_T.isfinite().all()):
        raise UserError("these samples carry no log q (legacy_fp32 has no law of its own): draw them in float64")
    return texts.log_q_T.double()


def least(gaps: Mapping[float, PathGap], *, seed: int = 0, draws: int = DRAWS) -> Score:
    """R at the temperature where it is least: half of the texts choose it, the other half, `count` of them, score it.

    So value and interval are those of the temperature chosen, without the luck of the choice. Its R is at least the
    true least one, and above it where half of the texts cannot tell the best temperature from its neighbours.
    """
    temperatures = list(gaps)
    chosen, unseen = choose_least([gaps[t].ratio for t in temperatures])
    best = temperatures[chosen]
    record = {**gaps[best].gap.record, "temperature": best, "least_of": temperatures}
    return Score.of(unseen, "nats/byte", record, seed=seed, draws=draws)
