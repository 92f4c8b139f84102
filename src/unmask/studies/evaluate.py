"""`evaluate`: models at every plan, number of steps and temperature, likelihood, controls, and what they say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
from unmask.metrics.gen_ppl import check_judge
from unmask.metrics.judges import Judge, load_judge
from unmask.metrics.mauve import LEAST, need_mauve
from unmask.metrics.registry import load_check
from unmask.metrics.texts import Texts, of_strings, read_texts, real_text
from unmask.metrics.texts import held_out as held_out_text
from unmask.metrics.unmodelled import PASSAGES, UNMODELLED
from unmask.studies.analysis import analyse
from unmask.studies.cells import CellMaker, Measure, Progress, RealText
from unmask.studies.design import Design
from unmask.studies.entries import GIVEN, REAL, TEXTS, Entry, gather
from unmask.studies.plans_on_grids import PlanOnGrid, fitted_for_others, plans_on_grids
from unmask.studies.questions import ask_models, unasked
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
ONLY_QUESTIONS = "Only questions were asked: no other texts were drawn. With --judge, --data or --check they are."
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
        job = _prepare(study, models or {}, texts or {}, questions=questions is not None)
        report = Progress(progress, job.count)
        if job.count:
            report(job.announced)
        maker = CellMaker(study, job.measure, ranks, folder, report, max(job.design.temperatures))
        controls = [maker.given(name, texts) for name, texts in job.controls.items()]
        drawn = job.design.make(maker)
        given = controls + [maker.given(name, texts) for name, texts in job.files.items()]
        bounds, missing = ([], []) if job.scored is None else job.design.make_bounds(maker, job.scored)
        models_of = {entry.name: entry.about() for entry in job.design.entries}
        models_of |= {
            cell.model: {"role": GIVEN.get(cell.model, TEXTS), "sha256": None, "provenance": {}} for cell in given
        }
        how = {"max_new": max_new, "block_size": block_size, "thresholds": thresholds, "cache": cache}
        results = Results(
            models=models_of, cells=drawn + given, bounds=bounds, settings=_settings(study, job),
            judge=None if job.measure.judge is None else job.measure.judge.record(),
            notes=[*job.notes, *_untimed(drawn), *_missing_scores(drawn), *missing],
            provenance=provenance.record(ranks.device, processes=ranks.world),
            questions=[] if questions is None else _answers(job, questions, maker, **how),
        )  # fmt: skip
        results = analyse(results, seed=study.seed)
        if out is not None:
            ranks.on_first(lambda: write_results(results, Path(out) / RESULTS))
    return results


@dataclass(frozen=True, eq=False)
class _Job:
    """What an evaluation needs, read and checked before the first forward."""

    design: Design
    measure: Measure
    length: int
    held_out: Texts | None
    scored: Texts | None  # held-out texts of which there are bounds
    controls: dict[str, Texts]
    files: dict[str, Texts]
    notes: list[str]

    @property
    def count(self) -> int:
        """Cells and bounds, without what brackets add."""
        bounds = 0 if self.scored is None else len(self.design.bounds())
        return len(self.controls) + len(self.files) + len(self.design.grid()) + bounds

    @property
    def announced(self) -> str:
        more = self.design.most_more()
        return f"{self.count} cells and bounds" + (f", and at most {more} more to bracket entropies" if more else "")


def _prepare(study: Study, models: Mapping[str, Any], texts: Mapping[str, str | Path], *, questions: bool) -> _Job:
    only_questions = questions and not (texts or study.judge or study.data or study.check)
    entries, paths, notes = gather(models, texts, compared=not only_questions)
    notes += unasked({entry.name: entry.checkpoint for entry in entries}) if questions else []
    _check(study, bool(entries))
    check = None if study.check is None else load_check(study.check)
    strings = {name: read_texts(path) for name, path in paths.items()}
    draws = not (study.only_bounds or only_questions)
    design = _design(study, entries, [] if only_questions else notes, draws=draws)
    tokenizer, length = _tokenizer_and_length(entries, strings)
    files = _texts_of_files(strings, paths, tokenizer, length if entries else None, study.n, notes)
    held_out = None if only_questions else _held_out(study, tokenizer, length, notes)
    real = None if held_out is None or study.only_bounds else _halves(held_out, study.n)
    judge = _judge(study, tokenizer)
    _check_mauve(study, real)
    notes += [QUICK] if study.quick else []
    if judge is None:
        notes += [NO_JUDGE] if design.draws or not entries else _undrawn(study, only_questions)
    store = None if judge is None else Store.open()
    measure = Measure(judge, study.protocol, real, store, study.seed, check, study.mauve)
    scored = None if not (study.bounds and entries) else held_out if real is None else real.pool
    return _Job(design, measure, length, held_out, scored, _controls(real, notes), files, notes)


def _answers(job: _Job, path: Path, maker: CellMaker, **how: Any) -> list[Json]:
    """Answers to questions. Every process calls it: they share the answers."""
    entries = {entry.name: entry for entry in job.design.entries}
    models = {name: entry.checkpoint for name, entry in entries.items()}
    how |= {name: getattr(maker.study, name) for name in ("steps", "seed", "device", "precision", "compile", "batch")}
    how |= {"report": maker.progress, "keep": lambda name, *row: maker.answers(entries[name], *row)}
    return ask_models(models, path, **how)


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
        if study.bounds and study.data is not None and models and grid.argmax_tail and not plan.every_position:
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
        if entry.role != "ar" and not any(plan.every_position != entry.checkpoint.process.by_plan for plan in plans):
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
    of_plans = (plan.step_counts for plan in plans)
    possible = set(range(1, length + 1)).intersection(*(counts for counts in of_plans if counts is not None))
    most = min(MOST, max(possible, default=length))
    steps = sorted(_doublings(most) & possible) or [max(possible, default=most)]
    if steps != (usual := sorted(_doublings(MOST))):
        before, after = (" ".join(map(str, counts)) for counts in (usual, steps))
        why = f"these models write {length} tokens" if most == length else "a fitted grid has no others"
        notes.append(f"Steps: {after} in place of the usual {before}, since {why} (--steps names others).")
    return steps


def _check_control(plans: Sequence[PlanOnGrid], steps: Sequence[int], control: Sequence[int]) -> None:
    """The teacher runs in more steps than were asked for, which a fitted grid may not have."""
    for plan in plans:
        for count in control:
            try:
                plan.at(count)
            except UserError as error:
                example = f"--control_steps {' '.join(map(str, steps))}"
                more = f"the teacher is to run in {count} steps too: name others, {example}"
                raise UserError(f"{error}; {more}") from error


def _settings(study: Study, job: _Job) -> Json:
    """What a report and a merge look up, as it was really run."""
    settings = {name: item for name, item in vars(study).items() if not name.startswith("judge")}
    settings |= {name: list(getattr(job.design, name)) for name in ("steps", "temperatures", "control_steps", "top_ps")}
    data = None if study.data is None else str(study.data)
    split = None if job.held_out is None else job.held_out.record["split"]
    plans = [plan.name for plan in job.design.every_plan]
    return {**settings, "plans": plans, "length": job.length, "data": data, "split": split}


# --- texts ------------------------------------------------------------------------------------------------------------


def _tokenizer_and_length(entries: Sequence[Entry], strings: Mapping[str, Sequence[str]]) -> tuple[Tokenizer, int]:
    """The models' tokenizer and length; without models GPT-2's tokenizer, and the middle length of the texts."""
    if entries:
        tokenizer = entries[0].checkpoint.tokenizer
        assert tokenizer is not None, "gather rejects a model without one"
        return tokenizer, entries[0].checkpoint.model.length
    tokenizer = Tokenizer.load("gpt2")
    lengths = [len(row) for several in strings.values() for row in tokenizer.encode_batch(several)]
    return tokenizer, max(2, int(median(lengths)))


def _texts_of_files(
    strings: Mapping[str, Sequence[str]], files: Mapping[str, Path], tokenizer: Tokenizer, length: int | None, n: int,
    notes: list[str],
) -> dict[str, Texts]:  # fmt: skip
    """Texts of files in the models' tokens, as many and as long as theirs."""
    texts = {}
    for name, several in strings.items():
        taken = several if length is None else several[:n]
        if len(taken) < 2:
            raise UserError(f"{files[name]} has one text, and an interval needs several: give at least 2")
        texts[name] = of_strings(taken, tokenizer, length, file=str(files[name]))
        sizes = [len(row) for row in texts[name].rows]
        many = f"{len(taken)} of {len(several)} texts" if len(taken) < len(several) else f"{len(taken)} texts"
        span = f"{min(sizes)} to {max(sizes)}" if min(sizes) < max(sizes) else str(max(sizes))
        other = f"; models write {length}, and entropy grows with length" if length and min(sizes) < length else ""
        notes.append(f"{name}: {many} of {files[name].name}, {span} tokens of {tokenizer.name}{other}.")
    return texts


def _judge(study: Study, tokenizer: Tokenizer) -> Judge | None:
    if study.judge is None:
        return None
    judge = load_judge(study.judge, device=study.device, dtype=study.judge_dtype)
    check_judge(judge, tokenizer, study.protocol)
    return judge


def _held_out(study: Study, tokenizer: Tokenizer, length: int, notes: list[str]) -> Texts | None:
    """Held-out blocks: twice n of them where there is a pool to compare with, of which every other one is scored."""
    if study.data is None:
        notes.append(NO_DATA)
        return None
    count, least = (study.n, 2) if study.only_bounds else (2 * study.n, 4)
    texts = held_out_text(study.data, tokenizer, length, count=count, split=study.split, wrap=study.wrap)
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


def _undrawn(study: Study, only_questions: bool) -> list[str]:
    """Which options are about texts that nobody draws; a recipe may have set them, so they are named, not rejected."""
    named = [f"--{name}" for name in ("temperatures", "control_steps", "top_ps") if getattr(study, name) is not None]
    useless = [f"{' and '.join(named)} did nothing: only what is drawn has them."] if named else []
    return [ONLY_QUESTIONS if only_questions else ONLY_BOUNDS, *useless]


def _untimed(cells: Sequence[Cell]) -> list[str]:
    """Cells that were read, not drawn, and whose seconds belong to something else than this run."""
    count = sum(cell.seconds is None for cell in cells)
    earlier = f"{count} of {len(cells)} cells were drawn earlier on another machine"
    why = f"{earlier}, or with other --compile, --batch, processes or threads: no time is stated for them."
    return [why] if count else []


def _missing_scores(cells: Sequence[Cell]) -> list[str]:
    """Scores that some drawn texts cannot have, each reason once."""
    models: dict[tuple[str, str], set[str]] = {}  # by score and reason
    for cell in cells:
        for score, why in cell.absent.items():
            models.setdefault((score, why), set()).add(cell.model)
    return [f"No {score} of {', '.join(sorted(names))}: {why}." for (score, why), names in models.items()]
