"""Run by test_resume.py in a process of its own: a run that is killed at chosen moments and resumed each time.

Each session is a fork of this process, so that it starts at once; it ends by SIGKILL on itself, which runs no handler,
no `finally` and no cleanup. Usage: killed_run.py CORPUS FOLDER
"""

import shutil

import torch
from killing import at_update, between_renames, die, small_trainer, walk

from unmask.models.dit.network import DiT
from unmask.objectives.elbo import MDLM
from unmask.training import folder
from unmask.training import state as sharded
from unmask.training.metrics import MetricsLog


def fit(corpus: str, out: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DiT(7, 12, hidden=16, cond=8, blocks=2, heads=2, dropout=0.1)
    trainer = small_trainer(out, steps=20, eval_every=5)
    trainer.fit(model, MDLM(), corpus)


def before_the_first_state() -> None:
    at_update(2)


def between_two_states() -> None:
    at_update(5)


def with_half_a_line_in_the_log() -> None:
    def write(self, step, values):
        self._handle.write('{"step": 99')
        self._handle.flush()
        die()

    MetricsLog.write = write


def with_half_a_state_written() -> None:
    def half(path, tensors):
        path.write_bytes(b"\0" * 1000)
        die()

    sharded.write_tensors = half


def before_the_state_gets_its_name() -> None:
    sharded.swap_in = die


def before_the_old_state_goes() -> None:
    folder._remove = die


def with_the_old_state_half_gone() -> None:
    remove = shutil.rmtree

    def half(path, *rest, **more):
        if "released" not in path.name:
            return remove(path, *rest, **more)
        next(path.glob("*.safetensors")).unlink()
        return die()

    shutil.rmtree = half


def between_the_two_renames_of_the_checkpoint() -> None:
    between_renames(".old-")


def before_the_last_checkpoint() -> None:
    from unmask.training import loop

    export = loop.Run._export
    loop.Run._export = lambda self, done: die() if done == 20 else export(self, done)


MOMENTS = (
    before_the_first_state,
    between_two_states,
    with_half_a_line_in_the_log,
    with_half_a_state_written,
    before_the_state_gets_its_name,
    before_the_old_state_goes,
    with_the_old_state_half_gone,
    between_the_two_renames_of_the_checkpoint,
    before_the_last_checkpoint,
)

if __name__ == "__main__":
    walk(fit, MOMENTS)
