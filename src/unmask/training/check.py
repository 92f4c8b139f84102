"""What a user can get wrong before training starts, each said in one line."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, get_args

from unmask.core.errors import UserError, unknown
from unmask.core.ranks import Ranks
from unmask.data.answers import Data
from unmask.models.denoiser import is_causal
from unmask.models.family import trainable
from unmask.objectives.ar import AR
from unmask.objectives.base import Objective
from unmask.training import optim
from unmask.training.distributed import Kind
from unmask.training.guard import Guard
from unmask.training.rounds import Rounds

if TYPE_CHECKING:
    from unmask.training.trainer import Trainer


def check_settings(trainer: Trainer) -> None:
    least = dict.fromkeys(("steps", "batch", "log_every", "keep", "eval_batches", "micro_batch"), 1)
    least |= dict.fromkeys(("warmup", "eval_every", "save_every", "weight_decay", "clip", "beta1", "beta2", "ema"), 0)
    for name, bound in least.items():
        value = getattr(trainer, name)
        if value is not None and not value >= bound:
            raise UserError(f"{name} must be at least {bound}, not {value}")
        if name in ("beta1", "beta2", "ema") and not value < 1:
            raise UserError(f"{name} must be at least 0 and below 1, not {value}")
    for name in ("lr", "muon_lr"):
        if not (getattr(trainer, name) > 0 and math.isfinite(getattr(trainer, name))):
            raise UserError(f"{name} must be above 0 and finite, not {getattr(trainer, name)}")
    names = {"precision": ("fp32", "bf16"), "decay": get_args(optim.Decay), "parallel": get_args(Kind)}
    for name, allowed in (names | {"optimiser": get_args(optim.Kind)}).items():
        if getattr(trainer, name) not in allowed:
            raise unknown(name, str(getattr(trainer, name)), allowed)


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
