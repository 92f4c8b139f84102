"""The tables of studies/duo/run.sh: bounds of every model, and what it writes at each number of forwards.

python studies/duo/table.py runs/shadows
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

COLUMNS = ("gen_ppl", "judge_nll", "sampler_entropy", "entropy", "energy_distance", "self_bleu", "repeated_4")


def read(run: Path, kind: str, part: str) -> list[dict[str, Any]]:
    """What the lanes have left by now. Each calls its model `teacher`; beside the causal one it is the masked one's."""
    found = []
    for file in sorted(run.glob(f"{kind}-*/results.json")):
        name = file.parent.name.removeprefix(f"{kind}-")
        for one in json.loads(file.read_text(encoding="utf-8"))[part]:
            if one["model"] == ("ar" if name == "ar" else "teacher"):
                found.append({**one, "model": name})
    return found


def bounds(run: Path) -> Iterator[str]:
    """Nats a token on held-out text: of continuous time, and of N steps on each plan."""
    found = read(run, "bounds", "likelihood")
    counts = sorted({one["steps"] for one in found if one["plan"]})
    yield f"| model | plan | continuous | {' | '.join(f'N = {N}' for N in counts)} |"
    yield "| --- | --- | ---: |" + " ---: |" * len(counts)
    whole = {one["model"]: one for one in found if not one["plan"]}
    drawn = sorted({(one["model"], one["plan"]) for one in found if one["plan"]})
    for name in sorted(whole.keys() - {model for model, _ in drawn}):  # a causal model: exact, and without steps
        yield f"| {name} | | {said(whole[name]['scores']['per_token'])} |" + " |" * len(counts)
    for model, plan in drawn:
        by_count = {one["steps"]: one for one in found if (one["model"], one["plan"]) == (model, plan)}
        each = (whole.get(model), *map(by_count.get, counts))
        cells = [said(one["scores"]["per_token"]) if one else "" for one in each]
        yield f"| {model} | `{plan}` | {' | '.join(cells)} |"


def cells(run: Path) -> Iterator[str]:
    """What each writes, by its forwards."""
    found = read(run, "written", "cells")
    scores = [name for name in COLUMNS if any(name in cell["scores"] for cell in found)]
    yield f"| model | plan | steps | NFE | T | {' | '.join(scores)} |"
    yield "| --- | --- | ---: | ---: | ---: |" + " ---: |" * len(scores)
    for cell in sorted(found, key=lambda c: (c["nfe"] or 0, -(c["temperature"] or 0), c["model"], c["plan"] or "")):
        shown = [said(cell["scores"][name]) if name in cell["scores"] else "" for name in scores]
        nfe = "" if cell["nfe"] is None else f"{cell['nfe']:.1f}"
        plan = f"`{cell['plan']}`" if cell["plan"] else ""
        where = f"| {cell['model']} | {plan} | {cell['steps'] or ''} | {nfe} | {cell['temperature']} |"
        yield f"{where} {' | '.join(shown)} |"


def said(score: dict[str, Any]) -> str:
    """A value with its standard error."""
    error = score.get("stderr")
    return f"{score['value']:.4g}" + (f" ± {error:.2g}" if error else "")


def main(run: Path) -> None:
    print("Nats a token on held-out text\n", *bounds(run), "\nWhat is written\n", *cells(run), sep="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
