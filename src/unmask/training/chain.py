"""Training a chain: the head is made for a model, trained beside it, and measured plan by plan."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from unmask.checkpoint.chain import with_head
from unmask.checkpoint.identity import weights_hash
from unmask.checkpoint.io import Checkpoint, save
from unmask.core.errors import UserError, named
from unmask.core.ranks import Ranks, joined
from unmask.core.streams import seed_of
from unmask.data.loader import Loader
from unmask.inference.categorical import Draw
from unmask.inference.chain import Chain
from unmask.inference.ready import make_ready, usual_batch
from unmask.inference.step_law import Factorised, Step, StepLaw
from unmask.models.chain import ChainConfig, ChainHead, token_table
from unmask.models.family import plain
from unmask.objectives.chain import USUAL_PLANS, Chaining
from unmask.plans.grids import make_grid
from unmask.plans.plan import locked_plan, locked_plans
from unmask.sampling.teacher_forcing import teacher_force
from unmask.training.trainer import Trainer

SHAPE = ("hidden", "blocks", "heads", "order", "blind", "places")
TEXTS = {"cuda": 64}  # held-out blocks in the table of plans; on other devices 4
COUNTS = (4, 8)  # numbers of steps in it, where the head was trained on them


def new_head(base: Checkpoint, name: str, seed: int, shape: Mapping[str, Any]) -> ChainHead:
    """A head with fresh weights for this model; its output is zero."""
    for key in shape:
        named("option of a chain", key, dict.fromkeys((*SHAPE, "teacher_steps")))
    model = plain(base.model)
    with torch.no_grad():
        z_1L = torch.zeros(1, min(8, model.length), dtype=torch.int64, device=next(model.parameters()).device)
        features = model.features(z_1L).shape[-1]
    config = ChainConfig(
        vocab_size=model.vocab_size, mask=model.mask_id, length=model.length, features=features,
        table=token_table(model).embedding_dim, base=name, base_weights=weights_hash(model), **shape,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(seed, "weights"))
        return ChainHead(config)


def head_to_go_on_from(law: Chain, name: str, shape: Mapping[str, Any]) -> ChainHead:
    """A copy of the head that a model has, to go on from."""
    if shape:
        raise UserError(f"{name} has a head, which is trained on as it is: leave out {next(iter(shape))}, or give the "
                        "model without it")  # fmt: skip
    head = ChainHead(law.head.config)
    head.load_state_dict(law.head.state_dict())
    return head


def train_chain(
    base: Checkpoint, name: str, objective: Chaining, loader: Loader, trainer: Trainer, shape: Mapping[str, Any]
) -> Checkpoint:
    """A model with a chain that was trained beside it: a new one, or the one that it has (not one that it names)."""
    facts: dict[str, Any] = {"source": name}
    if isinstance(base.step_law, Chain) and not base.step_law.named:
        head = head_to_go_on_from(base.step_law, name, shape)
        facts["head"] = weights_hash(head)
        base = dataclasses.replace(base, step_law=Factorised())
    else:
        head = new_head(base, name, trainer.seed, shape)
    facts["weights"] = head.config.base_weights
    made = trainer.fit(head, objective, loader, facts={"from": facts})
    trained = made.model
    assert isinstance(trained, ChainHead)
    if "chain" not in made.provenance:  # a finished run has it
        with joined(trainer.device) as ranks:
            facts = measure_plans(with_head(base, trained, {}, "the chain"), loader, objective, ranks)
            made = dataclasses.replace(made, provenance={**made.provenance, "chain": facts})
            if trainer.out is not None:
                folder, raw = Path(trainer.out) / "checkpoint", dict(head.named_parameters())
                ranks.on_first(lambda: save(made, folder, raw=raw))
    return with_head(base, trained, made.provenance, "the chain")


def measure_plans(chained: Checkpoint, loader: Loader, objective: Chaining, ranks: Ranks) -> dict[str, Any]:
    """What the head was trained on, and the N-step NELBO in nats a token on held-out text: [with the head, without].

    Of the plans that it was trained on, the usual ones and `iid`, the published one, in 4 and 8 steps; on a GPU, where
    this takes seconds, of every plan that is a law of u and every number of steps of the training.
    """
    began, gpu = time.perf_counter(), ranks.device.type == "cuda"
    held_out = Loader(loader.sources, loader.length, split="validation", wrap=loader.wrap)
    count = TEXTS.get(ranks.device.type, 4)
    x_TL = torch.cat([batch.tokens_BL for batch in held_out.eval_batches(count, count)])
    rows = usual_batch(chained.model, ranks.device)
    ready = make_ready(chained.model, ranks.device)
    names = sorted(locked_plans() if gpu else {*objective.plans, *USUAL_PLANS, "iid"})
    counts = objective.steps if gpu else [N for N in COUNTS if N in objective.steps] or objective.steps[:1]
    measured: dict[str, dict[str, list[float]]] = {}
    for name in names[ranks.rank :: ranks.world]:
        measured[name] = {}
        for steps in counts:
            both = _WithAndWithoutHead(chained.step_law)
            how = locked_plan(name), make_grid("rank", steps), chained.process.schedule
            nats = teacher_force(ready, x_TL, *how, step_law=both, rows=rows).nats_T.mean()
            measured[name][str(steps)] = [float(nats), -both.without / x_TL.numel()]
    for other in ranks.gather(measured):
        measured |= other
    return {"plans": list(objective.plans), "steps": list(objective.steps), "texts": len(x_TL), "measured": measured,
            "measured_in": round(time.perf_counter() - began, 1)}  # fmt: skip


class _WithAndWithoutHead:
    """A law that also sums what the factorised one says, so that the body runs once for both."""

    name: ClassVar[str] = "both"

    def __init__(self, law: StepLaw) -> None:
        self.law, self.without = law, 0.0

    def log_prob(self, step: Step, token_M: Tensor) -> Tensor:
        self.without += float(Factorised().log_prob(step, token_M).sum())
        return self.law.log_prob(step, token_M)

    def draw(self, step: Step, uniform_M: Tensor) -> Draw:
        return self.law.draw(step, uniform_M)
