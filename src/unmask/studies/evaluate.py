"""`evaluate`: models at every plan, number of steps and temperature, held-out likelihood, controls, and what they say.

Every finished cell is kept in `out` at once, so that the same call goes on where it stopped. Which cells are drawn is
walk.py's matter, how one is drawn and scored workshop.py's. Refuses to know what a page looks like.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from unmask.core import provenance
from unmask.core.errors import UserError
from unmask.core.ranks import joined
from unmask.data.tokenizer import Tokenizer
from unmask.inference.ready import Precision
from unmask.metrics.cache import Store
from unmask.metrics.gen_ppl import PROTOCOL
from unmask.metrics.judges import Dtype, Judge, load_judge
from unmask.metrics.texts import Texts, held_out, parrot, real_text
from unmask.studies.analysis import analyse
from unmask.studies.checks import Wishes, check_control, check_judge, check_mauve, check_one_a_token
from unmask.studies.entries import GIVEN, PARROT, REAL, Source, gather
from unmask.studies.folder import RESULTS, check_results_folder, refuse_other_folders
from unmask.studies.measure import Measure, RealText, halves
from unmask.studies.results import Cell, Json, Results, write_results
from unmask.studies.walk import Walk
from unmask.studies.ways import Way, fitted_for_others, make_ways
from unmask.studies.workshop import Workshop

TEMPERATURES = (1.0, 0.9, 0.8, 0.7)
MOST = 64  # steps that are run unasked
PASSAGES = 16  # of the parrot
NO_JUDGE = "No judge was given: NELBO, entropy and diversity only; no Gen PPL, no path gap, no speed-up."
ONLY_BOUNDS = "Only bounds were asked for: nothing was drawn, so there is nothing to judge or compare by entropy."
NOT_COMPARED = "There is no student to compare with the teacher: it ran in --steps, and --control_steps did nothing."
Progress = Callable[[str, int, int], None]  # what is being done, cells done, of how many so far


def evaluate(
    models: Mapping[str, Source],
    steps: Sequence[int] | None = None,
    *,
    plans: Sequence[str] = ("iid", "golden"),
    temperatures: Sequence[float] | None = None,
    n: int = 64,
    judge: str | Path | Judge | Any = None,
    judge_dtype: Dtype = "fp32",
    protocol: str = PROTOCOL,
    data: str | Path | None = None,
    split: str | None = None,
    wrap: bool = False,
    control_steps: Sequence[int] | None = None,
    bracket: bool = True,
    mauve: bool = False,
    bounds: bool = True,
    only_bounds: bool = False,
    seed: int = 0,
    batch: int | None = None,
    device: str = "auto",
    precision: Precision = "auto",
    compile: bool = False,
    out: str | Path | None = None,
    cells: str | Path | None = None,
    progress: Progress | None = None,
) -> Results:
    """Everything docs/evaluation.md describes, as one record.

    Args:
        models: checkpoints by name. `teacher` is the control, else the teacher in the first student's provenance; a
            causal model is the autoregressive control
        steps: of every model, at most one a token (default: 4, 8, ... 64, as far as models and grids go)
        plans: plans; iid runs on the grid `uniform`, the others on `rank`, and PLAN@GRID on another: a name
            (iid@cosine) or a file of `unmask fit-grid` (golden@fitted.json)
        temperatures: of every model; the highest is the headline's (default: 1, 0.9, 0.8, 0.7)
        n: texts of a cell
        judge: a causal judge (see load_judge); None: NELBO, entropy and diversity only
        judge_dtype: of the judge's matrices; bf16 is for GPUs, and its Gen PPL another number
        protocol: of Gen PPL
        data: held-out real text: a prepared folder, a text file, or "sample" (what `unmask prepare sample` holds out)
        split: of a prepared folder or the sample (default: validation); plain text has none
        wrap: held-out blocks as MDLM makes them
        control_steps: more steps of the teacher (default: doublings from 4 to one a token)
        bracket: draw further temperatures until the teacher's entropies enclose every student's; without, only what is
            asked for, and what it does not enclose is not compared
        mauve: also MAUVE by the judge's features, for cells at the headline's temperature
        bounds: NELBO and ELBO on held-out text as well; it takes as many forwards as drawing
        only_bounds: NELBO and ELBO on n held-out texts; nothing is drawn and nothing judged
        seed: of everything
        batch: texts in a forward (default: by the size of the model on a GPU, else 8)
        device: where
        precision: of the models; the likelihood of a causal one is in float32 whatever it is
        compile: compile the masked models, on a GPU (it does not pay for small ones)
        out: a folder that keeps every finished cell and the results
        cells: the folder of finished cells, which several evaluations may share (default: `cells` in `out`)
        progress: told what is being done
    """
    undrawn = _undrawn(temperatures=temperatures, control_steps=control_steps) if only_bounds else []
    temperatures = TEMPERATURES if temperatures is None else temperatures
    Wishes(
        steps=steps, control_steps=control_steps, plans=plans, temperatures=temperatures, n=n, batch=batch,
        judge=judge, judge_dtype=judge_dtype, protocol=protocol, data=data, split=split, wrap=wrap, mauve=mauve,
        bounds=bounds, only_bounds=only_bounds,
    ).check()  # fmt: skip
    with joined(device) as ranks:
        if out is not None:
            ranks.on_first(lambda: check_results_folder(Path(out)))
        if cells is not None:
            ranks.on_first(lambda: refuse_other_folders(Path(cells), "--cells"))
        entries, notes = gather(models)
        length, tokenizer = entries[0].checkpoint.model.length, entries[0].checkpoint.tokenizer
        assert tokenizer is not None, "gather refuses a model without one"
        check_one_a_token(length, steps=steps, control_steps=control_steps)
        steps = _usual_steps(length, make_ways(plans, ()), notes) if steps is None else steps
        control = _doublings(length) if control_steps is None else set(control_steps)
        ways = make_ways(plans, steps)
        compared = any(entry.role in ("student", "elbo") for entry in entries)
        if control_steps and not compared and not only_bounds:
            notes.append(NOT_COMPARED)
        if compared and any(entry.role == "teacher" for entry in entries) and not only_bounds:
            check_control(ways, steps, control)
        notes += fitted_for_others(ways, steps[0])
        settings: dict[str, Any] = {
            "steps": sorted(set(steps)), "plans": [way.name for way in ways],
            "temperatures": sorted(set(temperatures), reverse=True), "n": n, "protocol": protocol,
            "control_steps": sorted({*control, *steps}), "seed": seed, "length": length,
            "data": None if data is None else str(data), "split": split, "wrap": wrap, "mauve": mauve,
            "bracket": bracket, "precision": precision, "compile": compile,
        }  # fmt: skip
        held = _held_out(tokenizer, settings, only_bounds, notes)
        settings["split"] = held and held.record["split"]
        reader = None if judge is None else load_judge(judge, device=device, dtype=judge_dtype)
        if reader is not None:
            check_judge(reader, tokenizer, protocol)
        real = None if held is None or only_bounds else _real(held, n, seed)
        if mauve:
            check_mauve(real is not None, len(real.pool) if real else 0)
        notes += [ONLY_BOUNDS, *undrawn] if only_bounds else [NO_JUDGE] if reader is None else []
        store = None if reader is None else Store.open()
        shop = Workshop(
            Measure(reader, protocol, real, store, seed), ranks, _kept_in(out, cells), n, seed,
            batch, device, precision, compile, max(temperatures) if mauve else None, progress,
        )  # fmt: skip
        given = _controls(shop, real, notes)
        walk = Walk(
            entries, shop, ways, settings["steps"], settings["temperatures"], settings["control_steps"],
            next(iter(given), None), bracket,
        )  # fmt: skip
        made = given if only_bounds else walk.cells() + given
        notes += _untimed(made)
        texts = held if real is None else real.pool
        likelihood = shop.bounds(entries, ways, settings["steps"], texts) if bounds and texts is not None else []
        about = {entry.name: entry.about() for entry in entries}
        about |= {cell.model: {"role": GIVEN[cell.model], "sha256": None, "provenance": {}} for cell in given}
        where = provenance.record(ranks.device, processes=ranks.world)
        found = Results(about, made, likelihood, settings, reader.record() if reader else None, notes, {}, where)
        results = analyse(found, seed=seed)
        if out is not None:
            ranks.on_first(lambda: write_results(results, Path(out) / RESULTS))
    return results


def _kept_in(out: str | Path | None, cells: str | Path | None) -> Path | None:
    """Where finished cells are kept, if anywhere."""
    if cells is not None:
        return Path(cells)
    return None if out is None else Path(out) / "cells"


def _undrawn(**asked: Sequence[float] | None) -> list[str]:
    """Which options are about texts that nobody draws; a recipe may have set them, so they are told, not refused."""
    given = " and ".join(f"--{name}" for name, value in asked.items() if value is not None)
    return [f"{given} did nothing: only what is drawn has them."] if given else []


def _doublings(length: int) -> set[int]:
    """4, 8, 16, ... and one step a token."""
    return {2**k for k in range(2, length.bit_length())} | {length}


def _usual_steps(length: int, ways: Sequence[Way], notes: list[str]) -> list[int]:
    """Of the steps that nobody asked for only those that can be run: a default is cut, not refused."""
    held = set(range(1, length + 1)).intersection(*(way.counts for way in ways if way.counts is not None))
    most = min(MOST, max(held, default=length))
    steps = sorted(_doublings(most) & held) or [max(held, default=most)]
    if steps != (usual := sorted(_doublings(MOST))):
        wanted, cut = (" ".join(map(str, counts)) for counts in (usual, steps))
        short = f"these models write {length} tokens" if most == length else "a fitted grid has no others"
        notes.append(f"Steps: {cut} in place of the usual {wanted}, since {short} (--steps names others).")
    return steps


def _held_out(tokenizer: Tokenizer, settings: Json, only_bounds: bool, notes: list[str]) -> Texts | None:
    """Held-out blocks: twice n of them where there is a pool to compare with, of which every other one is scored."""
    data, n = settings["data"], settings["n"]
    if data is None:
        notes.append("No held-out text was given (--data): no NELBO, no coverage, no controls of real text.")
        return None
    count, least = (n, 2) if only_bounds else (2 * n, 4)
    texts = held_out(data, tokenizer, settings["length"], count=count, split=settings["split"], wrap=settings["wrap"])
    blocks = f"{len(texts)} blocks of {settings['length']} tokens"
    if len(texts) < least:
        raise UserError(f"{data} has {blocks}, and comparing needs {least}: give more text")
    if len(texts) < count:
        what = (
            f"NELBO is over {len(texts)}"
            if only_bounds
            else f"NELBO, real text and diversity are over {len(texts) // 2}"
        )
        notes.append(f"The held-out text has {blocks}, and n = {n} asks for {count}: {what} texts.")
    return texts


def _untimed(cells: Sequence[Cell]) -> list[str]:
    """Cells that were found, not drawn, and whose seconds belong to something else than this run."""
    drawn = [cell for cell in cells if cell.plan is not None]
    lost = sum(cell.seconds is None for cell in drawn)
    if not lost:
        return []
    return [
        f"{lost} of {len(drawn)} cells were drawn earlier on another machine, or with other --compile, --batch, "
        "processes or threads: no time is stated for them."
    ]


def _real(texts: Texts, n: int, seed: int) -> RealText:
    """Every other block for the pool, the others for what pools are held to."""
    pool = min(n, len(texts) // 2)
    facts = {name: texts.record[name] for name in ("source", "split", "wrap")}

    def part(first: int) -> Texts:
        of = slice(first, 2 * pool, 2)
        assert texts.document_T is not None
        return real_text(texts.tokens_TL[of].contiguous(), texts.tokenizer, texts.document_T[of], **facts, half=first)

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
