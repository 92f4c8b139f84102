"""Trains a head together with the last blocks of its model, as far as `--blocks` says; 0 leaves the model as it is.

python studies/chain/joint.py --data corpora/judge --blocks 2 --steps 600 --out runs/joint
    The model and its head are saved together. Nothing else is learnt: the loss is the chain's N-step NELBO.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import unmask
from unmask.core.ranks import pick_device
from unmask.core.streams import stream
from unmask.data.loader import Loader
from unmask.data.shards import ShardSet
from unmask.inference.chain import Chain
from unmask.models.chain import ChainHead
from unmask.models.family import family_of
from unmask.objectives.chain import Chaining
from unmask.training.chain import new_head
from unmask.training.optim import Muon, adamw, learning_rate


@dataclass(frozen=True, eq=False)
class Joint(Chaining):
    """The chain's objective, with gradients through the model's body."""

    body: Any = None

    def _features(self, student: ChainHead, z_BL: Tensor) -> Tensor:
        features: Tensor = self.body.features(z_BL)
        return features


def main() -> None:
    said = options()
    place = pick_device("auto")
    base = unmask.load(said.model)
    body, family = copy.deepcopy(base.model).eval().requires_grad_(False).to(place), family_of(base.model)
    trained = [*family.blocks(body)][len([*family.blocks(body)]) - said.blocks :]
    for block in trained:
        block.requires_grad_(True)
    head = new_head(base, "", 0, {}).to(place).train()
    objective = Joint(base, body=body)
    if place.type == "cuda":
        family.compile(body)
        objective.compile()
    loader = Loader([ShardSet.open(said.data)], base.model.length)
    optimisers: list[tuple[torch.optim.Optimizer, float]] = [
        (Muon(head, ratio=5.0, betas=(0.9, 0.95), weight_decay=0.01), 2e-3)
    ]
    optimisers += [(adamw(block, betas=(0.9, 0.95), weight_decay=0.0), said.lr) for block in trained]
    weights = [p for group in (head, *trained) for p in group.parameters() if p.requires_grad]
    for step in range(said.steps):
        batch = loader.batch(step, 0, said.batch, said.batch)
        batch = dataclasses.replace(batch, tokens_BL=batch.tokens_BL.to(place))
        with torch.autocast(place.type, torch.bfloat16, enabled=place.type == "cuda"):
            loss = objective(head, batch, step=step, generator=stream(0, "noise", step)).loss_BL.mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        for optimiser, peak in optimisers:
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(step, peak=peak, warmup=said.warmup, decay="linear", steps=said.steps)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        if (step + 1) % 50 == 0 or step + 1 == said.steps:
            print(f"step {step + 1}: {loss.item():.4f} nats a token", flush=True)
    facts = {"plans": list(objective.plans), "steps": list(objective.steps), "blocks": said.blocks}
    law = Chain(head.cpu().eval().requires_grad_(False), facts)
    whole = dataclasses.replace(
        base, model=body.cpu().requires_grad_(False), step_law=law, provenance={"chain": {"step": said.steps}}
    )
    unmask.save(whole, said.out)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="pocket")
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--lr", type=float, default=3e-4)
    return parser.parse_args()


if __name__ == "__main__":
    main()
