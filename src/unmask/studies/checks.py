"""What can be wrong with an evaluation, said in one line before the first forward.

Refuses to know how anything is drawn or measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from unmask.core.errors import UserError, unknown
from unmask.data.tokenizer import Tokenizer
from unmask.inference.categorical import Law
from unmask.metrics.gen_ppl import PROTOCOL, PROTOCOLS, check_raw_ids
from unmask.metrics.judges import Judge
from unmask.metrics.mauve import LEAST, need_mauve
from unmask.studies.ways import Way, make_ways


@dataclass(frozen=True)
class Wishes:
    """What was asked for, as far as it can be wrong by itself."""

    steps: Sequence[int] | None
    control_steps: Sequence[int] | None
    plans: Sequence[str]
    temperatures: Sequence[float]
    n: int
    batch: int | None
    judge: Any
    judge_dtype: str
    protocol: str
    data: Any
    split: str | None
    wrap: bool
    mauve: bool
    bounds: bool
    only_bounds: bool

    def check(self) -> None:
        """Raises UserError for the first thing that is wrong."""
        self._check_numbers()
        ways = make_ways(self.plans, self.steps or ())
        if self.protocol not in PROTOCOLS:
            raise unknown("protocol", self.protocol, PROTOCOLS)
        self._check_together(ways)

    def _check_numbers(self) -> None:
        steps = [1] if self.steps is None else self.steps
        for name, counts in (("steps", steps), ("control_steps", self.control_steps or [1])):
            if not counts or min(counts) < 1:
                raise UserError(f"{name} must be whole numbers from 1 on, not {list(counts)}")
        if not self.plans or not self.temperatures:
            raise UserError("give at least one plan and one temperature")
        for temperature in self.temperatures:
            Law(temperature)
        if self.n < 2:
            raise UserError(f"n must be at least 2, not {self.n}: an interval needs several texts")
        if self.batch is not None and self.batch < 1:
            raise UserError(f"batch must be at least 1, not {self.batch}: leave it out for the usual one")

    def _check_together(self, ways: Sequence[Way]) -> None:
        """Wishes that exclude one another."""
        if self.only_bounds and not self.bounds:
            raise UserError("bounds alone and no bounds leave nothing to do: take one of the two")
        if self.only_bounds and (self.judge is not None or self.mauve or self.data is None):
            raise UserError(
                "bounds alone need held-out text (--data) and nobody to judge: leave --judge and --mauve out"
            )
        if self.split is not None and self.data is None:
            raise UserError(f"there is no held-out text to take the {self.split} split of: give --data as well")
        if self.wrap and self.data is None:
            raise UserError("there is no held-out text to wrap: give --data as well")
        if self.judge_dtype != "fp32" and self.judge is None:
            raise UserError(f"there is no judge to run in {self.judge_dtype}: give --judge as well")
        if self.protocol != PROTOCOL and self.judge is None:
            raise UserError(f"there is no judge to read by the protocol {self.protocol}: give --judge as well")
        if self.mauve:
            check_mauve(self.judge is not None and self.data is not None, self.n)
        for way in ways:
            if self.bounds and self.data is not None and way.at(self.steps[0] if self.steps else None).argmax_tail:
                raise UserError(
                    f"{way.name} fills its last positions by argmax and has no NELBO: take the grid uniform, or say "
                    "--no-bounds"
                )


def check_mauve(given: bool, texts: int) -> None:
    """MAUVE needs a judge and held-out text, many texts, and a package."""
    if not given or texts < LEAST:
        raise UserError(f"MAUVE needs a judge and {LEAST} texts on each side: give --judge, --data and --n {LEAST}")
    need_mauve()


def check_one_a_token(length: int, **counts: Sequence[int] | None) -> None:
    """Of more steps than tokens some reveal nothing: a table would name steps that no forward stands behind."""
    for name, asked in counts.items():
        most = max(asked or [0])
        if most > length:
            raise UserError(
                f"{name} must be at most {length}, one a token of these models, not {most}: name fewer with --{name}"
            )


def check_control(ways: Sequence[Way], steps: Sequence[int], control_steps: Iterable[int]) -> None:
    """The teacher runs in more steps than were asked for, which a fitted grid may not have."""
    for way in ways:
        for count in sorted(control_steps):
            try:
                way.at(count)
            except UserError as error:
                raise UserError(
                    f"{error}; the teacher is also to run in {count} steps, to compare the student with: name the "
                    f"steps it may take, such as --control_steps {' '.join(map(str, sorted(steps)))}"
                ) from error


def check_judge(judge: Judge, tokenizer: Tokenizer, protocol: str) -> None:
    """A judge that cannot read what the models write is refused before they write."""
    if PROTOCOLS[protocol].raw_ids:
        check_raw_ids(tokenizer, judge, protocol)
    if judge.eos_id is None:
        raise UserError(
            f"the judge {judge.name!r} has no end-of-document token, which the path gap needs: take another judge"
        )
