"""Trainer: how to train, as options; `fit` opens the run and hands over to the loop (loop.py).

Running `fit` again with the same options continues the run in `out`; with others it is refused.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from unmask.checkpoint.io import Checkpoint, has_raw, stored
from unmask.core.errors import UserError, unknown
from unmask.core.progress import note
from unmask.core.provenance import device_name
from unmask.core.ranks import Ranks, joined
from unmask.data.answers import Data
from unmask.data.loader import Loader
from unmask.data.shards import ShardSet
from unmask.models.denoiser import is_causal
from unmask.models.family import config_to_json, family_of, plain, trainable
from unmask.objectives.ar import AR
from unmask.objectives.base import Objective, describe
from unmask.training import optim
from unmask.training.distributed import Kind
from unmask.training.folder import RunFolder
from unmask.training.guard import Guard
from unmask.training.loop import Run
from unmask.training.rounds import Rounds

# What may change between two sessions of one run: how it is watched, where and how spread out it is computed, and how
# long it is to be. A model it started from is known by its weights.
FREE = {
    "trainer.micro_batch", "trainer.compile", "trainer.recompute", "trainer.device", "trainer.parallel",
    "trainer.eval_every",
    "trainer.eval_batches", "trainer.save_every", "trainer.log_every", "trainer.keep", "trainer.tensorboard",
    "trainer.progress", "trainer.steps", "objective.curriculum.rounds", "facts.teacher.source", "facts.from.source",
}  # fmt: skip


@dataclass
class Trainer:
    """How to train. The defaults suit a small model; recipes hold published settings.

    Optimiser:
        steps: optimiser steps
        batch: sequences in one optimiser step, over all processes
        optimiser: adamw, or muon: Muon for the matrices of the blocks and AdamW for the rest
        lr: peak learning rate of AdamW
        muon_lr: peak learning rate of Muon
        warmup: steps over which the rate rises to its peak
        decay: how it falls afterwards, to 0 at the last step, or constant
        weight_decay: on matrices only, at the rate of AdamW
        beta1: of AdamW
        beta2: of AdamW
        clip: longest gradient; 0 for any length
        ema: decay of the averaged weights, which are evaluated and saved
        seed: names all randomness: batches, noise, dropout
    Machine:
        device: auto, cpu, cuda or mps
        precision: of matrix products; weights and sums are fp32 in either
        micro_batch: sequences in one forward pass of one process (default: all of its share)
        compile: compile the model's blocks first (worth it on a GPU)
        recompute: compute the blocks again in the backward pass instead of keeping what they computed: less memory
        parallel: how torchrun's processes share the model; auto is ddp
    Run:
        out: the run's folder; running again with the same options continues it
        eval_every: steps between evaluations; 0 for none
        eval_batches: batches of held-out text in an evaluation
        save_every: steps between saved states; 0 for only the last
        log_every: steps between lines of metrics
        keep: how many of the newest states stay on disk
        tensorboard: also write TensorBoard files
        progress: show progress on stderr
    """

    steps: int = 1000
    batch: int = 32
    micro_batch: int | None = None
    optimiser: optim.Kind = "adamw"
    lr: float = 3e-4
    muon_lr: float = 0.02
    warmup: int = 300
    decay: optim.Decay = "constant"
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.98
    clip: float = 1.0
    ema: float = 0.999
    precision: Literal["fp32", "bf16"] = "fp32"
    compile: bool = False
    recompute: bool = False
    device: str = "auto"
    parallel: Kind = "auto"
    seed: int = 0
    eval_every: int = 200
    eval_batches: int = 4
    save_every: int = 500
    log_every: int = 10
    keep: int = 2
    tensorboard: bool = True
    progress: bool = True
    out: str | Path | None = None

    def __post_init__(self) -> None:
        least = dict.fromkeys(("steps", "batch", "log_every", "keep", "eval_batches", "micro_batch"), 1)
        least |= dict.fromkeys(
            ("warmup", "eval_every", "save_every", "weight_decay", "clip", "beta1", "beta2", "ema"), 0
        )
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and not value >= bound:
                raise UserError(f"{name} must be at least {bound}, not {value}")
            if name in ("beta1", "beta2", "ema") and not value < 1:
                raise UserError(f"{name} must be at least 0 and below 1, not {value}")
        for name in ("lr", "muon_lr"):
            if not (getattr(self, name) > 0 and math.isfinite(getattr(self, name))):
                raise UserError(f"{name} must be above 0 and finite, not {getattr(self, name)}")
        names = {"precision": ("fp32", "bf16"), "decay": get_args(optim.Decay), "parallel": get_args(Kind)}
        for name, allowed in (names | {"optimiser": get_args(optim.Kind)}).items():
            if getattr(self, name) not in allowed:
                raise unknown(name, str(getattr(self, name)), allowed)

    def __repr__(self) -> str:
        """What differs from the defaults."""
        changed = [f for f in dataclasses.fields(self) if f.init and getattr(self, f.name) != f.default]
        return f"{type(self).__name__}({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in changed)})"

    def fit(
        self, model: Any, objective: Objective, data: Data | Path | str, *, facts: Mapping[str, Any] | None = None,
        guard: Guard | None = None,
    ) -> Checkpoint:  # fmt: skip
        """Train `model` in place (it ends with the raw weights); the checkpoint returned holds the averaged ones.

        Of a finished run whose raw weights are gone, both are the averaged ones.

        Args:
            model: what to train
            objective: what to minimise
            data: batches of tokens, or the folder of a prepared corpus
            facts: what else makes this run what it is (JSON); a rerun with other facts is refused
            guard: looks at the student at every evaluation
        """
        with ExitStack() as stack:
            ranks = stack.enter_context(joined(self.device))
            # dropout draws from torch's global generators, seeded anew at every step: the caller's are put back
            stack.enter_context(torch.random.fork_rng([ranks.device] if ranks.device.type == "cuda" else []))
            stack.enter_context(torch.enable_grad())
            loader = data if isinstance(data, Data) else Loader([ShardSet.open(data)], model.length, seed=self.seed)
            check_fit(self, model, objective, loader, ranks)
            check_watched(self, objective, guard)
            held_out = loader.held_out() if self.eval_every else None
            config = self._config(model, objective, loader, facts or {})
            if self.out is None:
                return Run(self, model, objective, loader, held_out, ranks, None, config, guard).go(0)
            folder = RunFolder(Path(self.out), ranks)
            stack.enter_context(folder.held())
            start, finished = self._claim(folder, config, ranks)
            if finished:
                note(f"{folder.path} is finished: all {self.steps} steps are done", ranks.first)
                kept: Literal["raw", "ema"] = "raw" if has_raw(folder.checkpoint) else "ema"
                model.to(ranks.device).load_state_dict(plain(stored(folder.path, weights=kept).model).state_dict())
                checkpoint = stored(folder.path)
                plain(checkpoint.model).to(ranks.device).eval()
                return dataclasses.replace(checkpoint, name=str(folder.path))
            if start:
                note(f"{folder.path} goes on from step {start} of {self.steps}", ranks.first)
            return Run(self, model, objective, loader, held_out, ranks, folder, config, guard).go(start)

    def _config(self, model: Any, objective: Objective, data: Data, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Everything the weights of the run depend on, and a little more, as JSON can hold it."""
        settings = dataclasses.asdict(self)
        del settings["out"]
        kind, shape = family_of(model).name, config_to_json(model)
        about = {"family": kind, "model": shape, "data": data.describe(), "facts": dict(facts)}
        return {"trainer": settings, "objective": describe(objective), **about}

    def _claim(self, folder: RunFolder, config: dict[str, Any], ranks: Ranks) -> tuple[int, bool]:
        """The step to start from, and whether all are done. Says if this session computes otherwise than the last."""
        session = {"threads": torch.get_num_threads(), "processes": ranks.world, "torch": str(torch.__version__)}
        session |= {"device": device_name(ranks.device).split(",")[0], "micro_batch": self.micro_batch}
        start, steps, last, finished = folder.claim(config, session, FREE, self.steps)
        if start > self.steps:
            raise UserError(f"{folder.path} has already done {start} steps, and {self.steps} are asked for: give more "
                            "--steps (in a distillation --rounds), or another --out")  # fmt: skip
        if start and steps != self.steps and self.decay != "constant":
            longer = f"steps {steps} -> {self.steps}: the {self.decay} decay now ends at step {self.steps}"
            note(f"{longer}; the weights will not be those of a run that was so long from the start", ranks.first)
        changed = [f"{name} {last[name]} -> {now}" for name, now in session.items() if last.get(name, now) != now]
        if start and changed:
            warning = "since the last session: the weights will not be bit for bit those of an undisturbed run"
            note(f"{', '.join(changed)} {warning}", ranks.first)
        return start, finished


def check_fit(trainer: Trainer, model: Any, objective: Objective, data: Data, ranks: Ranks) -> None:
    if data.length > model.length:
        raise UserError(f"sequences of {data.length} tokens are longer than the model's {model.length}: shorten them")
    mask_is_last = model.mask_id == model.vocab_size - 1  # else it is one of the tokenizer's own tokens
    size = data.tokenizer.size + mask_is_last
    if size > model.vocab_size or (mask_is_last and size < model.vocab_size):
        raise UserError(f"the data's tokenizer {data.tokenizer.name!r} has {data.tokenizer.size} tokens, the model "
                        f"{model.vocab_size} states: prepare the text with the model's tokenizer")  # fmt: skip
    few = data.eval_batches(min(8, data.blocks), 1)
    if model.mask_id is not None and any(bool((batch.tokens_BL == model.mask_id).any()) for batch in few):
        raise UserError(f"the model's mask, state {model.mask_id}, is a token of the text: take one it never has")
    if not trainable(model):
        raise UserError("no parameter of the model takes gradients: there is nothing to train")
    if isinstance(objective, AR) != is_causal(model):
        raise UserError("AR is for a causal model, DiT(causal=True), and any other objective for one that is not")
    if trainer.parallel == "fsdp" and not ranks.grouped:
        raise UserError("--parallel fsdp spreads a model over processes: start them with torchrun, or leave it out")
    if trainer.parallel == "fsdp" and trainer.optimiser == "muon":
        raise UserError("muon needs whole matrices, and fsdp cuts them up: take --parallel ddp, or optimiser adamw")
    if trainer.batch % ranks.world:
        raise UserError(f"batch {trainer.batch} is not a multiple of the {ranks.world} processes that share it")


def check_watched(trainer: Trainer, objective: Objective, guard: Guard | None) -> None:
    if isinstance(objective, Rounds) and trainer.steps > objective.steps:
        rounds = f"{objective.curriculum.rounds} rounds of {objective.round_steps}"
        raise UserError(f"{trainer.steps} steps are more than {rounds}: take at most {objective.steps}, or more rounds")
    if guard is not None and not trainer.eval_every:
        raise UserError("the guard looks at the student when it is evaluated: give --eval_every, or use --guard off")
