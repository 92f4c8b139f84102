"""Run by test_rounds.py in a process of its own: a distillation that is killed between and inside rounds, and resumed.

Each session is a fork of this process; it ends by SIGKILL on itself. Rounds are 5 steps long, states come every 3, so
that they lie inside rounds and a resumed round needs its teacher back. Usage: killed_distillation.py CORPUS FOLDER
"""

from pathlib import Path

import torch
from killing import at_update, between_renames, die, small_trainer, walk

from unmask.checkpoint.io import Checkpoint
from unmask.core import files
from unmask.models.dit.network import DiT
from unmask.objectives.distil.curriculum import Curriculum
from unmask.objectives.distil.mcd import MCD
from unmask.training.rounds import Rounds
from unmask.training import loop
from unmask.training.guard import Guard

STEPS, ROUND = 15, 5


def fit(corpus: str, out: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    teacher = DiT(7, 12, hidden=16, cond=8, blocks=2, heads=2, dropout=0.1)
    for parameter in teacher.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    student = DiT.from_config(teacher.config)
    student.load_state_dict(teacher.state_dict())
    curriculum = Curriculum(3, delta_start=0.1, tau_start=0.9, tau_drop=0.1)
    trainer = small_trainer(out, steps=STEPS, eval_every=4)
    trainer.fit(student, Rounds(MCD(Checkpoint(teacher)), curriculum, ROUND), corpus, guard=Guard())


def inside_round_1() -> None:
    at_update(5)  # state: 3


def with_half_a_student_of_round_1_written() -> None:
    loop.save = lambda checkpoint, folder, raw: _half(folder) if folder.name == "1" else None


def _half(folder: Path) -> None:
    with files.fresh_folder(folder) as aside:
        (aside / "config.json").write_text("{")
        die()


def after_round_1_before_a_state() -> None:
    enter = loop.Run._enter_round
    loop.Run._enter_round = lambda self, rounds, step: die() if step == 5 else enter(self, rounds, step)


def inside_round_2() -> None:
    at_update(5)  # from 3: step 8, after state 6


def inside_round_2_again() -> None:
    at_update(3)  # from 6: step 9 is done, not yet saved


def between_the_renames_of_round_2() -> None:
    """Round 2 is written, and the session dies; the next one replaces it and dies in the middle of that."""
    between_renames(".2.old-")
    save = loop.save

    def twice(checkpoint, folder, raw):
        save(checkpoint, folder, raw=raw)
        if folder.name == "2":
            save(checkpoint, folder, raw=raw)

    loop.save = twice


def at_the_end_of_round_3() -> None:
    checkpoint = loop.Run._checkpoint
    loop.Run._checkpoint = lambda self, done, path: die() if done == STEPS else checkpoint(self, done, path)


def before_the_last_checkpoint() -> None:
    """The last state is saved: the next session has no step to do, and must still know which round it is in."""
    export = loop.Run._export
    loop.Run._export = lambda self, done: die() if done == STEPS else export(self, done)


MOMENTS = (
    inside_round_1,
    with_half_a_student_of_round_1_written,
    after_round_1_before_a_state,
    inside_round_2,
    inside_round_2_again,
    between_the_renames_of_round_2,
    at_the_end_of_round_3,
    before_the_last_checkpoint,
)

if __name__ == "__main__":
    walk(fit, MOMENTS)
