"""`unmask demo`: what works, and a first distillation, as commands a person would type, each shown before it runs."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

from rich.console import Console
from rich.table import Table

from unmask.checkpoint.io import Checkpoint
from unmask.cli.main import run
from unmask.cli.watch import legible
from unmask.core.errors import UserError
from unmask.core.files import check_folder
from unmask.metrics.judges import load_judge
from unmask.sampling.verbs import sample
from unmask.training.verbs import load_teacher

STEPS = "8"  # few enough that the order matters, and that a student can gain
PLANS = {"iid": "in random order (iid)", "comb": "on our plan (comb)"}


def demo(*, teacher: str = "pocket", judge: str = "pocket-judge", out: Path = Path("demo")) -> None:
    """Watch a small model write, compare two plans at the same number of steps, distil it for one short round.

    Under four minutes on two cores. Run it again and it goes on where it stopped.

    Args:
        teacher: a masked model: a bundled name or a checkpoint
        judge: a causal model with the teacher's tokenizer, for Gen PPL
        out: the folder everything goes into
    """
    check_folder(out)
    model = load_teacher(teacher)  # a model of the wrong kind is refused before anything runs
    if model.tokenizer is None:
        raise UserError(f"{teacher} has no tokenizer, so that it cannot write text: give a --teacher that has one")
    load_judge(judge, device="cpu")
    corpus, student, plans, report = (str(out / name) for name in ("corpus", "student", "plans", "report"))
    judged = ("--steps", STEPS, "--n", "32", "--judge", judge, "--no-bounds", "--temperatures", "1.0")

    _title(f"1. A model writes: {model.model.length} tokens in {STEPS} steps")
    _command("sample", "--model", teacher, "--steps", STEPS, "--watch")
    _title(f"2. The same model, the same {STEPS} steps, another order")
    _side_by_side(model)
    _say("Judged over 32 texts each (lower Gen PPL is better, if the entropy stays):")
    _command("evaluate", "--models", f"model={teacher}", "--plans", *PLANS, *judged, "--out", plans)
    _title("3. A short distillation: 17 public-domain books, one round of MCD")
    _command("prepare", "sample", "--tokenizer", teacher, "--out", corpus)
    if not Path(student).exists():
        _distilled(teacher, corpus, out / "run", student)
    models = (f"teacher={teacher}", f"student={student}")
    alike = ("0.9", "--control_steps", STEPS, "--no-bracket")  # the teacher at lower temperature: equal entropy
    _say("Forty optimiser steps show how it works, not what it can gain: docs/results.md has real runs.")
    _command("evaluate", "--models", *models, "--plans", "comb", *judged, *alike, "--out", report)
    _title("Done")
    _say(f"The reports: {Path(plans) / 'report.html'} (two plans), {Path(report) / 'report.html'} (the student)")
    _say(f"Try next: unmask sample --model {teacher} 'Once upon a ____ there ____' --n 3 --watch")
    _say(f"Or in your browser, where words that you click are written again: unmask play {teacher} {student}")


def _side_by_side(model: Checkpoint) -> None:
    """One text of each plan, from the same noise."""
    table = Table(*PLANS.values(), show_lines=False)
    texts = [sample(model, 1, int(STEPS), plan=plan, seed=1, device="cpu").text[0] for plan in PLANS]
    table.add_row(*(legible(text) for text in texts))
    Console(markup=False, highlight=False).print(table)


def _distilled(teacher: str, corpus: str, folder: Path, student: str) -> None:
    """The student alone is kept: the states of its run are ten times as large."""
    recipe = ("--config", "demo-distill", "--teacher", teacher, "--data", corpus)
    _command("distill", *recipe, "--out", str(folder))
    _command("convert", str(folder), student, "--dtype", "bf16")
    shutil.rmtree(folder)


def _say(text: str) -> None:
    Console(soft_wrap=True, highlight=False).print(text, markup=False)


def _title(text: str) -> None:
    Console().rule(f"[bold]{text}", align="left")


def _command(*words: str) -> None:
    """Show a command line, then run it."""
    _say(f"$ unmask {shlex.join(words)}")
    run(list(words))
