"""Trains heads together with the last blocks of their model, side by side on the same texts with the same noise.

python studies/chain/joint.py --data corpora/judge --blocks 2 0 --steps 500 --seconds 150 --out runs/chain
    leaves joint-2 and joint-0 there, each a model with its head. 0 leaves the model as it is: the other is put beside
    it. Nothing else is learnt: the loss is the chain's N-step NELBO. All end at the same step, when the steps are done
    or the time is up, with the rate at zero, and are then saved.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import unmask
from unmask.checkpoint.identity import weights_hash
from unmask.core.ranks import pick_device
from unmask.core.streams import stream
from unmask.data.loader import Batch, Loader
from unmask.data.shards import ShardSet
from unmask.inference.chain import Chain
from unmask.models.chain import ChainHead
from unmask.models.family import family_of
from unmask.objectives.chain import Chaining
from unmask.training.chain import new_head
from unmask.training.optim import Muon, adamw

MUON = 5.0  # its rate over AdamW's, as in run.sh


@dataclass(frozen=True, eq=False)
class Joint(Chaining):
    """The chain's objective, with gradients through the model's body."""

    body: Any = None

    def _features(self, student: ChainHead, z_BL: Tensor) -> Tensor:
        features: Tensor = self.body.features(z_BL).float()  # as the folded body gives them
        return features


class Pupil:
    """A head and a model of which the last blocks learn with it."""

    def __init__(self, base: unmask.Checkpoint, blocks: int, said: argparse.Namespace, place: torch.device) -> None:
        self.base, self.blocks = base, blocks
        self.body: Any = copy.deepcopy(base.model).eval().requires_grad_(False).to(place)  # type: ignore[attr-defined]
        every = [*family_of(base.model).blocks(self.body)]
        trained = [block.requires_grad_(True) for block in every[len(every) - blocks :]]
        self.head = new_head(base, "", 0, {}).to(place).train()
        self.objective = Joint(base, body=self.body)
        if place.type == "cuda":
            self.objective.compile()  # the loss; the body's share of the time is small
        muon: torch.optim.Optimizer = Muon(self.head, ratio=MUON, betas=(0.9, 0.95), weight_decay=0.01)
        self.optimisers = [(muon, said.head_lr)]
        self.optimisers += [(adamw(block, betas=(0.9, 0.95), weight_decay=0.0), said.lr) for block in trained]
        self.weights = [weight for group in (self.head, *trained) for weight in group.parameters()]

    def learn(self, batch: Batch, step: int, share: float) -> float:
        """One step at this share of the full rates; its loss."""
        with torch.autocast(batch.tokens_BL.device.type, torch.bfloat16):
            loss = self.objective(self.head, batch, step=step, generator=stream(0, "noise", step)).loss_BL.mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.weights, 1.0)
        for optimiser, peak in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = peak * share
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        return loss.item()

    def save(self, out: Path, steps: int) -> None:
        facts = {"plans": list(self.objective.plans), "steps": list(self.objective.steps), "blocks": self.blocks}
        body, head = self.body.cpu().requires_grad_(False), self.head.cpu().eval().requires_grad_(False)
        head.config = dataclasses.replace(head.config, base_weights=weights_hash(body))
        law = Chain(head, facts)
        made = {"chain": {**facts, "step": steps}}
        unmask.save(dataclasses.replace(self.base, model=body, step_law=law, provenance=made), out)


def main() -> None:
    began, said = time.monotonic(), options()
    place, base = pick_device("auto"), unmask.load(said.model)
    pupils = [Pupil(base, blocks, said, place) for blocks in said.blocks]
    loader = Loader([ShardSet.open(said.data)], base.model.length)
    step, done = 0, 0.0
    while done < 1:
        batch = loader.batch(step, 0, said.batch, said.batch)
        batch = dataclasses.replace(batch, tokens_BL=batch.tokens_BL.to(place))
        share = min((step + 1) / said.warmup, 1 - done)
        losses = [pupil.learn(batch, step, share) for pupil in pupils]
        step, passed = step + 1, time.monotonic() - began
        done = max(step / said.steps, passed / said.seconds)
        if step % 50 == 0 or step == 1 or done >= 1:
            print(f"step {step}, {passed:.0f} s:", *(f"{loss:.4f}" for loss in losses), "nats a token", flush=True)
    for pupil in pupils:
        pupil.save(Path(said.out) / f"joint-{pupil.blocks}", step)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="pocket")
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--blocks", type=int, nargs="+", default=[2, 0])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--warmup", type=int, default=50)
    parser.add_argument("--head_lr", type=float, default=2e-3)
    parser.add_argument("--lr", type=float, default=3e-4)
    return parser.parse_args()


if __name__ == "__main__":
    main()
