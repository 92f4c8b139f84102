"""Scores of one small model and judge; run alone or by torchrun. The first process prints them as JSON."""

import json
import sys
from pathlib import Path

import torch

from unmask.checkpoint.io import load
from unmask.cli.main import leave
from unmask.core.ranks import joined
from unmask.core.streams import stream
from unmask.metrics.cache import Store
from unmask.metrics.gen_ppl import gen_ppl
from unmask.metrics.judges import load_judge
from unmask.metrics.mauve import judge_features
from unmask.metrics.nelbo import elbo, nelbo
from unmask.metrics.texts import Texts
from unmask.studies.fit_plan import fit_on


def main(folder: Path) -> None:
    with joined("cpu") as ranks:
        model, judge = load(folder / "model"), load_judge(folder / "judge", device="cpu")
        texts = Texts(torch.randint(0, 200, (7, 20), generator=stream(0, "texts")), model.tokenizer)
        store = Store(folder / f"cache-{ranks.world}" / "judged.sqlite")
        bound = nelbo(model, texts, 4, batch=2, device="cpu")
        how = {"document_T": torch.arange(7) // 2, "batch": 2, "device": "cpu", "plans": ["comb", "golden"]}
        fitted = fit_on(model, texts.tokens_TL, 3, **how)
        found = {
            "grid": fitted.grid.times,
            "cost": fitted.paths[-1].cost,
            "worth": [worth.nelbo.value for worth in fitted.worth.values()],
            "nelbo": bound.per_token.ratio.top_n.tolist(),
            "nfe": bound.nfe,
            "elbo": elbo(model, texts, batch=2, device="cpu").per_token.ratio.top_n.tolist(),
            "judged": gen_ppl(texts, judge, store=store).ppl.ratio.top_n.tolist(),
            "again": gen_ppl(texts, judge, store=store).ppl.low,
            "features": judge_features(judge, texts).tolist(),
        }
        if ranks.first:
            print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    leave(0)
