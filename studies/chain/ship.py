"""A trained head as a bundled asset: bf16, no paths of a machine, a card with its own figures.

python studies/chain/ship.py runs/chain src/unmask/assets/pocket-chain
    reads bf16/small-muon and the results beside it, as studies/chain/run.sh leaves them in KEEP.
python studies/chain/ship.py runs/cpu-chain src/unmask/assets/pocket-chain comb blind runs/chain/comb
    takes the head `comb` of runs/chain/comb, whose control is `blind`, and the bounds in runs/cpu-chain.
To make it the law of `pocket`, its config.json says "step_law": {"name": "chain", "from": "pocket-chain"}.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from table import Found, found_in, half

from unmask.checkpoint.card import portable
from unmask.checkpoint.io import FILES, save, stored
from unmask.core.files import sha256_file, write_text
from unmask.metrics.score import difference
from unmask.studies.results import read_results

CARD = """# {name}

A chain beside `{base}`: a small causal head over the positions of a step, so that they know of one another
(docs/chain.md). The model's own weights are not touched. Trained on English classics in the public domain,
none of which the model was trained on.

| | |
|---|---|
| kind | head of a masked diffusion model: it works beside `{base}` alone |
| parameters | {count:,}, stored as bfloat16 |
| shape | {shape} |
| trained on the plans | {plans}, in {counts} steps |
| training | {steps:,} steps of {batch} x {length} tokens |
| optimiser | {optimiser}, learning rate {lr:g} ({decay}), EMA {ema:g}, seed {seed} |
| corpus | content {content}, tokenizer {tokenizer} |
| made | by unmask {unmask}, torch {torch}, on {device}, {time} |
| licence | Apache-2.0 |

## What it is worth
N-step NELBO on {texts} blocks of held-out books, in nats a token; lower is better. Of the head less the model
alone, paired, ± half the 95% interval; beside it the control, which sees no token of its step and was trained
for {blind_steps:,} steps.
What it costs: docs/chain.md.

{table}

## Use
```
unmask sample --model {base} --step_law {name} --steps 4
```
In Python: `unmask.sample("{base}", 1, 4, step_law="{name}")`. `--step_law factorised` is the model alone.

## Limits
Those of `{base}`. On a plan that it was not trained on it may be worth less: a note then says what was measured.

## Files, by sha256
```
{digest}  {file}
```
"""


def main(run: Path, target: Path, head: str = "small-muon", blind: str = "blind-muon", at: str | None = None) -> None:
    made = stored(at or run / "bf16" / head)
    made = dataclasses.replace(made, provenance=portable(made.provenance))
    save(made, target, dtype=torch.bfloat16)
    write_text(target / "README.md", card(made, run, target, head, blind))


def card(made: Any, run: Path, target: Path, head: str, blind: str) -> str:
    said, config, shape = made.provenance, made.provenance["config"], made.model.config
    options, facts, found = config["trainer"], said["chain"], found_in(run)
    optimiser = "AdamW" if options["optimiser"] == "adamw" else f"Muon at {options['muon_lr']:g}, AdamW for the rest"
    return CARD.format(
        name=target.name, base=shape.base, count=sum(value.numel() for value in made.model.parameters()),
        texts=len(next(iter(found.values()))), blind_steps=_steps(run, blind), optimiser=optimiser,
        shape=f"{shape.blocks} causal layers of {shape.hidden}, {shape.heads} heads, {shape.order.replace('_', ' ')}",
        plans=", ".join(facts["plans"]), counts=", ".join(map(str, facts["steps"])), steps=said["step"],
        length=config["data"]["length"], content=config["data"]["content"], tokenizer=config["data"]["tokenizer"],
        unmask=said["unmask"], torch=said["torch"], device=said["device"], time=said["time"][:10],
        table="\n".join(_gains(found, head, blind)), file=FILES["ema"],
        digest=sha256_file(target / FILES["ema"]),
        **{key: options[key] for key in ("batch", "lr", "decay", "ema", "seed")},
    )  # fmt: skip


def _gains(found: Found, head: str, blind: str) -> Iterator[str]:
    """Rows of plan and steps: the model alone, and what the head and its control gain."""
    yield from ("| plan | steps | model alone | with the head | control |", "|---|---:|---:|---:|---:|")
    for (model, plan, steps), ratio in found.items():
        if model == head:
            alone = found["teacher", plan, steps]
            both = ratio, found[blind, plan, steps]
            mine, other = (half(difference(one, alone, "nats/token", {})) for one in both)
            yield f"| `{plan}` | {steps} | {alone.value:.4f} | {mine} | {other} |"


def _steps(run: Path, head: str) -> int:
    """Of a head's training, as an evaluation of it says."""
    files = (read_results(file) for file in sorted(run.glob("*-bounds/results.json")))
    said = next(one.models[head]["provenance"] for one in files if head in one.models)
    return int(said["chain"]["step"])


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
