"""The verbs `train` and `distill`, in Python and on the command line."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from unmask.checkpoint.identity import weights_hash
from unmask.checkpoint.io import Checkpoint, load
from unmask.core.errors import UserError
from unmask.core.ranks import joined
from unmask.core.streams import seed_of
from unmask.core.verbs import verb
from unmask.data.answers import Answers, Data, is_answers
from unmask.data.loader import Loader
from unmask.data.shards import ShardSet, check_tokenizer
from unmask.data.tokenizer import Tokenizer
from unmask.inference.step_law import Factorised
from unmask.metrics.gen_ppl import PROTOCOL, check_judge
from unmask.metrics.judges import load_judge
from unmask.models.denoiser import is_causal
from unmask.models.family import as_student, changed_preset, family_named
from unmask.models.lora import Lora, with_adapter
from unmask.objectives.chain import Chaining
from unmask.objectives.duo import SoftStart
from unmask.objectives.registry import objective_named
from unmask.plans.plan import USUAL
from unmask.processes import Process, process_named
from unmask.processes.schedule import schedule_named
from unmask.training.chain import train_chain
from unmask.training.guard import Bounds, Guard
from unmask.training.rounds import make_rounds, round_table
from unmask.training.trainer import Trainer

Corpora = str | Path | Sequence[str | Path]


@verb
def train(
    data: Corpora,
    *,
    weights: Sequence[float] | None = None,
    wrap: bool = False,
    objective: str = "mdlm",
    process: str | None = None,
    schedule: Literal["log_linear", "cosine"] | None = None,
    plan: str = "iid",
    plan_steps: int | Sequence[int] | None = None,
    exact_counts: bool = False,
    from_: Checkpoint | str | Path | None = None,
    family: str | None = None,
    preset: str | None = None,
    length: int | None = None,
    hidden: int | None = None,
    blocks: int | None = None,
    heads: int | None = None,
    cond: int | None = None,
    dropout: float | None = None,
    set_: Mapping[str, int | float | bool | str] | None = None,
    soft: SoftStart,
    adapter: Lora,
    trainer: Trainer,
) -> Checkpoint:
    """Train a model on corpora made by `unmask prepare`. Run the same command again to continue a run that stopped.

    Many processes: `torchrun --nproc_per_node 8 -m unmask train ...`, nothing else changes. See docs/training.md.

    Args:
        data: folders made by `unmask prepare`; or one .jsonl of prompts and answers, to fine-tune a model on
        weights: how often each of them is read relative to the others (default: every block equally often)
        wrap: sequences as MDLM makes them: BOS, length - 2 tokens, EOS
        objective: mdlm is the ELBO of the process, duo that of the uniform process with Duo's curriculum, ar is
            next-token prediction with a causal model; or one that a plug-in registers
        process: how text is corrupted: masked or uniform (default: that of --from, else the objective's, else masked)
        schedule: how fast it is corrupted (default: that of --from, else log_linear)
        plan: which positions are masked together: iid, permutation, golden, van_der_corput, dilated, stride,
            comb or rotation
        plan_steps: train on exactly the views that sampling meets in so many steps on this plan with the grid rank; a
            chain takes several numbers (default: views of all times, the usual ELBO; of a chain 2 4 8 16)
        exact_counts: mask exactly k tokens of a text, k drawn evenly from 1 to its length: the same ELBO, less noise
    Model:
        from_: start from the weights of this checkpoint instead of random ones
        family: the kind of network (default: dit)
        preset: the model's shape, of which the options below change parts; of dit: tiny, mini, pocket, study, small,
            medium or large (default: pocket, or the family's first)
        length: tokens in a sequence (default: the model's)
        hidden: features of a position
        blocks: transformer blocks
        heads: attention heads
        cond: features of the conditioning on time
        dropout: share of features dropped in training (default: the model's)
        set_: any other part of the shape, for families of other options
    """
    counts = [plan_steps] if isinstance(plan_steps, int) else plan_steps
    if counts is not None and len(counts) != 1 and objective != "chain":
        raise UserError(f"plan_steps is one number of sampling steps, not {list(counts)}: only a chain takes several")
    own_plan = None if plan == "iid" or objective == "chain" else plan
    own_steps = None if objective == "chain" or counts is None else counts[0]
    _check_settings(objective, process=None if objective == "chain" else process, schedule=schedule, plan=own_plan,
                    plan_steps=own_steps, exact_counts=exact_counts or None)  # fmt: skip
    if objective != "duo" and soft != SoftStart():
        raise UserError("the settings soft_... are those of the objective duo: leave them out, or add --objective duo")
    if soft.soft_steps is None:
        soft = dataclasses.replace(soft, soft_steps=trainer.steps // 2)
    corpora = _opened(data)
    shape: dict[str, Any] = {"hidden": hidden, "blocks": blocks, "heads": heads, "cond": cond, "dropout": dropout}
    if objective == "chain":
        beside = {"process": process, "schedule": schedule, "lora": adapter.lora or None}
        if clash := [name for name, value in beside.items() if value is not None]:
            raise UserError(f"a chain leaves its model as it is: leave out --{clash[0]}")
        return _chain(from_, corpora, trainer, length, wrap, weights, plan, counts, family or preset,
                      {**shape, **(set_ or {})})  # fmt: skip
    if from_ is not None:
        if family or preset or set_ or any(value is not None for value in shape.values()):
            raise UserError(f"--from brings the model with it: leave out --family, --preset, --set, --"
                            f"{', --'.join(shape)} (a recipe may set them)")  # fmt: skip
        checkpoint = from_ if isinstance(from_, Checkpoint) else load(from_)
        model, start = _started(checkpoint, from_, corpora, objective, adapter, trainer)
        noise, tokenizer = checkpoint.process, checkpoint.tokenizer
    else:
        if adapter.lora:
            raise UserError("an adapter is for a model that is trained already: give it with --from")
        if not corpora:
            raise UserError(f"{data} holds prompts and answers, to fine-tune a model on: give it with --from")
        noise, start, tokenizer = process_named(process or _usual_process(objective)), None, None
        shape |= {"length": length, "causal": True if objective == "ar" else None, **(set_ or {})}
        model = _fresh(family or "dit", preset, corpora, trainer.seed, shape, noise)
    length = model.length if length is None else length
    loader = _loader(data, corpora, tokenizer, length, weights, wrap, trainer.seed)
    if process is not None or schedule is not None:
        noise = process_named(process or noise.name, schedule_named(schedule) if schedule else noise.schedule)
    kind = objective_named(objective)
    given = {"process": noise, "plan": plan, "plan_steps": own_steps, "exact_counts": exact_counts, "soft": soft}
    loss = kind(**{field.name: given[field.name] for field in dataclasses.fields(kind) if field.name in given})
    return trainer.fit(model, loss, loader, facts={"from": start})


def _chain(
    from_: Any, corpora: list[ShardSet], trainer: Trainer, length: int | None, wrap: bool,
    weights: Sequence[float] | None, plan: str, counts: Sequence[int] | None, another: str | None,
    shape: dict[str, Any],
) -> Checkpoint:  # fmt: skip
    """A chain beside a model, of which nothing is trained."""
    if from_ is None or another:
        raise UserError("a chain is trained beside a model: say which with --from, and leave out --family and --preset")
    base = load_teacher(from_)
    _check_tokenizers(base, from_, corpora)
    length = base.model.length if length is None else length
    loader = Loader(corpora, length, weights=weights, seed=trainer.seed, wrap=wrap)
    chosen: dict[str, Any] = {} if plan == "iid" else {"plans": (plan,)}
    chosen |= {} if counts is None else {"steps": tuple(counts)}
    given = {name: value for name, value in shape.items() if value is not None}
    chosen |= {"teacher_steps": given.pop("teacher_steps")} if "teacher_steps" in given else {}
    alone = dataclasses.replace(base, step_law=Factorised())
    return train_chain(base, _lasting(from_) or "", Chaining(alone, **chosen), loader, trainer, given)


@dataclass
class RoundTrainer(Trainer):
    """A trainer whose steps are rounds x round_steps."""

    steps: int = dataclasses.field(init=False, default=1)
    lr: float = 1e-4
    eval_every: int = 500


RoundTrainer.__doc__ = Trainer.__doc__  # the help of its options


@verb
def distill(
    teacher: Checkpoint | str | Path,
    data: Corpora,
    *,
    method: str = "mcd",
    weights: Sequence[float] | None = None,
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
    window: Sequence[float] | None = None,
    snapshot: Literal["raw", "ema"] | None = None,
    plan: str | None = None,
    plan_steps: int | Sequence[int] | None = None,
    guard: Literal["warn", "stop", "off"] = "warn",
    bounds: Bounds,
    judge: str | None = None,
    samples: int = 32,
    sample_steps: int = 16,
    adapter: Lora,
    trainer: RoundTrainer,
) -> Checkpoint:
    """Distil a teacher into a student that starts from its weights. Run the same command again to continue.

    Two methods with the same options otherwise see the same batches in the same order for the same number of steps.
    With `out`, a table of the rounds is written to rounds.json there.
    Many processes: `torchrun --nproc_per_node 8 -m unmask distill ...`, nothing else changes. See docs/distillation.md.

    Args:
        teacher: a checkpoint: a folder, a file, a bundled name or a hub name
        data: folders made by `unmask prepare` with the teacher's tokenizer, or one .jsonl of prompts and answers
        weights: how often each of them is read relative to the others (default: every block equally often)
        length: tokens in a sequence (default: the model's)
        wrap: sequences as MDLM makes them: BOS, length - 2 tokens, EOS
    Method:
        method: mcd, sdtt, cd4lm, or dcd for the uniform process; elbo trains the teacher on for the same budget
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
        window: of dcd: the share of tokens not drawn anew at times 0 and 1 (default: 0.9987 0.0062, Duo's)
        snapshot: which weights of the student become the next teacher (default: raw)
        plan: which positions are masked together: iid, permutation, golden, van_der_corput, dilated, stride,
            comb or rotation (default: permutation for cd4lm, iid for the others)
        plan_steps: the number of steps that the plan stride, comb or rotation is made for; of two, such as 4 64, each
            text draws its own between them (default: 1/delta)
    Guard:
        guard: what to do when a bound below is crossed
    Table of rounds:
        judge: for Gen PPL of every round: a judge's name, folder or file
        samples: texts drawn from each round's student at the end, on --plan if it is given, else on comb
        sample_steps: steps in which they are drawn
    """
    if guard == "off" and bounds.changed:
        named = ", ".join(f"--{name}" for name in bounds.changed)
        raise UserError(f"there is no guard to keep {named}: leave it out, or say --guard warn")
    if samples < 2 or sample_steps < 1:
        raise UserError(f"samples must be at least 2 and sample_steps at least 1, not {samples} and {sample_steps}")
    with joined(trainer.device):
        source, loader = _with_text(load_teacher(teacher), teacher, data, weights, length, wrap, trainer.seed)
        facts: dict[str, Any] = {"teacher": {"source": _lasting(teacher), "weights": weights_hash(source.model)}}
        if adapter.lora:
            source = dataclasses.replace(source, model=adapted(source, adapter, trainer))
            facts["lora"] = vars(adapter)
        objective = make_rounds(
            method, source, rounds=rounds, round_steps=round_steps, delta=delta, tau=tau, tau_drop=tau_drop,
            divergence=divergence, reduction=reduction, reconstruct=reconstruct, k=k, window=window, snapshot=snapshot,
            plan=plan, plan_steps=plan_steps,
        )  # fmt: skip
        reader = load_judge(judge, device=trainer.device) if judge else None  # before the training, not after it
        if reader:
            check_judge(reader, loader.tokenizer, PROTOCOL)
        trainer.steps = objective.steps
        watch = None if guard == "off" else Guard(guard, bounds, seed=trainer.seed)
        student = trainer.fit(as_student(source.model), objective, loader, facts=facts, guard=watch)
        if trainer.out is not None:
            round_table(
                Path(trainer.out), source, plan=plan or USUAL, judge=reader, samples=samples, steps=sample_steps,
                seed=trainer.seed, device=trainer.device,
            )  # fmt: skip
        return student


def _check_settings(objective: str, **given: object) -> None:
    """A setting that an objective has no use for is refused: ar has no noise, and so neither process nor plan."""
    takes = {field.name for field in dataclasses.fields(objective_named(objective))}
    for name, value in given.items():
        if value is not None and (name if name != "schedule" else "process") not in takes:
            raise UserError(f"{name} is no setting of the objective {objective}: leave it out")


def _usual_process(objective: str) -> str:
    """The name of the process that an objective takes by itself."""
    own = next((field for field in dataclasses.fields(objective_named(objective)) if field.name == "process"), None)
    made = own.default_factory() if own and own.default_factory is not dataclasses.MISSING else None
    return getattr(made, "name", "masked")


def load_teacher(teacher: Checkpoint | str | Path) -> Checkpoint:
    """A masked model, as `distill` and `demo` need one."""
    source = teacher if isinstance(teacher, Checkpoint) else load(teacher)
    if is_causal(source.model):
        name = "the teacher" if isinstance(teacher, Checkpoint) else teacher
        raise UserError(f"{name} is a causal model and has no mask state: give a teacher trained with --objective mdlm")
    return source


def _opened(data: Corpora) -> list[ShardSet]:
    """The prepared corpora; none where it is a file of prompts and answers."""
    several = [data] if isinstance(data, (str, Path)) else list(data)
    if any(map(is_answers, several)):
        if len(several) > 1:
            raise UserError("one file of prompts and answers, or folders of `unmask prepare`: not both, not several")
        return []
    return [ShardSet.open(folder) for folder in several]


def _loader(
    data: Corpora, corpora: list[ShardSet], tokenizer: Tokenizer | None, length: int, weights: Sequence[float] | None,
    wrap: bool, seed: int,
) -> Data:  # fmt: skip
    """Batches of the corpora, or of prompts and answers as the model's tokenizer spells them."""
    if corpora:
        return Loader(corpora, length, weights=weights, seed=seed, wrap=wrap)
    [file] = [data] if isinstance(data, (str, Path)) else data
    if weights is not None or wrap:
        raise UserError(f"{file} holds prompts and answers, a row each: leave out weights and wrap")
    if tokenizer is None:
        raise UserError(f"the model has no tokenizer to read {file} with")
    return Answers(file, tokenizer, length, seed=seed)


def _with_text(
    source: Checkpoint, name: Any, data: Corpora, weights: Sequence[float] | None, length: int | None, wrap: bool,
    seed: int,
) -> tuple[Checkpoint, Data]:  # fmt: skip
    """The teacher and the text, if they belong together. A teacher without a tokenizer gets the text's."""
    corpora = _opened(data)
    _check_tokenizers(source, name, corpora)
    length = source.model.length if length is None else length
    loader = _loader(data, corpora, source.tokenizer, length, weights, wrap, seed)
    return dataclasses.replace(source, tokenizer=loader.tokenizer), loader


def _check_tokenizers(checkpoint: Checkpoint, name: Any, corpora: list[ShardSet]) -> None:
    for corpus in corpora:
        if checkpoint.tokenizer is not None:
            owner = "the model" if isinstance(name, Checkpoint) else str(name)
            check_tokenizer(corpus, checkpoint.tokenizer, owner=owner)


def _lasting(source: Checkpoint | str | Path | None) -> str | None:
    """A path that still leads there from another folder; names stay names."""
    if source is None or isinstance(source, Checkpoint):
        return None
    return str(Path(source).resolve()) if Path(source).exists() else str(source)


def _fresh(
    family: str, preset: str | None, corpora: list[ShardSet], seed: int, shape: dict[str, Any], process: Process
) -> Any:
    """A random model that fits the process and the corpora's tokenizer; the same seed gives the same weights."""
    kind = family_named(family)
    chosen = {name: value for name, value in shape.items() if value is not None}
    preset = preset or ("pocket" if family == "dit" else next(iter(kind.presets), ""))
    config = changed_preset(kind.presets, preset, **chosen)
    config = kind.for_tokens(kind.for_process(config, process), corpora[0].tokenizer().size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(seed, "weights"))
        return kind.build(config)


def _started(
    checkpoint: Checkpoint, source: Any, corpora: list[ShardSet], objective: str, adapter: Lora, trainer: Trainer
) -> tuple[Any, dict[str, Any]]:
    """The model of a checkpoint, if objective and corpora suit it, and what to remember of it."""
    name = "the model" if isinstance(source, Checkpoint) else source
    causal = is_causal(checkpoint.model)
    if causal and objective != "ar":
        raise UserError(f"{name} is a causal model: add --objective ar, or start from a masked one")
    if objective == "ar" and not causal:
        raise UserError(f"{name} is a masked model: leave out --objective ar, or start from a causal one")
    _check_tokenizers(checkpoint, source, corpora)
    about = {
        "source": None if isinstance(source, Checkpoint) else str(source),
        "weights": weights_hash(checkpoint.model), "step": checkpoint.provenance.get("step"),
    }  # fmt: skip
    if adapter.lora:
        return adapted(checkpoint, adapter, trainer), about | {"lora": vars(adapter)}
    return as_student(checkpoint.model), about


def adapted(checkpoint: Checkpoint, adapter: Lora, trainer: Trainer) -> Any:
    """The checkpoint's network with a fresh adapter, which will name the checkpoint as its base."""
    source = _lasting(checkpoint.name or None)
    if source is None and trainer.out is not None:
        raise UserError("an adapter names its base, and this model has no name: save it, and give the folder")
    return with_adapter(checkpoint.model, adapter, source, seed_of(trainer.seed, "adapter"))
