"""`evaluate`: models at every plan, number of steps and temperature, held-out likelihood, controls, and what they say.

Every finished cell is kept in `out` at once, so that the same call goes on where it stopped. Which cells are drawn is
walk.py's matter, how one is drawn and scored workshop.py's. Refuses to know what a page looks like.
"""

from __future__ import annotations

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
from unmask.evaluation.walk import Walk
from unmask.evaluation.workshop import Workshop
from unmask.parallel.ranks import joined
from unmask.sampling.body import Precision
from unmask.sampling.categorical import Law
from unmask.sampling.reveal import make_reveal

TEMPERATURES = (1.0, 0.9, 0.8, 0.7)
PASSAGES = 16  # of the parrot
REAL, PARROT = "real text", "parrot"
GIVEN = {REAL: "real", PARROT: "parrot"}  # cells nobody drew, and their roles
NO_JUDGE = "No judge was given: NELBO, entropy and diversity only; no Gen PPL, no path gap, no speed-up."
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
        control = _doublings(length) if control_steps is None else set(control_steps)
        reader = None if judge is None else load_judge(judge, device=device)
        real = _real(entries[0], data, length, n, split, wrap, seed, notes)
        if mauve and (reader is None or real is None or min(n, len(real.pool)) < LEAST):
            raise UserError(f"MAUVE needs a judge and {LEAST} texts on each side: give --judge, --data and --n {LEAST}")
        if reader is None:
            notes.append(NO_JUDGE)
        settings: dict[str, Any] = {
            "steps": sorted(set(steps)), "plans": list(plans), "temperatures": sorted(set(temperatures), reverse=True),
            "n": n, "protocol": protocol, "control_steps": sorted({*control, *steps}), "seed": seed, "length": length,
            "data": None if data is None else str(data), "split": split, "wrap": wrap, "mauve": mauve,
            "precision": precision,
        }  # fmt: skip
        shop = Workshop(
            Measure(reader, protocol, real, Store.open(), seed), ranks, None if out is None else Path(out), n, seed,
            batch, device, precision, max(temperatures) if mauve else None, progress,
        )  # fmt: skip
        given = _controls(shop, real, notes)
        walk = Walk(
            entries, shop, plans, settings["steps"], settings["temperatures"], settings["control_steps"],
            next(iter(given), None),
        )  # fmt: skip
        cells = walk.cells() + given
        bounds = [] if real is None else shop.bounds(entries, plans, settings["steps"], real.pool)
        about = {entry.name: entry.about() for entry in entries}
        about |= {cell.model: {"role": GIVEN[cell.model], "sha256": None, "provenance": {}} for cell in given}
        where = provenance.record(ranks.device, processes=ranks.world)
        found = Results(about, cells, bounds, settings, reader.record() if reader else None, notes, {}, where)
        results = analyse(found, seed=seed)
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


def _doublings(length: int) -> set[int]:
    """4, 8, 16, ... and one step a token."""
    return {2**k for k in range(2, length.bit_length())} | {length}


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
