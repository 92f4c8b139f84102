"""What an evaluation measures, as one typed record: `evaluate` and the command line take their options from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from unmask.core.errors import UserError
from unmask.plans.plan import USUAL

QUICK_N, QUICK_STEPS = 16, 8


@dataclass
class Study:
    """The options of an evaluation.

    Args:
        steps: numbers of steps of every model, at most one a token (default: 4, 8, ... 64, as far as models and fitted
            grids go)
        plans: plans, each on its usual grid (iid on uniform, the others on rank), or PLAN@GRID: iid@cosine,
            golden@fitted.json with a file of `unmask fit-plan`; of the process uniform ancestral (its default),
            greedy_tail, psi:share=0.02, on the grid uniform; each model takes those of its process
        temperatures: of every model; the highest is the headline's (default: 1.0 0.9 0.8 0.7)
        top_ps: the teacher at the highest temperature, drawing from the fewest likeliest tokens that have this
            probability together: a second control (default: 0.95 0.9 where brackets are drawn, else none)
        n: texts of each cell
        seed: of everything
        quick: a first look: at most 16 texts a cell, 8 steps and temperature 1 unless others are named, no bracket

    Scores:
        judge: a causal judge: smollm2, gemma3, gpt2-large, llama-3-8b, pocket-judge, a hub name, a folder or a GGUF
            file; without one there are NELBO, entropy and diversity only
        judge_dtype: of the judge's matrices; bf16 is faster on a GPU, and its Gen PPL another number
        protocol: of Gen PPL
        data: held-out real text: a folder made by `unmask prepare`, a text file, or `sample`, which is what
            `unmask prepare sample` holds out
        split: which held-out part of a prepared folder or the sample (default: validation); a text file has none
        wrap: held-out texts as MDLM makes them: BOS, length - 2 tokens, EOS
        check: file.py:function, a checker of your own: called with each text, it returns true or false, a number, or
            several of these by name, such as whether an answer is right

    Comparison:
        control_steps: further numbers of steps of the teacher (default: doublings from 4 to one a token)
        bracket: draw further temperatures until the teacher's own entropies enclose every student's; without, only
            what is asked for, and what it does not enclose is not compared
        mauve: MAUVE as well, at the headline's temperature; needs 2,048 texts on each side
        bounds: NELBO of every model, plan and number of steps on held-out text as well; it takes as many forwards as
            drawing
        only_bounds: NELBO and ELBO on n held-out texts, and no samples at all

    Machine:
        batch: texts in a forward (default: by the size of the model on a GPU, else 8)
        device: where to run
        precision: of the models; the likelihood of a causal one is in float32 whatever it is
        compile: compile the masked models, on a GPU; it does not pay for small ones
        timed: batches, such as 1 64: how long a text takes in each, of every model, plan and number of steps at the
            highest temperature (default: only as the cells were drawn)
    """

    steps: Sequence[int] | None = None
    plans: Sequence[str] = ("iid", USUAL)
    temperatures: Sequence[float] | None = None
    top_ps: Sequence[float] | None = None
    n: int = 64
    quick: bool = False
    judge: str | Path | Any | None = None
    judge_dtype: Literal["fp32", "bf16"] = "fp32"
    protocol: Literal["mdlm", "sdtt", "sedd", "bd3lm"] = "mdlm"
    data: str | Path | None = None
    split: Literal["validation", "test"] | None = None
    wrap: bool = False
    check: str | None = None
    control_steps: Sequence[int] | None = None
    bracket: bool = True
    mauve: bool = False
    bounds: bool = True
    only_bounds: bool = False
    seed: int = 0
    batch: int | None = None
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    compile: bool = False
    timed: Sequence[int] = ()

    def __post_init__(self) -> None:
        for name in ("steps", "control_steps", "plans", "temperatures", "top_ps", "timed"):
            if (value := getattr(self, name)) is not None:
                setattr(self, name, tuple(value))
        if not self.plans or self.steps == () or self.temperatures == ():
            raise UserError("give at least one plan, one number of steps and one temperature, or leave the option out")
        for name in ("steps", "control_steps", "timed"):
            if min(getattr(self, name) or [1]) < 1:
                raise UserError(f"{name} must be whole numbers from 1 on, not {list(getattr(self, name))}")
        if any(not 0 < top_p < 1 for top_p in self.top_ps or ()):
            raise UserError(f"top_ps must be above 0 and below 1, not {list(self.top_ps or ())}")
        if self.n < 2:
            raise UserError(f"n must be at least 2, not {self.n}: an interval needs several texts")
        if self.batch is not None and self.batch < 1:
            raise UserError(f"batch must be at least 1, not {self.batch}: leave it out for the usual one")
        self._check_together()
        if self.quick:
            self.n, self.steps = min(self.n, QUICK_N), self.steps or (QUICK_STEPS,)
            self.temperatures, self.control_steps = self.temperatures or (1.0,), self.control_steps or self.steps
            self.bracket = False

    def _check_together(self) -> None:
        """Options that exclude one another, and those that need another."""
        if self.only_bounds and not self.bounds:
            raise UserError("bounds alone and no bounds leave nothing to do: take one of the two")
        if self.only_bounds and (self.judge is not None or self.mauve or self.data is None):
            raise UserError("bounds alone need held-out text (--data) and no judge: leave --judge and --mauve out")
        for name, given, needed in (
            ("split", self.split is not None, "data"),
            ("wrap", self.wrap, "data"),
            ("judge_dtype", self.judge_dtype != "fp32", "judge"),
            ("protocol", self.protocol != "mdlm", "judge"),
        ):
            if given and getattr(self, needed) is None:
                raise UserError(f"--{name} says how {needed} is read, and there is none: give --{needed} as well")
