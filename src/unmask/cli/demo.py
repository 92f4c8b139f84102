"""`unmask demo`: the whole way with the bundled models, as commands a person would type, each shown before it runs."""

from __future__ import annotations

from pathlib import Path

from unmask.cli.main import run

STEPS = "8"  # few enough that independent draws hurt: where a student can gain


def demo(*, teacher: str = "pocket", judge: str = "pocket-judge", out: Path = Path("demo")) -> None:
    """Watch a small model write, distil it for one short round, compare both in a report. Under five minutes.

    Run it again and it goes on where it stopped.

    Args:
        teacher: a masked model: a bundled name or a checkpoint
        judge: a causal model with the teacher's tokenizer, for Gen PPL
        out: the folder everything goes into
    """
    _check_folder(out)
    length = _checked(teacher, judge)
    corpus, student, report = (str(out / name) for name in ("corpus", "student", "report"))
    _title(f"1. The teacher writes: in {STEPS} steps, then in {length}, one token a step")
    for steps in (STEPS, str(length)):
        _command("sample", "--model", teacher, "--steps", steps, "--watch")
    _title("2. Text to tokens: 17 public-domain books, with the teacher's tokenizer")
    _command("prepare", "sample", "--tokenizer", teacher, "--out", corpus)
    _title("3. A short distillation: one round of MCD")
    _command("distill", "--config", "demo-distill", "--teacher", teacher, "--data", corpus, "--out", student)
    _title(f"4. Teacher and student, both in {STEPS} steps, from the same noise")
    for model in (teacher, student):
        _command("sample", "--model", model, "--steps", STEPS, "--seed", "1")
    _title("5. The report: both at equal steps and equal entropy")
    models = (f"teacher={teacher}", f"student={student}")
    cells = ("--plans", "golden", "--steps", STEPS, "--temperatures", "1.0", "0.9", "0.8", "--control_steps", "4", "16")
    text = ("--n", "32", "--judge", judge, "--data", corpus, "--split", "test")  # a book that no bundled model has read
    _command("evaluate", "--models", *models, *cells, *text, "--out", report)
    _title("Done")
    _say(f"Try: unmask sample --model {teacher} 'Once upon a ____ there ____' --n 3")
    _say(f"The report: {(Path(report) / 'report.html').resolve()}")


def _check_folder(out: Path) -> None:
    """A place that a later command would refuse is refused before the first one runs."""
    from unmask.core.files import check_claim, check_folder
    from unmask.studies.evaluate import WRITES

    check_folder(out)
    check_claim(out, "demo", writes=())
    check_claim(out / "report", "results", writes=WRITES)
    check_claim(out / "corpus", "corpus")
    check_claim(out / "student", "run")


def _checked(teacher: str, judge: str) -> int:
    """The teacher's length; a model that a later command would refuse is refused before the first one runs."""
    from unmask.core.errors import UserError
    from unmask.metrics.gen_ppl import check_judge
    from unmask.metrics.judges import load_judge
    from unmask.training.verbs import load_teacher

    source = load_teacher(teacher)
    if source.tokenizer is None:
        raise UserError(f"{teacher} has no tokenizer, so that it cannot write text: give a --teacher that has one")
    check_judge(load_judge(judge, device="cpu"), source.tokenizer, "mdlm")
    return source.model.length


def _say(text: str) -> None:
    from rich.console import Console

    Console(soft_wrap=True, highlight=False).print(text, markup=False)


def _title(text: str) -> None:
    from rich.console import Console

    Console().rule(f"[bold]{text}", align="left")


def _command(*words: str) -> None:
    """Show a command line, then run it."""
    import shlex

    _say(f"$ unmask {shlex.join(words)}")
    run(list(words))
