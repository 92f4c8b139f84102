"""Makes cells: drawn, timed, scored, and kept in a folder as soon as they are done.

Samples are kept by what made them (model, plan, steps, temperature, seed, what the sampler does), scores by the
samples, the judge, the real text and the code of the metrics as well: another judge costs no sampling, the same call
costs nothing. How long drawing took is stated only where it was drawn as it would be now. Every cell draws from a seed
of its own, so that cells are independent and may be resampled one by one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch

from unmask.core import provenance
from unmask.core.errors import UserError
from unmask.core.files import read_json, write_text
from unmask.core.hashing import key_of
from unmask.core.ranks import Ranks
from unmask.core.streams import seed_of
from unmask.inference.ready import usual_batch
from unmask.metrics import (
    built_in,  # noqa: F401 (registers the metrics of the package)
    registry,
)
from unmask.metrics.cache import Store
from unmask.metrics.diversity import suspicions
from unmask.metrics.judges import Judge
from unmask.metrics.nelbo import elbo, nelbo
from unmask.metrics.registry import METRICS, Metric
from unmask.metrics.score import Score, Unavailable
from unmask.metrics.texts import Texts, of_samples
from unmask.sampling.causal import sample_causal
from unmask.sampling.samples import Samples
from unmask.sampling.verbs import sample
from unmask.studies.entries import Entry
from unmask.studies.fingerprint import causal_behaviour
from unmask.studies.plans_on_grids import PlanOnGrid
from unmask.studies.results import Bound, Cell, Json
from unmask.studies.study import Study

CAUSAL = "causal"  # the plan of a cell that was written from left to right
SHOWN = 4  # texts of a cell that a report may show
TIMED = 4  # texts that are timed at the least
Kept = TypeVar("Kept")


@dataclass
class Progress:
    """Counts cells and bounds; `callback` gets what is being done, how many are done, and of how many."""

    callback: Callable[[str, int, int], None] | None = None
    total: int = 0
    done: int = 0

    def __call__(self, what: str, finished: int = 0) -> None:
        self.done += finished
        if self.callback:
            self.callback(what, self.done, self.total)


@dataclass(frozen=True)
class TimedSamples:
    """Samples and the seconds they took, with what those belong to: what is kept before any judge is asked."""

    samples: Samples
    seconds: float
    timing: Json

    def to_json(self) -> Json:
        drawn = self.samples
        numbers = {"tokens": drawn.tokens.tolist(), "log_q": drawn.log_q.sum(1).tolist(), "nfe": drawn.nfe.tolist()}
        return {**numbers, "seconds": self.seconds, "timing": self.timing, "record": drawn.record}

    @classmethod
    def from_json(cls, data: Json) -> TimedSamples:
        tokens_nL, nfe_n = torch.tensor(data["tokens"]), torch.tensor(data["nfe"])
        log_q_n1 = torch.tensor(data["log_q"], dtype=torch.float64)[:, None]
        samples = Samples(tokens_nL, tokens_nL < 0, log_q_n1, nfe_n, [], data["record"])
        return cls(samples, data["seconds"], data["timing"])


@dataclass(frozen=True)
class CellSpec:
    """Which cell: a model on a plan (None: it is causal), a number of steps, a temperature and a top-p."""

    entry: Entry
    plan: PlanOnGrid | None
    steps: int | None
    temperature: float
    top_p: float = 1.0

    @property
    def plan_name(self) -> str:
        return self.plan.name if self.plan else CAUSAL

    def __str__(self) -> str:
        steps = f", {self.steps} steps" if self.steps else ""
        cut = "" if self.top_p == 1 else f", top-p {self.top_p:g}"
        return f"{self.entry.name}, {self.plan_name}{steps}, T = {self.temperature:g}{cut}"

    def law(self) -> list[Any]:
        """What decides which texts are drawn, but for the noise."""
        if self.plan is None or self.steps is None:
            return [CAUSAL, self.temperature, causal_behaviour(self.temperature)]
        does = self.plan.behaviour(self.steps, self.temperature, self.entry.checkpoint)
        return [self.plan.law(self.steps), self.steps, self.temperature, does, *self._cut]

    @property
    def _cut(self) -> list[float]:
        """Top-p where the draw is cut: cells that were drawn before there was one keep their names."""
        return [] if self.top_p == 1 else [self.top_p]

    def seed(self, seed: int) -> int:
        """By the weights alone: so were the published cells drawn, and twins on another schedule may share noise."""
        where = [CAUSAL] if self.plan is None else [self.plan.noise_name(self.steps or 0), self.steps or 0]
        key = [self.entry.sha256 or self.entry.name, *where, str(self.temperature), *map(str, self._cut)]
        return seed_of(seed, "cell", *key) % 2**31


@dataclass(frozen=True, eq=False)
class CellMaker:
    """Makes cells and bounds, and keeps them in a folder; None: nothing is kept."""

    study: Study
    measure: Measure
    ranks: Ranks
    folder: Path | None
    progress: Progress
    headline: float | None = None  # the temperature of cells whose features are compared with real text's
    _warm: set[str] = field(default_factory=set)

    def cell(self, spec: CellSpec) -> Cell:
        """A model's cell: read from the folder, or drawn and scored."""
        self.progress(str(spec))
        study, judge, real = self.study, self.measure.judge, self.measure.real
        drawn = [spec.entry.identity, spec.law(), study.n, study.seed, study.precision, self.ranks.device.type]
        headline = spec.temperature == self.headline and spec.top_p == 1
        scored = [
            drawn, judge and [judge.id, study.protocol], headline and [study.mauve], registry.fingerprint(),
            self.measure.check and self.measure.check.source,
            real and [real.pool.record["sha256"], real.reference.record["sha256"]],
        ]  # fmt: skip
        cell = self._load("", scored, Cell.from_json)
        if cell is None:
            cell = self._score(spec, self._samples(spec, drawn), headline)
            self._save("", scored, cell.to_json())
        self.progress(str(spec), finished=1)
        cell = replace(cell, model=spec.entry.name, plan=spec.plan_name, timed=self._timed(spec) if headline else {})
        return cell if cell.record.get("timing") == self._timing(spec) else replace(cell, seconds=None)

    def given(self, name: str, texts: Texts) -> Cell:
        """A cell of texts that were not drawn here."""
        self.progress(name)
        measured = self.measure(texts, headline=True)
        self.progress(name, finished=1)
        return Cell(
            model=name, plan=None, steps=None, temperature=None, n=len(texts), nfe=None, seconds=None,
            tokens=sum(map(len, texts.rows)), samples=tuple(texts.strings[:SHOWN]), **measured,
        )  # fmt: skip

    def _samples(self, spec: CellSpec, key: list[Any]) -> TimedSamples:
        drawn = self._load(".samples", key, TimedSamples.from_json)
        if drawn is None:
            if spec.entry.identity not in self._warm:  # the first draw of a model pays for its start
                self._draw(spec, self._warming(spec.entry))
                self._warm.add(spec.entry.identity)
            start = time.perf_counter()
            samples = self._draw(spec, self.study.n)
            drawn = TimedSamples(samples, time.perf_counter() - start, self._timing(spec))
            self._save(".samples", key, drawn.to_json())
        return drawn

    def _timed(self, spec: CellSpec) -> dict[str, float]:
        """Seconds a text in each batch that is to be timed: of some texts, after as many for a start."""
        timed = {}
        for batch in self.study.timed:
            key = ["seconds", spec.entry.identity, spec.law(), batch, self.study.precision, self._timing(spec)]
            seconds = self._load(".seconds", key, lambda data: float(data["seconds"]))
            if seconds is None:
                n = batch * max(1, TIMED // batch)
                self._draw(spec, batch, batch)
                start = time.perf_counter()
                self._draw(spec, n, batch)
                seconds = (time.perf_counter() - start) / n
                self._save(".seconds", key, {"seconds": seconds})
            timed[str(batch)] = seconds
        return timed

    def _draw(self, spec: CellSpec, n: int, batch: int | None = None) -> Samples:
        how = {**self._how, "seed": spec.seed(self.study.seed), "temperature": spec.temperature}
        how |= {} if batch is None else {"batch": batch}
        checkpoint, plan, steps = spec.entry.checkpoint, spec.plan, spec.steps
        if plan is None:
            return sample_causal(checkpoint, n, **how)
        how |= {"plan": plan.plan, "grid": plan.at(steps), "top_p": spec.top_p, "compile": self.study.compile}
        return sample(checkpoint, n, steps, **how)

    @property
    def _how(self) -> Json:
        return {name: getattr(self.study, name) for name in ("seed", "batch", "device", "precision")}

    def _timing(self, spec: CellSpec | None = None) -> Json:
        """What the seconds of a cell belong to. It moves a text by rounding only, so it names no cell."""
        is_causal, machine = spec is not None and spec.plan is None, provenance.device_name(self.ranks.device)
        compiled = self.study.compile and not is_causal
        return {"compile": compiled, "batch": self.study.batch, "processes": self.ranks.world, "device": machine}

    def _warming(self, entry: Entry) -> int:
        """Texts that start a model; compiled, a whole batch for every process: no shape is new to the timed draw."""
        rows = self.study.batch or usual_batch(entry.checkpoint.model, self.ranks.device)
        return min(self.study.n, rows * self.ranks.world) if self.study.compile else 1

    def _score(self, spec: CellSpec, drawn: TimedSamples, headline: bool) -> Cell:
        entry, samples = spec.entry, drawn.samples
        texts = of_samples(samples, entry.checkpoint.tokenizer, sha256=entry.sha256, name=entry.name)
        measured = self.measure(texts, headline=headline)
        measured["record"]["timing"] = drawn.timing
        return Cell(
            model=entry.name, plan=spec.plan_name, steps=spec.steps, temperature=spec.temperature, top_p=spec.top_p,
            n=len(texts), nfe=float(samples.nfe.double().mean()), seconds=drawn.seconds,
            tokens=int((samples.tokens >= 0).sum()), samples=tuple(texts.strings[:SHOWN]), **measured,
        )  # fmt: skip

    def bound(self, entry: Entry, plan: PlanOnGrid | None, steps: int, texts: Texts) -> Bound:
        """NELBO on a plan in so many steps; without a plan, the ELBO."""
        what = f"{entry.name}, " + (f"NELBO, {plan.name}, {steps} steps" if plan else "ELBO")
        self.progress(what)
        law = plan and [plan.law(steps), steps, plan.behaviour(steps, 1.0, entry.checkpoint)]
        settings = [self.study.seed, self.study.precision, texts.record["sha256"], self.ranks.device.type]
        key = ["bound", entry.identity, law, *settings]
        bound = self._load("", key, Bound.from_json)
        if bound is None:
            if plan is None:
                scored = elbo(entry.checkpoint, texts, masks=4, **self._how)
            else:
                how = {**self._how, "compile": self.study.compile}
                scored = nelbo(entry.checkpoint, texts, steps, plan=plan.plan, grid=plan.at(steps), **how)
            scores = {name: getattr(scored, name).plain() for name in ("per_token", "per_byte", "perplexity")}
            per_token, per_byte = scored.per_token.ratio, scored.per_byte.ratio
            assert per_token is not None and per_byte is not None  # noqa: PT018
            sizes = tuple(int(size) for size in per_byte.bottom_n)  # of what was scored
            record, count = scored.per_token.record, steps if plan else None
            bound = Bound(entry.name, None, count, scored.nfe, scores, per_token.rounded(), record, sizes)
            self._save("", key, bound.to_json())
        self.progress(what, finished=1)
        return replace(bound, model=entry.name, plan=plan.name if plan else None)

    def answers(self, entry: Entry, about: list[Any], make: Callable[[], Json]) -> Json:
        """A model's answers to questions: read from the folder, or written."""
        key = ["questions", entry.identity, about, self.study.seed, self.study.precision, self.ranks.device.type]
        row = self._load(".questions", key, dict)
        if row is None:
            row = {**make(), "timing": self._timing()}
            self._save(".questions", key, row)
        return row if row["timing"] == self._timing() else {**row, "seconds_an_answer": None}

    def _load(self, kind: str, key: list[Any], read: Callable[[Json], Kept]) -> Kept | None:
        """What an earlier run finished; a file that is damaged, or that `read` cannot take, is made again."""
        path = self._path(kind, key)
        if path is None:
            return None
        try:
            data = self.ranks.on_first(lambda: read_json(path, "cell") if path.is_file() else None)
            return None if data is None else read(data)
        except (UserError, LookupError, TypeError, ValueError, AttributeError, AssertionError):
            return None

    def _save(self, kind: str, key: list[Any], data: Json) -> None:
        if path := self._path(kind, key):
            self.ranks.on_first(lambda: write_text(path, json.dumps(data) + "\n"))

    def _path(self, kind: str, key: list[Any]) -> Path | None:
        return self.folder and self.folder / f"{key_of(*key)[:24]}{kind}.json"


HEADLINE_ONLY = ("mauve", "energy_distance", "gradient")  # a judge reads the texts once more for them
DIVERSITY = ("distinct", "coverage", "self_bleu", "repeated")  # what finds a parrot, or a text that repeats itself


@dataclass(frozen=True, eq=False)
class RealText:
    """Held-out text in two halves of one size: one plays a pool of samples, pools are compared with the other."""

    pool: Texts
    reference: Texts


@dataclass(frozen=True, eq=False)
class Measure:
    """How texts are scored in one evaluation: gives the fields of a Cell that are found by measuring."""

    judge: Judge | None
    protocol: str
    real: RealText | None
    store: Store | None
    seed: int
    check: Metric | None = None  # the user's own
    mauve: bool = False

    def __call__(self, texts: Texts, *, headline: bool = False) -> Json:
        """`headline`: also what takes a judge another reading, its features and gradients beside real text's."""
        left_out = {*(() if headline else HEADLINE_ONLY), *(() if self.mauve else ["mauve"])}
        names = [name for name in self._metrics if name not in left_out]
        scores, absent = self._scores(texts, names)
        looks = {} if self.real is None or "self_bleu" not in scores else suspicions(scores, self._real_scores)
        record = {"texts": texts.record, **(scores["gen_ppl"].record if "gen_ppl" in scores else {})}
        ratios = {name: one.ratio.rounded() for name, one in scores.items() if one.ratio}
        plain = {name: score.plain() for name, score in scores.items()}
        return {"scores": plain, "ratios": ratios, "suspicions": looks, "record": record, "absent": absent}

    def _scores(self, texts: Texts, names: list[str] | tuple[str, ...]) -> tuple[dict[str, Score], dict[str, str]]:
        """Scores, and why others cannot be had; those that need a judge or real text are absent without a word."""
        scores: dict[str, Score] = {}
        absent: dict[str, str] = {}
        context = {"judge": self.judge, "real": self.real and self.real.reference, "protocol": self.protocol}
        for name in names:
            try:
                scores |= self._metrics[name](texts, **context, store=self.store, seed=self.seed) or {}
            except Unavailable as error:
                absent[name] = str(error)
        return scores, absent

    @cached_property
    def _metrics(self) -> dict[str, Metric]:
        return METRICS if self.check is None else {**METRICS, self.check.name: self.check}

    @cached_property
    def _real_scores(self) -> dict[str, Score]:
        assert self.real is not None
        return self._scores(self.real.pool, DIVERSITY)[0]
