"""`evaluate`: models at every plan, number of steps and temperature, held-out likelihood, controls, and what they say.

Every finished cell is kept in `out` at once, so that the same call goes on where it stopped. Which cells are drawn is
in design.py, how one is drawn and scored in cells.py, what they mean together in analysis.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Literal

from unmask.checkpoint.io import Checkpoint
from unmask.core import provenance
from unmask.core.errors import UserError
from unmask.core.files import claim_folder
from unmask.core.ranks import Ranks, joined
from unmask.core.verbs import verb
from unmask.data.tokenizer import Tokenizer
from unmask.inference.categorical import Law
from unmask.metrics.cache import Store
from unmask.metrics.check import load_check
from unmask.metrics.gen_ppl import check_judge
from unmask.metrics.judges import load_judge
from unmask.metrics.mauve import LEAST, need_mauve
from unmask.metrics.texts import Texts, held_out, of_strings, read_texts, real_text
from unmask.metrics.unmodelled import PASSAGES, UNMODELLED
from unmask.studies.analysis import analyse
from unmask.studies.cells import CellMaker, Progress
from unmask.studies.design import Design
from unmask.studies.entries import GIVEN, REAL, TEXTS, Entry, gather
from unmask.studies.measure import Measure, RealText
from unmask.studies.plans_on_grids import PlanOnGrid, fitted_for_others, plans_on_grids
from unmask.studies.questions import frontier
from unmask.studies.results import PER_TEXT, Cell, Json, Results, write_results
from unmask.studies.study import Study

RESULTS = "results.json"
WRITES = (RESULTS, PER_TEXT, "report.html", "report.md", "figures")  # what an evaluation and its report leave
TEMPERATURES = (1.0, 0.9, 0.8, 0.7)
TOP_PS = (0.95, 0.9)
MOST = 64  # steps that are run unasked
QUICK = "This was a first look (--quick): few texts, few steps, no brackets. Intervals are wide: run it without."
NO_JUDGE = "No judge was given: NELBO, entropy and diversity only; no Gen PPL, no path gap, no speed-up."
NO_DATA = "No held-out text was given (--data): no NELBO, no coverage, no controls of real text."
ONLY_BOUNDS = "Only bounds were asked for: nothing was drawn, so there is nothing to judge or compare by entropy."
ALONE = "Only questions were asked: no other texts were drawn. With --judge, --data or --check they are."
NOT_COMPARED = "There is no student to compare with the teacher: it ran in --steps, and --control_steps did nothing."


@verb
def evaluate(
    models: Mapping[str, Checkpoint | str | Path | Any] | None = None,
    *,
    texts: Mapping[str, str | Path] | None = None,
    questions: Path | None = None,
    max_new: int = 256,
    block_size: int | None = None,
    thresholds: Sequence[float] = (),
    cache: Literal["none", "exact", "prefix", "dual"] | None = None,
    study: Study,
    out: str | Path | None = None,
    cells: str | Path | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Results:
    """Measure models at every plan, number of steps and temperature, and texts that anybody wrote.

    The entry named `teacher` is the control, else the teacher in the student's provenance; a causal model is the
    autoregressive control; an entry named `elbo` is the teacher trained on. The same call goes on where it stopped.

    Args:
        models: NAME=CHECKPOINT, such as teacher=runs/teacher student=runs/student
        texts: NAME=FILE of texts to score beside them, or alone: a line of a .jsonl file is a string or an object with
            a "text"; texts of a .txt file are parted by lines <|endoftext|>, or else by blank lines. Beside models the
            first n are taken, each cut to the models' length
        out: the folder that keeps finished cells and results.json (default: nothing is kept)
        cells: the folder of finished cells, if several evaluations are to share them: samples are then drawn once for
            all judges (default: cells in out)
        progress: called with what is being done, how much is done, of how much
    Questions:
        questions: a .jsonl of questions with answers in GSM8K's format ("… #### 72"): how many each masked model
            answers right, tokens a forward and seconds, for each number of steps (default: 1, 2 and 4 tokens a step)
        max_new: tokens of an answer at most
        block_size: write answers from left to right in blocks of so many positions, and none after the block in which
            an answer ends (default: sdar's own blocks, else the whole answer at once)
        thresholds: a step reveals all positions that are at least so sure, such as 0.9: a row for each
        cache: keep keys and values from step to step, as `sample` does
    """
    if questions is None and (block_size or thresholds or cache):
        raise UserError("block_size, thresholds and cache are for answers to questions: give --questions as well")
    with joined(study.device) as ranks:
        folder = _claimed(ranks, out, cells)
        alone = questions is not None and not (texts or study.judge or study.data or study.check)
        entries, files, notes = gather(models or {}, texts or {}, compared=not alone)
        _check(study, bool(entries))
        check = None if study.check is None else load_check(study.check)
        strings = {name: read_texts(path) for name, path in files.items()}
        design = _design(study, entries, notes, draws=not (study.only_bounds or alone))
        tokenizer, length = _shape(entries, strings)
        theirs = _foreign(strings, files, tokenizer, length if entries else None, study.n, notes)
        held = None if alone else _held_out(study, tokenizer, length, notes)
        judge = None if study.judge is None else load_judge(study.judge, device=study.device, dtype=study.judge_dtype)
        if judge is not None:
            check_judge(judge, tokenizer, study.protocol)
        real = None if held is None or study.only_bounds else _halves(held, study.n)
        _check_mauve(study, real)
        notes += [QUICK] if study.quick else []
        notes += [] if judge is not None else [NO_JUDGE] if design.draws or not entries else _undrawn(study, alone)
        store = None if judge is None else Store.open()
        measure = Measure(judge, study.protocol, real, store, study.seed, check, study.mauve)
        pool = held if real is None else real.pool
        bounds = study.bounds and pool is not None and bool(entries)
        controls = _controls(real, notes)
        total = len(controls) + len(theirs) + len(design.grid()) + bounds * len(design.bounds())
        counted, more = Progress(progress, total), design.most_more()
        if not alone:
            counted.say(_announced(total, more))
        maker = CellMaker(study, measure, ranks, folder, counted, max(design.temperatures))
        given = [maker.given(name, texts) for name, texts in controls.items()]
        made = design.make(maker)
        given += [maker.given(name, texts) for name, texts in theirs.items()]
        notes += _untimed(made) + _absent(made)
        likelihood, missing = design.make_bounds(maker, pool) if bounds and pool is not None else ([], [])
        notes += missing
        about = {entry.name: entry.about() for entry in entries}
        roles = {**dict.fromkeys(theirs, TEXTS), **GIVEN}
        about |= {cell.model: {"role": roles[cell.model], "sha256": None, "provenance": {}} for cell in given}
        settings, reader = _settings(study, design, length, held), None if judge is None else judge.record()
        where = provenance.record(ranks.device, processes=ranks.world)
        answers = {"max_new": max_new, "block_size": block_size, "thresholds": thresholds, "cache": cache}
        asked = [] if questions is None else _asked(entries, questions, study, counted.say, **answers)
        found = Results(about, made + given, likelihood, settings, reader, notes, {}, where, asked)
        results = analyse(found, seed=study.seed)
        if out is not None:
            ranks.on_first(lambda: write_results(results, Path(out) / RESULTS))
    return results


def _announced(total: int, more: int) -> str:
    return f"{total} cells and bounds" + (f", and at most {more} more to bracket entropies" if more else "")


def _asked(entries: Sequence[Entry], path: Path, study: Study, tell: Callable[[str], None], **how: Any) -> list[Json]:
    """Answers to questions. Every process calls it: they share the answers."""
    masked = {entry.name: entry.checkpoint for entry in entries}
    return frontier(
        masked, path, steps=study.steps, seed=study.seed, device=study.device, precision=study.precision,
        compile=study.compile, batch=study.batch, tell=tell, **how,
    )  # fmt: skip


# --- what was asked for -----------------------------------------------------------------------------------------------


def _claimed(ranks: Ranks, out: str | Path | None, cells: str | Path | None) -> Path | None:
    """Make the folders ours, before any work; returns where finished cells are kept, if anywhere."""
    if out is not None:
        ranks.on_first(lambda: claim_folder(Path(out), "results", writes=WRITES))
    folder = Path(cells) if cells is not None else Path(out) / "cells" if out is not None else None
    if folder is not None:
        ranks.on_first(lambda: claim_folder(folder, "cells", option="--cells" if cells else "--out"))
    return folder


def _check(study: Study, models: bool) -> None:
    """What can be wrong with the options, before the first forward."""
    for temperature in study.temperatures or ():
        if Law(temperature).greedy and study.bounds:
            raise UserError("at temperature 0 a text that the model did not write has probability 0, and so no NELBO: "
                            "take a temperature above 0, or say --no-bounds")  # fmt: skip
    _check_mauve(study, None)
    plans = plans_on_grids(study.plans, study.steps or ())
    for plan in plans:
        grid = plan.at(study.steps[0] if study.steps else None)
        if study.bounds and study.data is not None and models and grid.argmax_tail and not plan.of_every:
            tail = f"{plan.name} fills its last positions by argmax and has no NELBO"
            raise UserError(f"{tail}: take the grid uniform, or say --no-bounds")
    if study.only_bounds and not models:
        raise UserError("only a model has bounds: give --models, or leave --only_bounds out")


def _check_mauve(study: Study, real: RealText | None) -> None:
    """MAUVE needs a judge and held-out text, many texts, and a package."""
    if study.mauve:
        texts = study.n if real is None else len(real.pool)
        if study.judge is None or study.data is None or texts < LEAST:
            raise UserError(f"MAUVE needs a judge and {LEAST} texts on each side: give --judge, --data and --n {LEAST}")
        need_mauve()


def _design(study: Study, entries: Sequence[Entry], notes: list[str], *, draws: bool) -> Design:
    """The grid of cells, with the defaults that depend on the models."""
    temperatures = sorted(set(study.temperatures or TEMPERATURES), reverse=True)
    if not entries:
        return Design([], [], [], [], temperatures, draws=False)
    length = entries[0].checkpoint.model.length
    for name in ("steps", "control_steps"):
        if (most := max(getattr(study, name) or [0])) > length:
            raise UserError(f"{name} must be at most {length}, one a token of these models, not {most}: lower --{name}")
    steps = sorted(set(study.steps or ())) or _usual_steps(length, plans_on_grids(study.plans, ()), notes)
    plans = plans_on_grids(study.plans, steps)
    control = sorted({*(study.control_steps or _doublings(length)), *steps})
    design = Design(entries, plans, steps, control, temperatures, draws=draws)
    if design.draws and design.compares:
        _check_control(plans, steps, control)
    if study.control_steps and not design.others and design.draws and not study.quick:
        notes.append(NOT_COMPARED)
    notes += fitted_for_others(plans, steps[0])
    for entry in entries:
        if entry.role != "ar" and not any(plan.of_every != entry.checkpoint.process.by_plan for plan in plans):
            usual = design.plans_of(entry)[0].name
            notes.append(f"{entry.name}: none of --plans is of the process {entry.checkpoint.process.name}: {usual}.")
    scored = [plan for entry in entries if entry.role != "ar" for plan in design.plans_of(entry)]
    if tails := dict.fromkeys(plan.name for plan in scored if plan.greedy):
        notes.append(f"No NELBO on {', '.join(tails)}: it ends with the likeliest tokens; other texts have no chance.")
    # at equal own entropy, which texts of a process that may change a token do not have
    has_own = any(entry.checkpoint.process.by_plan for entry in design.teachers)
    brackets = study.bracket and study.judge is not None and design.draws and design.compares and has_own
    top_ps = sorted(set(study.top_ps or (TOP_PS if brackets and study.top_ps is None else ())), reverse=True)
    return replace(design, top_ps=top_ps, brackets=brackets)


def _doublings(length: int) -> set[int]:
    """4, 8, 16, ... and one step a token."""
    return {2**k for k in range(2, length.bit_length())} | {length}


def _usual_steps(length: int, plans: Sequence[PlanOnGrid], notes: list[str]) -> list[int]:
    """Of the usual steps only those that can be run: a default is cut, not rejected."""
    held = set(range(1, length + 1)).intersection(*(plan.counts for plan in plans if plan.counts is not None))
    most = min(MOST, max(held, default=length))
    steps = sorted(_doublings(most) & held) or [max(held, default=most)]
    if steps != (usual := sorted(_doublings(MOST))):
        wanted, cut = (" ".join(map(str, counts)) for counts in (usual, steps))
        short = f"these models write {length} tokens" if most == length else "a fitted grid has no others"
        notes.append(f"Steps: {cut} in place of the usual {wanted}, since {short} (--steps names others).")
    return steps


def _check_control(plans: Sequence[PlanOnGrid], steps: Sequence[int], control: Sequence[int]) -> None:
    """The teacher runs in more steps than were asked for, which a fitted grid may not have."""
    for plan in plans:
        for count in control:
            try:
                plan.at(count)
            except UserError as error:
                such = f"--control_steps {' '.join(map(str, steps))}"
                raise UserError(f"{error}; the teacher is to run in {count} steps too: name others, {such}") from error


def _settings(study: Study, design: Design, length: int, held: Texts | None) -> Json:
    """What a report and a merge look up, as it was really run."""
    asked = {name: item for name, item in vars(study).items() if not name.startswith("judge")}
    run = {name: list(getattr(design, name)) for name in ("steps", "temperatures", "control_steps", "top_ps")}
    run |= {"plans": [plan.name for plan in design.every_plan]}
    data = None if study.data is None else str(study.data)
    return {**asked, **run, "length": length, "data": data, "split": held and held.record["split"]}


# --- texts ------------------------------------------------------------------------------------------------------------


def _shape(entries: Sequence[Entry], strings: Mapping[str, Sequence[str]]) -> tuple[Tokenizer, int]:
    """The models' tokenizer and length; without models GPT-2's tokenizer, and the middle length of the texts."""
    if entries:
        tokenizer = entries[0].checkpoint.tokenizer
        assert tokenizer is not None, "gather rejects a model without one"
        return tokenizer, entries[0].checkpoint.model.length
    tokenizer = Tokenizer.load("gpt2")
    lengths = [len(row) for several in strings.values() for row in tokenizer.encode_batch(several)]
    return tokenizer, max(2, int(median(lengths)))


def _foreign(
    strings: Mapping[str, Sequence[str]], files: Mapping[str, Path], tokenizer: Tokenizer, length: int | None, n: int,
    notes: list[str],
) -> dict[str, Texts]:  # fmt: skip
    """Texts of files in the models' tokens, as many and as long as theirs."""
    found = {}
    for name, several in strings.items():
        taken = several if length is None else several[:n]
        if len(taken) < 2:
            raise UserError(f"{files[name]} has one text, and an interval needs several: give at least 2")
        found[name] = of_strings(taken, tokenizer, length, file=str(files[name]))
        sizes = [len(row) for row in found[name].rows]
        many = f"{len(taken)} of {len(several)} texts" if len(taken) < len(several) else f"{len(taken)} texts"
        span = f"{min(sizes)} to {max(sizes)}" if min(sizes) < max(sizes) else str(max(sizes))
        other = f"; models write {length}, and entropy grows with length" if length and min(sizes) < length else ""
        notes.append(f"{name}: {many} of {files[name].name}, {span} tokens of {tokenizer.name}{other}.")
    return found


def _held_out(study: Study, tokenizer: Tokenizer, length: int, notes: list[str]) -> Texts | None:
    """Held-out blocks: twice n of them where there is a pool to compare with, of which every other one is scored."""
    if study.data is None:
        notes.append(NO_DATA)
        return None
    count, least = (study.n, 2) if study.only_bounds else (2 * study.n, 4)
    texts = held_out(study.data, tokenizer, length, count=count, split=study.split, wrap=study.wrap)
    blocks = f"{len(texts)} blocks of {length} tokens"
    if len(texts) < least:
        raise UserError(f"{study.data} has {blocks}, and comparing needs {least}: give more text")
    if len(texts) < count:
        over = len(texts) if study.only_bounds else len(texts) // 2
        what = "NELBO is" if study.only_bounds else "NELBO, real text and diversity are"
        notes.append(f"The held-out text has {blocks}, and n = {study.n} asks for {count}: {what} over {over} texts.")
    return texts


def _halves(texts: Texts, n: int) -> RealText:
    """Every other block for the pool, the others for what pools are compared with."""
    pool = min(n, len(texts) // 2)
    facts = {name: texts.record[name] for name in ("source", "split", "wrap")}

    def part(first: int) -> Texts:
        of = slice(first, 2 * pool, 2)
        assert texts.document_T is not None
        return real_text(texts.tokens_TL[of].contiguous(), texts.tokenizer, texts.document_T[of], **facts, half=first)

    return RealText(part(0), part(1))


def _controls(real: RealText | None, notes: list[str]) -> dict[str, Texts]:
    """Real text, and texts without a model, made of it, which Gen PPL lets pass."""
    if real is None:
        return {}
    if len(real.pool) < 2 * PASSAGES:
        named = ", ".join(UNMODELLED)
        notes.append(f"Controls without a model ({named}) need {2 * PASSAGES} held-out texts: left out.")
        return {REAL: real.pool}
    return {REAL: real.pool, **{name: make(real.pool, len(real.pool), 0) for name, make in UNMODELLED.items()}}


# --- what a reader should know ----------------------------------------------------------------------------------------


def _undrawn(study: Study, alone: bool) -> list[str]:
    """Which options are about texts that nobody draws; a recipe may have set them, so they are named, not rejected."""
    drawn = ("temperatures", "control_steps", "top_ps")
    asked = [f"--{name}" for name in drawn if getattr(study, name) is not None]
    return [ALONE if alone else ONLY_BOUNDS] + (
        [f"{' and '.join(asked)} did nothing: only what is drawn has them."] if asked else []
    )


def _untimed(cells: Sequence[Cell]) -> list[str]:
    """Cells that were found, not drawn, and whose seconds belong to something else than this run."""
    lost = f"{sum(cell.seconds is None for cell in cells)} of {len(cells)} cells were drawn earlier on another machine"
    why = f"{lost}, or with other --compile, --batch, processes or threads: no time is stated for them."
    return [why] if any(cell.seconds is None for cell in cells) else []


def _absent(cells: Sequence[Cell]) -> list[str]:
    """Scores that some drawn texts cannot have, each reason once."""
    found: dict[tuple[str, str], set[str]] = {}
    for cell in cells:
        for score, why in cell.absent.items():
            found.setdefault((score, why), set()).add(cell.model)
    return [f"No {score} of {', '.join(sorted(models))}: {why}." for (score, why), models in found.items()]
