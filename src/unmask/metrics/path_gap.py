"""The path gap R: how far what a sampler writes is from what a judge believes, and its two halves, in nats per byte.

R = E[log q_u(x) - log p_judge(x)] over samples = E_u KL(q_u || judge) >= KL(sampler || judge), where log q_u is the sum
of the log-probabilities of the tokens actually drawn, as the sampler recorded it. It is Gen PPL minus the sampler's
*own* entropy: a sampler that turns dull loses on one side what it gains on the other. At equal own entropy a difference
of R is a difference of the judge's nats.

The judge reads the decoded text, all of it: the first token too, predicted from the token that starts a document, and
every end of a document. A text may be spelled by several token sequences; log q counts the drawn one, so R understates
the gap of the texts by the sampler's own doubt about spelling. Shapes: T texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from unmask.core import provenance
from unmask.metrics.cache import Store
from unmask.metrics.judges import Judge
from unmask.metrics.reading import Reading, judge_rows, retokenised
from unmask.metrics.score import Ratio, Score, Unavailable
from unmask.metrics.texts import Texts

WHOLE = Reading(eos="all", begin=True, entropy=False)  # longer than the judge's context: windows that overlap by half


@dataclass(frozen=True, eq=False)
class PathGap:
    """R, and its two halves in the same unit: R = judge_nll - sampler_entropy."""

    gap: Score
    judge_nll: Score
    sampler_entropy: Score  # -log q_u, of the sampler given its plan


def path_gap(texts: Texts, judge: Judge, *, store: Store | None = None, seed: int = 0) -> PathGap:
    log_q_T = _log_q(texts)
    nll_T, count_T, _ = judge_rows(judge, retokenised(texts, judge), WHOLE, store=store)
    record = provenance.record(
        judge.device, judge=judge.record(), reading=vars(WHOLE), texts=texts.record,
        judged_tokens=int(count_T.sum()), bytes=int(texts.bytes_T.sum()), seed=seed,
    )  # fmt: skip
    halves = {"path_gap": log_q_T + nll_T, "judge_nll": nll_T, "sampler_entropy": -log_q_T}
    return PathGap(*(_per_byte(nats_T, texts, {**record, "score": name}, seed) for name, nats_T in halves.items()))


def own_entropy(texts: Texts, *, seed: int = 0) -> Score:
    """-log q of what a sampler drew, in nats per byte: how many texts it might have written. No judge is asked."""
    return _per_byte(-_log_q(texts), texts, {"texts": texts.record}, seed)


def judge_nll(texts: Texts, judge: Judge, *, store: Store | None = None, seed: int = 0) -> Score:
    """-log p of the judge over whole texts, whoever wrote them, in nats per byte."""
    nll_T, _, _ = judge_rows(judge, retokenised(texts, judge), WHOLE, store=store)
    return _per_byte(nll_T, texts, {"judge": judge.record(), "texts": texts.record}, seed)


def _per_byte(nats_T: Tensor, texts: Texts, record: dict[str, Any], seed: int) -> Score:
    if int(texts.bytes_T.sum()) == 0:
        raise Unavailable("the texts spell nothing at all (only ends of documents): there are no bytes to count")
    return Score.of(Ratio.of(nats_T, texts.bytes_T).together(texts.cluster_T), "nats/byte", record, seed=seed)


def has_log_q(texts: Texts) -> bool:
    """Whether log q of these texts is known, so that they have a path gap."""
    try:
        return bool(_log_q(texts).numel())
    except Unavailable:
        return False


def _log_q(texts: Texts) -> Tensor:
    """log q of each sample, if it is the log-probability of the whole text."""
    if texts.log_q_T is None:
        raise Unavailable("the path gap compares a sampler's own log q with a judge: text that nobody drew has none")
    if texts.prompted:
        raise Unavailable("part of these texts was given, and its log q is not known: draw without a prompt")
    if texts.record.get("remask") is not None:
        raise Unavailable("with remasking, log q of the tokens kept is not that of the text: draw without it")
    if not bool(texts.log_q_T.isfinite().all()):
        why = "legacy_fp32, or a process that may change tokens"
        raise Unavailable(f"the sampler gives these texts no log q, and so they have no own entropy: {why}")
    return texts.log_q_T.double()
