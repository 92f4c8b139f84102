"""What the scripts that kill themselves share: the small run, the ways to die, the walk from one death to the next."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from unmask.core import files
from unmask.training.trainer import Trainer


def small_trainer(out: str, *, steps: int, eval_every: int) -> Trainer:
    return Trainer(
        steps=steps,
        batch=8,
        micro_batch=4,
        lr=1e-2,
        warmup=2,
        eval_every=eval_every,
        eval_batches=1,
        save_every=3,
        log_every=2,
        keep=1,
        tensorboard=False,
        progress=False,
        device="cpu",
        out=Path(out),
    )


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def between_renames(mark: str) -> None:
    """Die when something old has just been moved aside under a name with this mark, and the new is not in place yet."""
    rename = os.rename

    def first_only(source: object, target: object) -> None:
        rename(source, target)  # type: ignore[arg-type]
        if mark in str(target):
            die()

    files.os.rename = first_only  # type: ignore[assignment]


def at_update(number: int) -> None:
    """Die in the optimiser step of this number, counted from the session's start."""
    update, seen = torch.optim.AdamW.step, []

    def step(self, *rest):
        seen.append(1)
        return die() if len(seen) == number else update(self, *rest)

    torch.optim.AdamW.step = step


def walk(fit: Callable[[str, str], None], moments: tuple[Callable[[], None], ...]) -> None:
    """One session for each moment to die at, then one to the end; each says how it ended."""
    corpus, out = sys.argv[1:]
    torch.optim.AdamW([torch.zeros(1)])  # loads what every session needs, once
    for moment in (*moments, None):
        child = os.fork()
        if child == 0:
            if moment:
                moment()
            fit(corpus, out)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"
        print(moment.__name__ if moment else "to the end", how, flush=True)
