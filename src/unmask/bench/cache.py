"""`unmask bench cache`: what an approximate cache of keys and values costs, in nats a token, and what it saves.

Texts are written with the cache; at every step the law that each token was drawn from is compared with the law that
the network has there without a cache. The sum over the steps is KL(law with the cache || law without), given the plan;
for a plan that looks at the model, that of the tokens alone: without the cache it might have chosen other positions.

Shapes: S texts, L positions, M positions drawn, V states.
"""

from __future__ import annotations

import json as js
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from unmask.bench.timing import Row
from unmask.checkpoint.io import load
from unmask.core import provenance
from unmask.core.errors import UserError
from unmask.core.ranks import pick_device
from unmask.inference.cache import Caching, Memory
from unmask.inference.ready import Ready, make_ready
from unmask.plans.grids import make_grid
from unmask.plans.plan import Blocks, Plan, make_plan
from unmask.sampling.drafts import Drawn, How, new_table, start_draft, take_step


def cache(
    *,
    model: str,
    n: int = 64,
    steps: int = 32,
    plans: list[str] = ["golden", "confidence"],  # noqa: B006  read only
    block_size: int = 32,
    refresh: list[int] = [2, 4],  # noqa: B006  read only
    seed: int = 0,
    device: str = "auto",
    json: bool = False,
) -> dict[str, Any]:
    """Measure the error of the caches prefix and dual on a model, against the model without one.

    Args:
        model: a checkpoint of a family in which every position sees every other: llada, dream
        n: how many texts to write with each cache
        steps: steps of the sampler
        plans: plans inside the blocks
        block_size: positions in a block
        refresh: intervals to try beside a full forward at each block's start alone
        seed: names the noise
        device: where to run: auto, cpu, cuda or mps
        json: print JSON instead of a table
    """
    checkpoint = load(model)
    if min(n, steps, block_size, *refresh) < 1:
        raise UserError("n, steps, block_size and refresh must be at least 1")
    ready = make_ready(checkpoint.model, pick_device(device))
    lines = []
    for name in plans:
        for kind in ("prefix", "dual"):
            for interval in (*refresh, None):
                caching = Caching(kind, interval)
                caching.check(checkpoint.model)
                plan: Plan = Blocks(block_size, make_plan(name))  # type: ignore[arg-type]
                how = How(checkpoint, plan, make_grid("rank", steps), seed=seed, cache=caching)
                lines.append({"plan": name, "cache": kind, "refresh": interval, **cost(how, ready, n)})
                if not json:
                    print(_words(lines[-1]), flush=True)
    result = {"lines": lines, "n": n, "steps": steps, "block_size": block_size,
              "record": provenance.record(ready.device, model=checkpoint.provenance)}  # fmt: skip
    if json:
        print(js.dumps(result))
    return result


@torch.inference_mode()
def cost(how: How, ready: Ready, n: int) -> dict[str, float]:
    """KL a token with its standard error over texts, the largest at one token, and the share of places computed."""
    assert how.cache is not None
    L = ready.model.length
    memory = Memory(ready, how.cache, n, L)
    table = new_table(ready, n, L, memory)
    draft = start_draft(how, ready, table, list(range(n)), torch.full((n, L), -1))
    nats_S, most = torch.zeros(n, dtype=torch.float64), 0.0
    for move in draft.moves(ready.device):
        if not move.reveal_M.numel():
            continue
        before_SL = table.z_BL.clone()
        (drawn,) = take_step(ready, table, [(draft, move)])
        kl_M = apart(ready, before_SL, drawn)
        nats_S.index_add_(0, drawn.step.row_M.cpu(), kl_M)
        most = max(most, float(kl_M.max()))
    mean, error = float((nats_S / L).mean()), float((nats_S / L).std(correction=0)) / n**0.5
    return {"kl": mean, "standard_error": error, "most": most, "computed": memory.computed / memory.whole}


def apart(ready: Ready, z_SL: Tensor, drawn: Drawn) -> Tensor:
    """KL(law with the cache || law without) at each position that a step drew: (M,) float64."""
    step = drawn.step
    parts = []
    h_ND = ready.features(z_SL).flatten(0, 1)
    without = replace(step, h_ND=h_ND, local_M=step.flat_M)
    for part in step.parts():
        p_CV, q_CV = (one.shaped(part).double().log_softmax(-1) for one in (step, without))
        finite_CV = p_CV.isfinite()
        parts.append((p_CV.exp() * (p_CV - q_CV)).where(finite_CV, 0.0).sum(-1).cpu())
    return torch.cat(parts)


def _words(row: Row) -> str:
    interval = "never" if row["refresh"] is None else f"every {row['refresh']} steps"
    return (f"{row['plan']} in blocks, {row['cache']}, refreshed within a block {interval}: "
            f"{row['kl']:.5f} ± {row['standard_error']:.5f} nats a token, at most {row['most']:.3f} at one; "
            f"{row['computed']:.0%} of the places computed")  # fmt: skip
