"""`unmask demo`: the whole way on the sample corpus, as the commands a person would type, each shown before it runs."""

from __future__ import annotations

import json
from pathlib import Path

from unmask.cli.main import run


def demo(*, out: Path = Path("demo")) -> None:
    """Prepare the sample corpus, train a very small teacher, watch it write, distil it, judge both. Under five minutes.

    Run it again and it goes on where it stopped.

    Args:
        out: the folder everything goes into
    """
    names = ("corpus", "teacher", "student", "judge", "report")
    corpus, teacher, student, judge, report = (str(out / name) for name in names)
    _title("1. Text to tokens: 17 public-domain books, a byte-level BPE of 1,024 tokens")
    _command("prepare", "sample", "--out", corpus, "--vocab_size", "1024")
    _title("2. A very small teacher, trained from nothing on this machine")
    _command("train", "--config", "demo-teacher", "--data", corpus, "--out", teacher)
    _show_learning(Path(teacher))
    _title("3. It writes: in 8 steps, then in 64, one token a step")
    for steps in ("8", "64"):
        _command("sample", "--model", teacher, "--steps", steps, "--watch")
    _title("4. A short distillation: MCD, three rounds, against the teacher at matched temperatures")
    _command("distill", "--config", "demo-distill", "--teacher", teacher, "--data", corpus, "--out", student)
    _title("5. A small judge, and the report: both models at equal steps and equal entropy")
    _command(
        "train", "--config", "demo-teacher", "--objective", "ar", "--data", corpus, "--out", judge, "--steps", "400"
    )
    models = (f"teacher={teacher}", f"student={student}")
    few = ("--steps", "8", "--temperatures", "1.0", "0.9", "0.8", "--control_steps", "4", "8", "16", "--n", "32")
    _command("evaluate", "--models", *models, *few, "--judge", judge, "--data", corpus, "--out", report)
    _title("Done")
    _say(f"Try: unmask sample --model {teacher} 'Once upon a ____ there ____' --n 3")
    _say(f"The report: {(out / 'report' / 'report.html').resolve()}")


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


def _show_learning(folder: Path) -> None:
    """The held-out ELBO as it fell."""
    lines = (json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    scores = [(line["step"], line["elbo"]) for line in lines if "elbo" in line]
    if not scores:
        return
    most = max(nats for _, nats in scores)
    for step, nats in scores:
        _say(f"  step {step:>5}  {nats:6.3f} nats/token  {'█' * round(40 * nats / most)}")
    _say(f"The held-out bound fell from {scores[0][1]:.3f} to {scores[-1][1]:.3f} nats a token.")
