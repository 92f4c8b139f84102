"""A step of LoRA distillation (MCD) as `unmask distill --lora` does it, timed: for `unmask bench llada`.

Shapes: B sequences, L positions.
"""

from __future__ import annotations

from typing import Any

import torch

from unmask.bench.timing import Row, measure
from unmask.core.ranks import Ranks
from unmask.core.streams import stream
from unmask.data.loader import Batch
from unmask.models.lora import Lora, with_adapter
from unmask.objectives.distil.mcd import MCD
from unmask.training.student import Student
from unmask.training.trainer import Trainer


def lora_step(
    base: Any, place: torch.device, *, length: int = 1024, batch: int = 4, recompute: bool = False, repeats: int = 3,
    rank: int = 32,
) -> Row:  # fmt: skip
    """Tokens a second and peak memory of optimiser steps of a student that adapts `base`, which is its teacher too."""
    adapted = with_adapter(base, Lora(True, rank), "base", 0)
    objective = MCD(adapted)
    trainer = Trainer(warmup=0, recompute=recompute, tensorboard=False, progress=False)
    student = Student(adapted, trainer, Ranks(0, 1, place))
    tokens_BL = torch.randint(base.vocab_size, (batch, length), generator=stream(0, "tokens"))
    tokens_BL = torch.where(tokens_BL == base.mask_id, (base.mask_id + 1) % base.vocab_size, tokens_BL)
    text = Batch(tokens_BL.to(place), 0, batch)

    def step() -> None:
        with torch.autocast(place.type, torch.bfloat16, enabled=place.type == "cuda"):
            output = objective(student.model, text, step=0, generator=stream(0, "noise"))
            weighted_BL = output.loss_BL * output.weight_BL
        weighted_BL.sum().backward()
        sums = torch.stack([weighted_BL.detach().sum(dtype=torch.float64), output.weight_BL.sum(dtype=torch.float64)])
        student.update(0, sums, 1e-4)

    timing = measure(step, place, repeats=repeats, warmup=1)
    trained, rate = sum(value.numel() for value in student.ema.shadow.values()), batch * length / timing.seconds
    return {
        "length": length, "batch": batch, "recompute": recompute, "trained_parameters": trained,
        "seconds_a_step": timing.seconds, "tokens_per_second": rate, "peak_gib": timing.peak_gib,
    }  # fmt: skip
