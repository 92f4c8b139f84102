"""What came of the predictions of 2026-11-19 about the uniform process (docs/predictions.md), row by row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from tools.results.check import bounds_of
from tools.results.form import Runs, Table, half, not_yet, ppl
from tools.results.runs import Json, Run
from tools.results.shadows import SAMPLING, STUDY, TEXT, TRAINING, run_of
from tools.results.slim import single_file
from tools.results.tasks import LARGE

from unmask.metrics.score import paired_draws
from unmask.studies.results import unpack

Outcome = tuple[str, str, bool | None]  # what was predicted, what was measured, whether it held; None: not all of it


def shadows_predictions(runs: Runs) -> Table:
    """A difference of bounds is paired over texts; by its value alone it holds or fails."""
    rows = [[said, measured, _word(held)] for said, measured, held in _outcomes(runs)]
    if not rows:
        return not_yet(TEXT)
    note = "A difference of bounds is in nats a token, paired over texts, ± half of the 95% interval."
    return Table(note, ["predicted", "measured", "outcome"], rows)


def _outcomes(runs: Runs) -> Iterator[Outcome]:
    text, grids, sampling, training = (run_of(runs, name) for name in (STUDY, LARGE, SAMPLING, TRAINING))
    if text is not None and text.path is not None:
        yield from _of_text(text, _Paired(text, unpack(single_file(text.path))[0]))
    if grids is not None:
        yield _of_grids(grids, 4, "iid", True)
        yield _of_grids(grids, 16, "permutation", False)
    if sampling is not None:
        yield _of_sampling(sampling)
    if training is not None:
        yield _of_training(training)


def _word(held: bool | None) -> str:
    return "not measured" if held is None else "held" if held else "failed"


class _Paired:
    """Bounds of the study with what single texts gave."""

    def __init__(self, run: Run, single: Json) -> None:
        self.seed = int(run.said["settings"]["seed"])
        self.found = {(b.model, b.plan, b.steps): b for b in bounds_of(run, single)}

    def less(self, one: tuple[Any, ...], other: tuple[Any, ...]) -> list[float] | None:
        """One bound less another, [value, low, high]."""
        if one not in self.found or other not in self.found:
            return None
        a, b = self.found[one], self.found[other]
        assert a.pairs_with(b), f"{one} and {other} are of other texts"
        ends = paired_draws(a.ratio, b.ratio, seed=self.seed).quantile(torch.tensor([0.025, 0.975]).double())
        return [a.ratio.value - b.ratio.value, *ends.tolist()]


def _of_text(run: Run, bounds: _Paired) -> Iterator[Outcome]:
    whole, near = (bounds.less((name, None, None), ("mdlm", None, None)) for name in ("duo", "curriculum"))
    held = None if whole is None or near is None else 0.05 <= whole[0] <= 0.4 and near[0] < whole[0]
    said = f"{_signed(whole)}; with the curriculum {_signed(near)}"
    yield "(1) Duo's continuous NELBO is 0.05 to 0.4 above MDLM's, with the curriculum nearer", said, held
    above = {f"N = {N}": bounds.less(("duo", "ancestral", N), ("mdlm", "comb", N)) for N in (4, 8, 16, 32, 64)}
    above["N = 4, `iid`"] = bounds.less(("duo", "ancestral", 4), ("mdlm", "iid", 4))
    found = [one[0] for one in above.values() if one]
    said = ", ".join(f"{_signed(one)} ({where})" for where, one in above.items())
    held = None if len(found) < len(above) else min(found) > 0
    yield "(2) its N-step NELBO is above MDLM's on `comb` at N = 4 to 64, at N = 4 above `iid`'s too", said, held
    tail, comb = run.cell("duo", "greedy_tail", 8), run.cell("mdlm", "comb", 8)
    said, held = "", None
    if tail and comb:
        said = f"{ppl(tail)} against {ppl(comb)}; entropy {tail['entropy'][0]:.3f} against {comb['entropy'][0]:.3f}"
        held = all(tail[score][0] < comb[score][0] for score in ("gen_ppl", "entropy"))
    yield (
        "(3) in 8 steps `greedy_tail` has a lower Gen PPL than MDLM on `comb`, and a lower unigram entropy",
        said,
        held,
    )
    teacher = "curriculum" if run.cell("curriculum", "ancestral", 8) else "duo"
    yield _of_rounds(run, bounds, "dcd", teacher, "ancestral")
    yield _of_rounds(run, bounds, "mcd", "mdlm", "comb")


def _of_rounds(run: Run, bounds: _Paired, student: str, teacher: str, plan: str) -> Outcome:
    predicted = f"(4) {student.upper()}: Gen PPL of `{plan}` in 8 steps falls by at least 15%, the N = 8 bound rises"
    after, before = run.cell(student, plan, 8), run.cell(teacher, plan, 8)
    worse = bounds.less((student, plan, 8), (teacher, plan, 8))
    if after is None or before is None or worse is None:
        return predicted, "", None
    change = after["gen_ppl"][0] / before["gen_ppl"][0] - 1
    said = f"{change:+.0%} ({ppl(before)} to {ppl(after)})".replace("-", "−")
    return predicted, f"{said}; {_signed(worse)}", change <= -0.15 and worse[0] > 0


def _of_grids(run: Run, steps: int, plan: str, more: bool) -> Outcome:
    predicted = (
        f"(5) in {steps} steps Duo's `ancestral` has {'more' if more else 'fewer'} valid grids than masked `{plan}`"
    )
    one, other = run.cell("uniform", "ancestral", steps), run.cell("masked", plan, steps)
    if one is None or other is None:
        return predicted, "", None
    shares = one["check_valid"][0], other["check_valid"][0]
    return predicted, f"{shares[0]:.1%} against {shares[1]:.1%}", (shares[0] > shares[1]) == more


def _of_sampling(run: Run) -> Outcome:
    predicted = "a sampling step: 3 times as fast as the plain eager one in 32 steps, 2 times in 8, half its memory"
    ratios = {one["steps"]: one for one in run.said["ratios"]}
    faster = [ratios.get(steps, {}).get("faster than plain, eager body") for steps in (32, 8)]
    memory = max((one.get("memory of plain, eager body", 0) for one in ratios.values()), default=0)
    said = ", ".join(f"{one:.1f}" for one in faster if one) + (f"; {memory:.0%} of the memory" if memory else "")
    held = None if None in faster or not memory else faster[0] >= 3 and faster[1] >= 2 and memory <= 0.5
    return predicted, said, held


def _of_training(run: Run) -> Outcome:
    predicted = "a training step: the NELBO 1.5 times as fast as plain, the curriculum 2 times, each in half the memory"
    ratios = run.said["ratios"]
    speed, memory = ([ratios[name].get(key) for name in ("nelbo", "curriculum")] for key in ("speed", "memory"))
    said = ", ".join(f"{one:.2f}" for one in speed)
    if None in memory:
        return predicted, said, None
    said += "; " + ", ".join(f"{one:.0%}" for one in memory) + " of the memory"
    return predicted, said, speed[0] >= 1.5 and speed[1] >= 2 and max(memory) <= 0.5


def _signed(score: Sequence[float] | None) -> str:
    return half(score, sign=True)
