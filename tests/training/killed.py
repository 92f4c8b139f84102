"""Run by test_resume.py in a process of its own: a distillation that is killed at chosen moments and resumed each time.

Each session is a fork of this process, so that it starts at once; it ends by SIGKILL on itself, which runs no handler,
no `finally` and no cleanup. Rounds are 5 steps long and states come every 3, so that they lie inside rounds and a
resumed round needs its teacher back. Usage: killed.py CORPUS FOLDER
"""

import os
import shutil
import signal
import sys
from functools import partial
from pathlib import Path

import torch

from unmask.checkpoint.io import Checkpoint
from unmask.core import files
from unmask.models.dit.network import DiT
from unmask.objectives.distil.curriculum import Curriculum
from unmask.objectives.distil.mcd import MCD
from unmask.training import folder, loop, state
from unmask.training.guard import Guard
from unmask.training.metrics import MetricsLog
from unmask.training.rounds import Rounds
from unmask.training.trainer import Trainer

STEPS, ROUND = 15, 5
OPTIONS = {"batch": 8, "micro_batch": 4, "lr": 1e-2, "warmup": 2, "eval_every": 4, "eval_batches": 1, "save_every": 3,
           "log_every": 2, "keep": 1, "tensorboard": False, "progress": False, "device": "cpu"}  # fmt: skip


def fit(corpus: str, out: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    teacher = DiT(7, 12, hidden=16, cond=8, blocks=2, heads=2, dropout=0.1)
    for parameter in teacher.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    student = DiT.from_config(teacher.config)
    student.load_state_dict(teacher.state_dict())
    curriculum = Curriculum(3, delta_start=0.1, tau_start=0.9, tau_drop=0.1)
    rounds = Rounds(MCD(Checkpoint(teacher)), curriculum, ROUND)
    Trainer(steps=STEPS, out=Path(out), **OPTIONS).fit(student, rounds, corpus, guard=Guard())


# --- moments to die at ------------------------------------------------------------------------------------------------


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def at_update(number: int) -> None:
    """In the optimiser step of this number, counted from the session's start."""
    update, seen = torch.optim.AdamW.step, []

    def step(self, *rest):
        seen.append(1)
        return die() if len(seen) == number else update(self, *rest)

    torch.optim.AdamW.step = step


def between_renames(mark: str) -> None:
    """When something old has just been moved to a name with this mark, and the new is not in place yet."""
    rename = os.rename

    def first_only(source: object, target: object) -> None:
        rename(source, target)
        if mark in str(target):
            die()

    files.os.rename = first_only


def when_done(name: str, steps: int) -> None:
    """In a method of the run that is told the steps done, or the next one."""
    method = getattr(loop.Run, name)
    setattr(loop.Run, name, lambda self, *given: die() if steps in given else method(self, *given))


def with_half_a_line_in_the_log() -> None:
    def write(self, step, values):
        self._handle.write('{"step": 99')
        self._handle.flush()
        die()

    MetricsLog.write = write


def with_half_a_state_written() -> None:
    state.write_tensors = lambda path, tensors: die(path.write_bytes(b"\0" * 1000))


def with_half_a_student_written() -> None:
    def half(checkpoint, path, raw):
        with files.fresh_folder(path) as filling:
            (filling / "config.json").write_text("{")
            die()

    loop.save = half


def with_the_old_state_half_gone() -> None:
    remove = shutil.rmtree

    def half(path, *rest, **more):
        if "released" not in path.name:
            return remove(path, *rest, **more)
        return die(next(path.glob("*.safetensors")).unlink())

    shutil.rmtree = half


def between_the_renames_of_round_2() -> None:
    """Round 2 is written, and at once replaced."""
    between_renames(".2.old-")
    save = loop.save

    def twice(checkpoint, path, raw):
        for _ in range(2 if path.name == "2" else 1):
            save(checkpoint, path, raw=raw)

    loop.save = twice


MOMENTS = {  # in this order: how to die there, and the newest state that it leaves
    "before the first state": (partial(at_update, 2), 0),
    "with half a line in the log": (with_half_a_line_in_the_log, 0),
    "with half a state written": (with_half_a_state_written, 0),
    "before the state gets its name": (partial(setattr, state, "swap_in", die), 0),
    "between two states": (partial(at_update, 5), 3),
    "with half a student of round 1 written": (with_half_a_student_written, 3),
    "after round 1, before a state": (partial(when_done, "_enter_round", ROUND), 3),
    "before the old state goes": (partial(setattr, folder, "_remove", die), 6),  # and 3 is there too
    "with the old state half gone": (with_the_old_state_half_gone, 9),  # and 6, and half of 3
    "between the renames of round 2": (between_the_renames_of_round_2, 9),
    "between the renames of the checkpoint": (partial(between_renames, ".checkpoint.old-"), 12),
    "inside round 3": (partial(at_update, 2), 12),
    "at the end of round 3": (partial(when_done, "_checkpoint", STEPS), 12),
    # the next session has no step to do, and must know which round it is in
    "before the last checkpoint": (partial(when_done, "_export", STEPS), 15),
}

if __name__ == "__main__":
    torch.optim.AdamW([torch.zeros(1)])  # loads what every session needs, once
    for moment in (*MOMENTS, "to the end"):
        child = os.fork()
        if child == 0:
            if moment in MOMENTS:
                MOMENTS[moment][0]()
            fit(*sys.argv[1:])
            os._exit(0)
        _, status = os.waitpid(child, 0)
        how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"
        states = sorted(path.name for path in (Path(sys.argv[2]) / "state").glob("step-*"))
        newest = int(states[-1][5:]) if states else 0
        print(moment, how, newest, flush=True)
