"""MAUVE: how much two clouds of text features overlap, by the package mauve-text.

Features come from any encoder: an array, or `judge_features` (the last token's hidden state, as MAUVE's authors take it
from gpt2-large). Texts go to clusters of both clouds together; MAUVE is the area under the curve of the two KL
divergences from mixtures of the two histograms. 1 is best.

It moves with the number of texts, the encoder and the number of clusters: compare only like with like. The interval
resamples the histograms; resampling by itself pushes MAUVE down, so the draws are moved back to the value.

Shapes: N texts, D features, C clusters, S draws, M mixtures.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from unmask.core import provenance
from unmask.core.errors import UserError
from unmask.core.ranks import interleaved, joined
from unmask.core.streams import seed_of
from unmask.metrics.judges import Judge
from unmask.metrics.reading import retokenised
from unmask.metrics.score import Score
from unmask.metrics.texts import Texts

Array = np.ndarray[Any, np.dtype[Any]]
LEAST = 2048  # texts on each side of a headline
SCALE = 5.0
CUT = 1024  # tokens of a text that are encoded
_MIXTURES = 25
_DRAWS = 500


def mauve(drawn_ND: Array, real_ND: Array, *, least: int = LEAST, clusters: int | None = None, seed: int = 0) -> Score:
    """MAUVE of drawn against real texts, given as features.

    Args:
        drawn_ND: one row a drawn text
        real_ND: one row a real text, by the same encoder
        least: texts that each side must have
        clusters: of the histograms (default: a tenth of the texts)
        seed: of the clustering and the bootstrap
    """
    few = min(len(drawn_ND), len(real_ND))
    if few < least:
        have = f"{len(drawn_ND)} drawn and {len(real_ND)} real"
        raise UserError(f"MAUVE needs at least {least} texts on each side, not {have}: draw more, or leave it out")
    if not (np.isfinite(drawn_ND).all() and np.isfinite(real_ND).all()):
        raise UserError("the encoder gave NaN for a text: take another encoder, or float32")
    need_mauve()
    package = importlib.import_module("mauve.compute_mauve")
    clusters = clusters or max(2, round(few / 10))
    # MAUVE's own name for the two sides: p is human, q is the model
    result = package.compute_mauve(
        p_features=real_ND, q_features=drawn_ND, num_buckets=clusters, mauve_scaling_factor=SCALE,
        seed=seed_of(seed, "mauve") % 2**31, verbose=False,
    )  # fmt: skip
    random = np.random.default_rng(seed_of(seed, "mauve bootstrap"))
    sides = (result.p_hist, len(real_ND)), (result.q_hist, len(drawn_ND))
    p_SC, q_SC = (random.multinomial(n, hist / np.sum(hist), size=_DRAWS) / n for hist, n in sides)
    value_S = np.array([_area(package, p_C, q_C) for p_C, q_C in zip(p_SC, q_SC, strict=True)])
    value_S = (value_S + float(result.mauve) - value_S.mean()).clip(0, 1)
    about = {"clusters": clusters, "scale": SCALE, "drawn": len(drawn_ND), "real": len(real_ND), "seed": seed}
    record = provenance.record("cpu", score="mauve", headline=few >= LEAST, **about)
    return Score.drawn(float(result.mauve), torch.from_numpy(value_S), few, "MAUVE", record)


def need_mauve() -> None:
    """Found, not imported: that takes seconds."""
    if importlib.util.find_spec("mauve") is None:
        raise UserError("MAUVE needs the package mauve-text: pip install 'unmask[eval]'")


def _area(package: Any, p_C: Array, q_C: Array) -> float:
    """MAUVE of two histograms: the area under the package's curve, read along either axis."""
    if np.array_equal(p_C, q_C):  # a resample of few texts: rounding would bend the curve, and no area is found
        return 1.0
    weight_M = np.linspace(1e-6, 1 - 1e-6, _MIXTURES)
    x_M, y_M = package.get_divergence_curve_for_multinomials(p_C, q_C, weight_M, SCALE).T
    area = package.compute_area_under_curve
    return float(area(x_M, y_M) + area(y_M, x_M)) / 2


@torch.inference_mode()
def judge_features(judge: Judge, texts: Texts) -> Array:
    """The last layer's state at each text's last token. Under torchrun the processes share the texts."""
    lead = [] if judge.bos_id is None else [judge.bos_id]
    rows = [torch.tensor([*lead, *row[: min(CUT, judge.context - 1)]]) for row in retokenised(texts, judge)]
    batch = 64 if judge.device.type == "cuda" else 8
    with joined(judge.device.type) as ranks:
        mine, features = rows[ranks.rank :: ranks.world], []
        for start in range(0, len(mine), batch):
            part = mine[start : start + batch]
            # what follows on the right changes nothing for a causal model
            h_BTD = judge.features(pad_sequence(part, batch_first=True))
            features += h_BTD[torch.arange(len(part)), [len(row) - 1 for row in part]].cpu().double().tolist()
        return np.array(interleaved(ranks.gather(features)))
