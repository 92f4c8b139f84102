"""`evaluate`: draw from every model on every plan, in every number of steps, at every temperature; score; compare.

Students first, then the teacher: in more steps (up to one a token), and at temperatures lowered (or raised) until
each student's entropy is bracketed, with one more where the teacher's entropy meets the student's. Then likelihood on
held-out text and the controls. Every finished cell is kept in `out` at once, so that the same call goes on where it
stopped. Refuses to know what a page looks like.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from unmask.base import provenance
from unmask.base.errors import UserError, unknown
from unmask.evaluation.analysis import analyse
from unmask.evaluation.cache import Store
from unmask.evaluation.entries import Entry, Source, gather
from unmask.evaluation.gen_ppl import PROTOCOLS
from unmask.evaluation.judges import Judge, load_judge
from unmask.evaluation.mauve import LEAST
from unmask.evaluation.measure import Measure, RealText, halves
from unmask.evaluation.results import Cell, Results, write_results
from unmask.evaluation.texts import Texts, held_out, parrot, real_text
from unmask.evaluation.workshop import Workshop
from unmask.parallel.ranks import joined
from unmask.sampling.body import Precision
from unmask.sampling.categorical import Law
from unmask.sampling.reveal import make_reveal

TEMPERATURES = (1.0, 0.9, 0.8, 0.7)
COLDEST, HOTTEST = 0.4, 1.3  # beyond them the teacher is no reference any more
PASSAGES = 16  # of the parrot
REAL, PARROT = "real text", "parrot"
Progress = Callable[[str, int, int], None]  # what is being done, cells done, of how many so far


def evaluate(
    models: Mapping[str, Source],
    steps: Sequence[int] = (8, 16, 32),
    *,
    plans: Sequence[str] = ("iid", "golden"),
    temperatures: Sequence[float] = TEMPERATURES,
    n: int = 64,
    judge: str | Path | Judge | Any = None,
    protocol: str = "mdlm",
    data: str | Path | None = None,
    split: str = "validation",
    wrap: bool = False,
    control_steps: Sequence[int] | None = None,
    mauve: bool = False,
    seed: int = 0,
    batch: int | None = None,
    device: str = "auto",
    precision: Precision = "auto",
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> Results:
    """Everything docs/evaluation.md describes, as one record.

    Args:
        models: checkpoints by name. `teacher` is the control, else the teacher in the first student's provenance; a
            causal model is the autoregressive control
        steps: of every model
        plans: reveal plans; iid runs on the grid `uniform`, the others on `rank`
        temperatures: of every model; the highest is the headline's
        n: texts of a cell
        judge: a causal judge (see load_judge); None: NELBO, entropy and diversity only
        protocol: of Gen PPL
        data: held-out real text: a prepared folder, a text file, or "sample"
        split: of a prepared folder
        wrap: held-out blocks as MDLM makes them
        control_steps: more steps of the teacher (default: doublings from 4 to one a token)
        mauve: also MAUVE by the judge's features, for cells at the headline's temperature
        seed: of everything
        batch: texts in a forward
        device: where
        precision: of the masked models
        out: a folder that keeps every finished cell and the results
        progress: told what is being done
    """
    _check(steps, plans, temperatures, n, protocol)
    with joined(device) as ranks:
        entries, notes = gather(models)
        length = entries[0].checkpoint.model.length
        more = (
            [2**k for k in range(2, length.bit_length()) if 2**k <= length] if control_steps is None else control_steps
        )
        reader = None if judge is None else load_judge(judge, device=device)
        real = _real(entries[0], data, length, n, split, wrap, seed, notes)
        if mauve and (reader is None or real is None or min(n, len(real.pool)) < LEAST):
            raise UserError(
                f"MAUVE needs a judge, and {LEAST} texts on each side: give --judge, --data and --n {LEAST}"
            )
        if reader is None:
            notes.append("No judge was given: NELBO, entropy and diversity only; no Gen PPL, no path gap, no speed-up.")
        measure = Measure(reader, protocol, real, Store.open(), seed)
        settings: dict[str, Any] = {
            "steps": sorted(set(steps)),
            "plans": list(plans),
            "temperatures": sorted(set(temperatures), reverse=True),
            "n": n,
            "protocol": protocol,
            "control_steps": sorted({*more, *steps}),
            "seed": seed,
            "precision": precision,
            "length": length,
            "data": None if data is None else str(data),
            "split": split,
            "wrap": wrap,
            "mauve": mauve,
        }
        shop = Workshop(
            measure,
            ranks,
            None if out is None else Path(out),
            n,
            seed,
            batch,
            device,
            precision,
            max(temperatures) if mauve else None,
            progress,
        )
        run = _Run(entries, settings, shop, reader is not None)
        cells = run.cells()
        bounds = [] if real is None else shop.bounds(entries, plans, settings["steps"], real.pool)
        cells += _controls(shop, real, notes)
        about = {entry.name: entry.about() for entry in entries}
        about |= {
            name: {"role": role, "sha256": None, "provenance": {}}
            for name, role in ((REAL, "real"), (PARROT, "parrot"))
            if any(cell.model == name for cell in cells)
        }
        results = analyse(
            Results(
                models=about,
                cells=cells,
                bounds=bounds,
                settings=settings,
                judge=reader.record() if reader else None,
                notes=notes,
                provenance=provenance.record(ranks.device, processes=ranks.world),
            ),
            seed=seed,
        )
        if out is not None:
            ranks.on_first(lambda: write_results(results, Path(out) / "results.json"))
    return results


def _check(steps: Sequence[int], plans: Sequence[str], temperatures: Sequence[float], n: int, protocol: str) -> None:
    """What can be wrong is said before the first forward."""
    if not steps or min(steps) < 1:
        raise UserError(f"steps must be whole numbers from 1 on, not {list(steps)}")
    if not plans or not temperatures:
        raise UserError("give at least one plan and one temperature")
    for plan in plans:
        make_reveal(plan)
    for temperature in temperatures:
        Law(temperature)
    if n < 2:
        raise UserError(f"n must be at least 2, not {n}: an interval needs several texts")
    if protocol not in PROTOCOLS:
        raise unknown("protocol", protocol, PROTOCOLS)


def _real(
    entry: Entry, data: str | Path | None, length: int, n: int, split: str, wrap: bool, seed: int, notes: list[str]
) -> RealText | None:
    """Held-out text, every other block for the pool."""
    if data is None:
        notes.append("No held-out text was given (--data): no NELBO, no coverage, no controls of real text.")
        return None
    tokenizer = entry.checkpoint.tokenizer
    assert tokenizer is not None
    texts = held_out(data, tokenizer, length, count=2 * n, split=split, wrap=wrap)
    pool = min(n, len(texts) // 2)
    if pool < 2:
        raise UserError(f"{data} has {len(texts)} blocks of {length} tokens, and comparing needs 4: give more text")
    if pool < n:
        notes.append(
            f"The held-out text has {len(texts)} blocks, so that diversity compares {pool} texts on each side."
        )
    facts = {name: texts.record[name] for name in ("source", "split", "wrap")}

    def part(first: int) -> Texts:
        return real_text(texts.tokens_TL[first : 2 * pool : 2].contiguous(), tokenizer, **facts, half=first)

    return halves(part(0), part(1), seed)


def _controls(shop: Workshop, real: RealText | None, notes: list[str]) -> list[Cell]:
    """Real text, and a parrot of a few real passages, which Gen PPL and entropy let pass."""
    if real is None:
        return []
    cells = [shop.given(REAL, real.pool)]
    if len(real.pool) < 2 * PASSAGES:
        notes.append(f"The parrot needs {2 * PASSAGES} held-out texts to be told from real text: left out.")
        return cells
    return [*cells, shop.given(PARROT, parrot(real.pool, len(real.pool), PASSAGES))]


@dataclasses.dataclass(eq=False)
class _Run:
    """The cells of one evaluation, in the order they are drawn."""

    entries: list[Entry]
    settings: dict[str, Any]
    shop: Workshop
    judged: bool

    def cells(self) -> list[Cell]:
        steps, plans, hot = self.settings["steps"], self.settings["plans"], self.settings["temperatures"]
        others = [entry for entry in self.entries if entry.role in ("student", "elbo")]
        teachers = [entry for entry in self.entries if entry.role == "teacher"]
        control = self.settings["control_steps"] if others else steps
        planned = [(e, plan, n, t) for e in others for plan in plans for n in steps for t in hot]
        planned += [(e, plan, n, t) for e in teachers for plan in plans for n in control for t in hot]
        causal = [(entry, t) for entry in self.entries if entry.role == "ar" for t in hot]
        self.shop.plan(len(planned) + len(causal))
        cells = [self.shop.cell(*one) for one in planned]
        cells += [self.shop.causal(*one) for one in causal]
        if self.judged and teachers and others:
            for plan in plans:
                cells += self._bracket(teachers[0], plan, control, [cell for cell in cells if cell.plan == plan])
        return cells

    def _bracket(self, teacher: Entry, plan: str, control: list[int], cells: list[Cell]) -> list[Cell]:
        """More temperatures of the teacher: until every student's entropy is bracketed, and where the two meet."""
        asked = self.settings["temperatures"]
        path = [cell for cell in cells if cell.model == teacher.name]
        students = [cell for cell in cells if cell.model != teacher.name and cell.temperature == max(asked)]
        given = len(path)

        def add(temperature: float) -> None:
            self.shop.plan(len(control))
            path.extend(self.shop.cell(teacher, plan, n, temperature) for n in control)

        coldest, hottest = min(asked), max(asked)
        while coldest > COLDEST and any(_entropy(s, -3) < _entropy(t, 0) for s in students for t in _at(path, coldest)):
            add(coldest := round(max(COLDEST, coldest - 0.1), 3))
        while hottest < HOTTEST and any(_entropy(s, 3) > _entropy(t, 0) for s in students for t in _at(path, hottest)):
            add(hottest := round(min(HOTTEST, hottest + 0.1), 3))
        meets = {_meeting(path, student) for student in students} - {cell.temperature for cell in path}
        for temperature in sorted(t for t in meets if t is not None):
            add(temperature)
        return path[given:]


def _at(cells: Sequence[Cell], temperature: float) -> list[Cell]:
    return [cell for cell in cells if cell.temperature == temperature]


def _entropy(cell: Cell, errors: float) -> float:
    """A cell's entropy, some standard errors beside itself: a bracket must hold in nearly all resamples."""
    said = cell.scores["entropy"]
    return float(said["value"] + errors * (said["stderr"] or 0))


def _meeting(teacher: Sequence[Cell], student: Cell) -> float | None:
    """Where the teacher's entropy at the same steps meets the student's, to 0.02: there the reading needs no chord."""
    path = sorted((c for c in teacher if c.steps == student.steps), key=lambda c: -(c.temperature or 0))
    target = student.ratios["entropy"].value
    for hot, cold in itertools.pairwise(path):
        above, below = hot.ratios["entropy"].value, cold.ratios["entropy"].value
        if below <= target <= above and below < above:
            way = (above - target) / (above - below)
            found = float(hot.temperature or 0) + way * (float(cold.temperature or 0) - float(hot.temperature or 0))
            return round(0.02 * round(found / 0.02), 2)
    return None
