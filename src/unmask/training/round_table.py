"""What the rounds of a run came to: what each student writes in a few steps, its ELBO, and the teacher beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from unmask.checkpoint.io import Checkpoint, load
from unmask.core.files import write_json
from unmask.core.provenance import record
from unmask.core.ranks import joined
from unmask.metrics.gen_ppl import PROTOCOL, gen_ppl, unigram_entropy
from unmask.metrics.judges import Judge
from unmask.metrics.score import Ratio, Score
from unmask.metrics.texts import of_samples
from unmask.plans.every import ANCESTRAL
from unmask.plans.grids import usual_grid
from unmask.sampling.verbs import sample


def round_table(
    out: Path, teacher: Checkpoint, *, plan: str, judge: Judge | None, samples: int, steps: int, seed: int, device: str
) -> None:
    """Draw from every student in a run's folder and from its teacher, and write `rounds.json` there. Texts are drawn on
    the plan with its usual grid, of a process that goes by none on `ancestral`; the judge reads by the protocol
    mdlm."""
    own = (plan, usual_grid(plan)) if teacher.process.by_plan else (ANCESTRAL, "uniform")
    how: dict[str, Any] = dict(zip(("plan", "grid"), own, strict=True))

    def row(name: str, checkpoint: Checkpoint, temperature: float, elbo: Any, about: Any) -> dict[str, Any]:
        settings = {**how, "temperature": temperature, "seed": seed, "device": device}
        drawn = sample(checkpoint, samples, steps, **settings)
        texts = of_samples(drawn, checkpoint.tokenizer)
        entropy = Score.of(Ratio.mean(unigram_entropy(texts.rows)), "nats", {}, seed=seed)
        judged = gen_ppl(texts, judge, protocol=PROTOCOL, seed=seed).ppl.plain() if judge else None
        numbers = {"nfe": drawn.record["nfe"], "entropy": entropy.plain(), "gen_ppl": judged, "elbo": elbo}
        return {"name": name, "temperature": temperature, **numbers, "round": about}

    rows, sharpest = [row("teacher", teacher, 1.0, _first_elbo(out), None)], 1.0
    for number in sorted(int(path.name) for path in (out / "rounds").glob("*") if path.name.isdigit()):
        student = load(out / "rounds" / str(number))
        about = student.provenance
        rows.append(row(f"round {number}", student, 1.0, about["score"], about["distillation"]))
        sharpest = about["distillation"]["tau_product"]
    if sharpest != 1:
        rows.insert(1, row("teacher", teacher, sharpest, None, None))
    with joined(device) as ranks:
        read_by = judge.record() | {"protocol": PROTOCOL} if judge else None
        settings = record(ranks.device, samples=samples, steps=steps, **how, seed=seed, judge=read_by)
        ranks.on_first(lambda: write_json(out / "rounds.json", {**settings, "rows": rows}))


def _first_elbo(out: Path) -> dict[str, Any] | None:
    """The evaluation of step 0, when the student was still its teacher."""
    for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["step"] == 0 and "elbo" in row:
            return {"kind": "elbo", "nats": row["elbo"], "stderr": row["elbo_stderr"], "sequences": row["sequences"]}
    return None
