"""Rounds of distillation: at the start of each the student as it is becomes the teacher, delta doubles and tau falls.

`Rounds` is an objective that changes every `round_steps` optimiser steps. The loop says when, and brings the weights;
optimiser, warm-up and average go on as if nothing had happened. What a round needs beside the step number is its
teacher, and that is the student of the round before, which lies in the run's folder: so a state holds no teacher.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from unmask.checkpoint.io import Checkpoint, load
from unmask.core.errors import UserError, unknown
from unmask.core.files import write_json
from unmask.core.provenance import record
from unmask.core.ranks import joined
from unmask.inference.chain import Chain
from unmask.inference.step_law import StepLaw
from unmask.metrics.gen_ppl import PROTOCOL, gen_ppl, unigram_entropy
from unmask.metrics.judges import Judge
from unmask.metrics.score import Ratio, Score
from unmask.metrics.texts import of_samples
from unmask.models.denoiser import Denoiser
from unmask.objectives.base import Batch, LossOutput
from unmask.objectives.distil.base import Distillation
from unmask.objectives.distil.curriculum import Curriculum
from unmask.objectives.distil.teacher import Teacher
from unmask.objectives.elbo import MDLM
from unmask.objectives.registry import METHODS, method_named, settings_of
from unmask.plans.every import ANCESTRAL
from unmask.plans.grids import usual_grid
from unmask.plans.plan import locked_plan
from unmask.processes import Process
from unmask.sampling.verbs import sample

Method = Distillation | MDLM
Snapshot = Literal["raw", "ema"]
NO_GAP = 2.0**-64  # delta of a method without one: it doubles like any, and more rounds are not another curriculum


def takes(name: str) -> set[str]:
    """The settings of a method that a user may give; what it has no use for is refused."""
    kind = method_named(name)
    settings = settings_of(kind)
    settings |= {"tau_drop"} if issubclass(kind, Distillation) else set()
    return settings | ({"snapshot"} if "delta" in settings else set())


@dataclass(eq=False)
class Rounds:
    """A method over the rounds of a curriculum. It becomes what round 1 is; the loop takes it on from there.

    CD4LM keeps its teacher, and the ELBO has none: their rounds are checkpoints at equal budget.

    Args:
        method: a distillation method with the first teacher, or MDLM (the control: the teacher trained on)
        curriculum: delta and tau of each round
        round_steps: optimiser steps in a round
        snapshot: which weights of the student become the next teacher: the raw ones, or their average
    """

    method: Method
    curriculum: Curriculum
    round_steps: int
    snapshot: Snapshot = "raw"

    def __post_init__(self) -> None:
        if self.round_steps < 1:
            raise UserError(f"a round needs at least 1 optimiser step, not {self.round_steps}")
        if self.snapshot not in get_args(Snapshot):
            raise unknown("snapshot", str(self.snapshot), get_args(Snapshot))
        if isinstance(self.method, Distillation):
            self.method = self.method.at(1, self.curriculum, self.method.teacher)
        self.now: Method = self.method
        self.round = 0  # not begun
        self._compiled = False

    @property
    def forwards(self) -> float:
        return self.now.forwards

    @property
    def regions(self) -> tuple[str, ...]:
        return self.now.regions

    @property
    def step_law(self) -> StepLaw | None:
        law = self.method._frozen.step_law if isinstance(self.method, Distillation) else None
        return None if isinstance(law, Chain) else law  # a head is for the weights that it was trained beside

    @property
    def process(self) -> Process:
        assert self.method.process is not None
        return self.method.process

    def __call__(self, student: Denoiser, batch: Batch, *, step: int, generator: torch.Generator) -> LossOutput:
        return self.now(student, batch, step=step, generator=generator)

    def compile(self) -> None:
        """Compile what belongs to the method, in this round and the later ones."""
        self._compiled = True
        self.now.compile()

    @property
    def steps(self) -> int:
        return self.curriculum.rounds * self.round_steps

    def round_of(self, step: int) -> int:
        """The round that optimiser step `step` (0 is the first) belongs to; rounds count from 1."""
        return step // self.round_steps + 1

    def begins(self, step: int) -> bool:
        """Whether step `step` is the first of a round."""
        return step % self.round_steps == 0

    def enter(self, round: int, student: Checkpoint | None) -> None:
        """Begin or continue a round; `student` is the one that the round before ended with (None in round 1)."""
        assert (student is None) == (round == 1)
        self.round, self.now = round, self.method
        if student is not None and isinstance(self.method, Distillation):
            self.now = self.method.at(round, self.curriculum, student)
            if isinstance(self.method.teacher, Teacher) and self.now.teacher is not self.method.teacher:
                self.method.teacher.rest()  # the first teacher has done its part
        if self._compiled:
            self.compile()

    @property
    def tau_product(self) -> float:
        """How much sharper than the first teacher the target now is: the temperatures on the way, multiplied."""
        if not isinstance(self.method, Distillation) or not isinstance(self.now, Distillation):
            return 1.0
        if self.round > 1 and self.now.teacher is self.method.teacher:  # it stays, so that nothing adds up
            return self.curriculum.tau(self.round)
        return self.curriculum.tau_product(self.round)

    def numbers(self) -> dict[str, float]:
        here = {"round": self.round, "delta": getattr(self.now, "delta", None), "tau": getattr(self.now, "tau", None)}
        return {name: value for name, value in here.items() if value is not None}

    def about(self) -> dict[str, Any]:
        """What a checkpoint's provenance says of the round it was made in."""
        name = next((name for name, kind in METHODS.items() if isinstance(self.method, kind)), "custom")
        facts = {"rounds": self.curriculum.rounds, "round_steps": self.round_steps, "tau_product": self.tau_product}
        return {"method": name, **self.numbers(), **facts}


def make_rounds(
    name: str, teacher: Checkpoint, *, rounds: int | None = None, round_steps: int = 1000, **settings: Any
) -> Rounds:
    """A method by name over a number of rounds; a setting (of takes(name)) that is None is the method's own default."""
    kind, known = method_named(name), takes(name)
    given = {key: value for key, value in settings.items() if value is not None}
    for key in sorted(given.keys() - known):
        users = ", ".join(user for user in METHODS if key in takes(user)) or "no method"
        raise UserError(f"{key} is a setting of {users}: the method {name} has no use for it, leave it out")
    has_gap = "delta" in known
    if "plan" in given and locked_plan(given["plan"]).for_steps and not has_gap and "plan_steps" not in given:
        cure = "give plan_steps, or take another plan" if "plan_steps" in known else "take another plan"
        raise UserError(f"the plan {given['plan']} is made for one number of steps, which {name} does not know: {cure}")
    usual = kind.curriculum if issubclass(kind, Distillation) else Curriculum(tau_start=1.0, tau_drop=0.0)
    rounds = usual.rounds if rounds is None else rounds
    delta = given.pop("delta", usual.delta_start if has_gap else NO_GAP)
    tau, drop = given.pop("tau", usual.tau_start), given.pop("tau_drop", usual.tau_drop)
    curriculum, snapshot = Curriculum(rounds, delta, tau, drop), given.pop("snapshot", "raw")
    if issubclass(kind, MDLM):
        return Rounds(MDLM(teacher.process, **given), curriculum, round_steps, snapshot)
    if "steps" in {field.name for field in fields(kind)}:
        given["steps"] = rounds * round_steps
    return Rounds(kind(teacher, **given), curriculum, round_steps, snapshot)


def round_table(
    out: Path, teacher: Checkpoint, *, plan: str, judge: Judge | None, samples: int, steps: int, seed: int, device: str
) -> None:
    """Draw from every student in a run's folder and from its teacher, and write `rounds.json` there. Texts are drawn on
    the plan with its usual grid, of a process that goes by none on `ancestral`; the judge reads by the protocol
    mdlm."""
    own = (plan, usual_grid(plan)) if teacher.process.by_plan else (ANCESTRAL, "uniform")
    how: dict[str, Any] = dict(zip(("plan", "grid"), own, strict=True))

    def row(name: str, checkpoint: Checkpoint, temperature: float, elbo: Any, about: Any) -> dict[str, Any]:
        settings = {**how, "temperature": temperature, "seed": seed, "device": device}
        drawn = sample(checkpoint, samples, steps, **settings)
        texts = of_samples(drawn, checkpoint.tokenizer)
        entropy = Score.of(Ratio.mean(unigram_entropy(texts.rows)), "nats", {}, seed=seed)
        judged = gen_ppl(texts, judge, protocol=PROTOCOL, seed=seed).ppl.plain() if judge else None
        numbers = {"nfe": drawn.record["nfe"], "entropy": entropy.plain(), "gen_ppl": judged, "elbo": elbo}
        return {"name": name, "temperature": temperature, **numbers, "round": about}

    rows, sharpest = [row("teacher", teacher, 1.0, _first_elbo(out), None)], 1.0
    for number in sorted(int(path.name) for path in (out / "rounds").glob("*") if path.name.isdigit()):
        student = load(out / "rounds" / str(number))
        about = student.provenance
        rows.append(row(f"round {number}", student, 1.0, about["score"], about["distillation"]))
        sharpest = about["distillation"]["tau_product"]
    if sharpest != 1:
        rows.insert(1, row("teacher", teacher, sharpest, None, None))
    with joined(device) as ranks:
        read_by = judge.record() | {"protocol": PROTOCOL} if judge else None
        settings = record(ranks.device, samples=samples, steps=steps, **how, seed=seed, judge=read_by)
        ranks.on_first(lambda: write_json(out / "rounds.json", {**settings, "rows": rows}))


def _first_elbo(out: Path) -> dict[str, Any] | None:
    """The evaluation of step 0, when the student was still its teacher."""
    for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["step"] == 0 and "elbo" in row:
            return {"kind": "elbo", "nats": row["elbo"], "stderr": row["elbo_stderr"], "sequences": row["sequences"]}
    return None
