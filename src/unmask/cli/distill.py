"""`unmask distill`: teach a model to write in fewer steps, by MCD, SDTT or CD4LM; `elbo` is the control."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from unmask.training.engine import Trainer
from unmask.training.guard import Bounds

if TYPE_CHECKING:
    from unmask.checkpoint.io import Checkpoint
    from unmask.data.loader import Loader
    from unmask.models.dit.network import DiT
    from unmask.training.round_table import Row


@dataclass
class Settings(Trainer):
    """A trainer whose steps are rounds x round_steps."""

    steps: int = dataclasses.field(init=False, default=1)
    lr: float = 1e-4
    eval_every: int = 500


Settings.__doc__ = Trainer.__doc__  # the help of its options


def distill(
    *,
    method: Literal["mcd", "sdtt", "cd4lm", "elbo"] = "mcd",
    teacher: str,
    data: list[Path],
    weights: list[float] | None = None,
    length: int | None = None,
    wrap: bool = False,
    rounds: int | None = None,
    round_steps: int = 1000,
    delta: float | None = None,
    tau: float | None = None,
    tau_drop: float | None = None,
    divergence: Literal["reverse", "forward", "jsd", "tvd", "kl_forward", "kl_backward"] | None = None,
    reduction: Literal["token_mean", "sum", "term_means"] | None = None,
    reconstruct: float | None = None,
    k: int | None = None,
    snapshot: Literal["raw", "ema"] | None = None,
    plan: str | None = None,
    plan_steps: int | None = None,
    guard: Literal["warn", "stop", "off"] = "warn",
    bounds: Bounds,
    judge: str | None = None,
    samples: int = 32,
    sample_steps: int = 16,
    json: bool = False,
    trainer: Settings,
) -> None:
    """Distil a teacher into a student that starts from its weights. Run the same command again to continue.

    Two methods with the same options otherwise see the same batches in the same order for the same number of steps.
    Many processes: `torchrun --nproc_per_node 8 -m unmask distill ...`, nothing else changes. See docs/distillation.md.

    Args:
        method: mcd, sdtt or cd4lm; elbo trains the teacher on for the same budget (the control)
        teacher: a checkpoint: a folder, a file, a bundled name or a hub name
        data: folders made by `unmask prepare` with the teacher's tokenizer
        weights: how often each of them is read relative to the others (default: every block equally often)
        length: tokens in a sequence (default: the model's)
        wrap: sequences as MDLM makes them: BOS, length - 2 tokens, EOS
        rounds: how many; the student of each is kept (default: 7 for sdtt, 5 for the others)
        round_steps: optimiser steps in a round
        delta: gap in time that the student jumps in round 1; doubles every round (default: 1/512)
        tau: temperature of the teacher's target in round 1 (default: 0.96 for mcd, 1 for the others)
        tau_drop: by how much it falls every round (default: 0.03 for mcd, 0 for the others)
        divergence: of student from teacher (default: reverse); kl_forward and kl_backward are the ablation's, over all
            positions that the student must fill
        reduction: of mcd: one mean, a sum over the sequence, or a mean of each term (default: token_mean)
        reconstruct: of mcd: weight of the tokens that only the teacher sees; 0 leaves them out (default: 1)
        k: of sdtt: teacher steps in one student step (default: 2)
        snapshot: which weights of the student become the next teacher (default: raw)
        plan: where u comes from: iid, permutation, golden, van_der_corput, dilated or stride (default: permutation for
            cd4lm, iid for the others)
        plan_steps: the number of steps that the plan stride is made for (default: 1/delta)
        guard: what to do when a bound below is crossed
        judge: for Gen PPL of every round: a judge's name, folder or file
        samples: texts drawn from each round's student at the end, on --plan if it is given, else on golden
        sample_steps: steps in which they are drawn
        json: print the table of rounds as JSON
    """
    from unmask.checkpoint.identity import weights_hash
    from unmask.core.errors import UserError
    from unmask.core.ranks import joined
    from unmask.training.guard import Guard
    from unmask.training.rounds import make_rounds

    if trainer.out is None:
        raise UserError("--out must be given: the folder that the run lives in")
    if guard == "off" and (changed := bounds.changed):
        named = ", ".join(f"--{name}" for name in changed)
        raise UserError(f"there is no guard to keep {named}: leave it out, or say --guard warn")
    with joined(trainer.device):
        source, loader = _opened(teacher, data, weights, length, wrap, trainer.seed)
        objective = make_rounds(
            method, source, rounds=rounds, round_steps=round_steps, delta=delta, tau=tau, tau_drop=tau_drop,
            divergence=divergence, reduction=reduction, reconstruct=reconstruct, k=k, snapshot=snapshot, plan=plan,
            plan_steps=plan_steps,
        )  # fmt: skip
        _check_drawing(source, judge, samples, sample_steps, trainer.device)
        trainer.steps = objective.steps
        facts = {"teacher": {"source": _lasting(teacher), "weights": weights_hash(source.model)}}
        watch = None if guard == "off" else Guard(guard, bounds, seed=trainer.seed)
        trainer.fit(_student(source), objective, loader, facts=facts, guard=watch)
        _show(trainer.out, source, plan, judge, samples, sample_steps, trainer, json)


def load_teacher(teacher: str) -> Checkpoint:
    """A masked model, as `distill` and `demo` need one."""
    from unmask.checkpoint.io import load
    from unmask.core.errors import UserError
    from unmask.models.denoiser import is_causal

    source = load(teacher)
    if is_causal(source.model):
        raise UserError(
            f"{teacher} is a causal model and has no mask state: give a --teacher trained with --objective mdlm"
        )
    return source


def _opened(
    teacher: str, data: list[Path], weights: list[float] | None, length: int | None, wrap: bool, seed: int
) -> tuple[Checkpoint, Loader]:
    """The teacher and the text, if they belong together. A teacher without a tokenizer gets the text's."""
    from unmask.data.loader import Loader
    from unmask.data.shards import ShardSet, check_tokenizer

    corpora = [ShardSet.open(folder) for folder in data]
    source = load_teacher(teacher)
    for corpus in corpora:
        if source.tokenizer is not None:
            check_tokenizer(corpus, source.tokenizer, owner=teacher)
    length = source.model.length if length is None else length
    loader = Loader(corpora, length, weights=weights, seed=seed, wrap=wrap)
    return dataclasses.replace(source, tokenizer=loader.tokenizer), loader


def _student(teacher: Checkpoint) -> DiT:
    """A model of its own with the teacher's weights."""
    from unmask.models.family import as_student

    student: DiT = as_student(teacher.model)
    return student


def _lasting(source: str) -> str:
    """A path that still leads there from another folder; names stay names."""
    return str(Path(source).resolve()) if Path(source).exists() else source


def _check_drawing(teacher: Checkpoint, judge: str | None, samples: int, steps: int, device: str) -> None:
    """What the end needs is tried before the training, not after it."""
    from unmask.cli.sample import check_steps
    from unmask.core.errors import UserError
    from unmask.metrics.judges import load_judge
    from unmask.studies.checks import check_judge
    from unmask.training.round_table import PROTOCOL

    if samples < 2 or steps < 1:
        raise UserError(f"samples must be at least 2 and sample_steps at least 1, not {samples} and {steps}")
    check_steps("sample_steps", steps, teacher.model.length)
    if judge is not None:
        assert teacher.tokenizer is not None, "a teacher without one has the text's"
        check_judge(load_judge(judge, device=device), teacher.tokenizer, PROTOCOL)


def _show(
    out: Path, teacher: Checkpoint, plan: str | None, judge: str | None, samples: int, steps: int, trainer: Trainer,
    as_json: bool,
) -> None:  # fmt: skip
    """Score every round, print the table."""
    from unmask.core.ranks import is_first
    from unmask.metrics.judges import load_judge
    from unmask.training.round_table import USUAL_PLAN, round_table

    plan = plan or USUAL_PLAN
    reader = load_judge(judge, device=trainer.device) if judge else None
    rows = round_table(
        out, teacher, plan=plan, judge=reader, samples=samples, steps=steps, seed=trainer.seed, device=trainer.device
    )
    if not is_first():
        return
    if as_json:
        print((out / "rounds.json").read_text(encoding="utf-8"), end="")
        return
    _print_table(rows, f"{samples} samples in {steps} steps on the plan {plan}", reader.name if reader else None)
    print(f"students: {out / 'rounds'}; these numbers: {out / 'rounds.json'}")


def _print_table(rows: list[Row], drawn: str, judge: str | None) -> None:
    from rich.console import Console
    from rich.table import Table

    from unmask.training.evaluate import with_stderr

    title = f"{drawn}; ± is a standard error" + (f"; judge {judge}" if judge else "")
    names = ["model", "delta", "tau", "NFE", *(["Gen PPL"] if judge else []), "entropy", "ELBO/token"]
    table = Table(*names, title=title, title_justify="left")
    for row in rows:
        about = row.round or {}
        scores = [f"{row.gen_ppl.value:.1f} ± {row.gen_ppl.stderr:.1f}"] if row.gen_ppl else []
        table.add_row(
            row.name if row.temperature == 1 else f"{row.name}, T={row.temperature:.3f}",
            f"{about['delta']:.4g}" if "delta" in about else "",
            f"{about['tau']:.3g}" if "tau" in about else "",
            f"{row.nfe:.1f}",
            *scores,
            f"{row.entropy.value:.3f} ± {row.entropy.stderr:.3f}",
            with_stderr(row.elbo["nats"], row.elbo["stderr"], digits=3) if row.elbo else "",
        )
    Console(highlight=False).print(table)
