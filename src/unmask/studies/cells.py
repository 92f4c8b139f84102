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
from unmask.metrics import registry
from unmask.metrics.nelbo import elbo, nelbo
from unmask.metrics.texts import Texts, of_samples
from unmask.sampling.causal import sample_causal
from unmask.sampling.samples import Samples
from unmask.sampling.verbs import sample
from unmask.studies.entries import Entry
from unmask.studies.fingerprint import causal_behaviour
from unmask.studies.measure import Measure
from unmask.studies.plans_on_grids import PlanOnGrid
from unmask.studies.results import Bound, Cell, Json
from unmask.studies.study import Study

CAUSAL = "causal"  # the plan of a cell that was written from left to right
SHOWN = 4  # texts of a cell that a report may show
TIMED = 4  # texts that are timed at the least
Kept = TypeVar("Kept")


@dataclass
class Progress:
    """Counts cells and bounds; `tell` is called with what is being done, how many are done, and of how many."""

    tell: Callable[[str, int, int], None] | None = None
    total: int = 0
    done: int = 0

    def say(self, what: str, finished: int = 0) -> None:
        self.done += finished
        if self.tell:
            self.tell(what, self.done, self.total)


@dataclass(frozen=True)
class Drawn:
    """Samples and the seconds they took, with what those belong to: what is kept before any judge is asked."""

    samples: Samples
    seconds: float
    timing: Json

    def to_json(self) -> Json:
        drawn = self.samples
        numbers = {"tokens": drawn.tokens.tolist(), "log_q": drawn.log_q.sum(1).tolist(), "nfe": drawn.nfe.tolist()}
        return {**numbers, "seconds": self.seconds, "timing": self.timing, "record": drawn.record}

    @classmethod
    def from_json(cls, said: Json) -> Drawn:
        tokens_nL, nfe_n = torch.tensor(said["tokens"]), torch.tensor(said["nfe"])
        log_q_n1 = torch.tensor(said["log_q"], dtype=torch.float64)[:, None]
        samples = Samples(tokens_nL, tokens_nL < 0, log_q_n1, nfe_n, [], said["record"])
        return cls(samples, said["seconds"], said["timing"])


@dataclass(frozen=True)
class Place:
    """Where a cell stands: a model at a plan (None: it is causal), a number of steps, a temperature and a top-p."""

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
        does = self.plan.does(self.steps, self.temperature, self.entry.checkpoint)
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

    def cell(self, place: Place) -> Cell:
        """A model's cell: found, or drawn and scored."""
        self.progress.say(str(place))
        study, judge, real = self.study, self.measure.judge, self.measure.real
        drawn = [place.entry.identity, place.law(), study.n, study.seed, study.precision, self.ranks.device.type]
        close = place.temperature == self.headline and place.top_p == 1
        scored = [
            drawn, judge and [judge.id, study.protocol], close and [study.mauve], registry.fingerprint(),
            self.measure.check and self.measure.check.source,
            real and [real.pool.record["sha256"], real.reference.record["sha256"]],
        ]  # fmt: skip
        cell = self._find("", scored, Cell.from_json)
        if cell is None:
            cell = self._score(place, self._samples(place, drawn), close)
            self._keep("", scored, cell.to_json())
        self.progress.say(str(place), finished=1)
        cell = replace(cell, model=place.entry.name, plan=place.plan_name, timed=self._timed(place) if close else {})
        return cell if cell.record.get("timing") == self._timing(place) else replace(cell, seconds=None)

    def given(self, name: str, texts: Texts) -> Cell:
        """A cell of texts that were not drawn here."""
        self.progress.say(name)
        found = self.measure(texts, close=True)
        self.progress.say(name, finished=1)
        where = (name, None, None, None, len(texts), None, None, sum(map(len, texts.rows)))
        return Cell(*where, **found, samples=tuple(texts.strings[:SHOWN]))

    def _samples(self, place: Place, key: list[Any]) -> Drawn:
        found = self._find(".samples", key, Drawn.from_json)
        if found is None:
            if place.entry.identity not in self._warm:  # the first draw of a model pays for its start
                self._draw(place, self._warming(place.entry))
                self._warm.add(place.entry.identity)
            start = time.perf_counter()
            samples = self._draw(place, self.study.n)
            found = Drawn(samples, time.perf_counter() - start, self._timing(place))
            self._keep(".samples", key, found.to_json())
        return found

    def _timed(self, place: Place) -> dict[str, float]:
        """Seconds a text in each batch that is to be timed: of some texts, after as many for a start."""
        found = {}
        for batch in self.study.timed:
            key = ["seconds", place.entry.identity, place.law(), batch, self.study.precision, self._timing(place)]
            seconds = self._find(".seconds", key, lambda said: float(said["seconds"]))
            if seconds is None:
                n = batch * max(1, TIMED // batch)
                self._draw(place, batch, batch)
                start = time.perf_counter()
                self._draw(place, n, batch)
                seconds = (time.perf_counter() - start) / n
                self._keep(".seconds", key, {"seconds": seconds})
            found[str(batch)] = seconds
        return found

    def _draw(self, place: Place, n: int, batch: int | None = None) -> Samples:
        how = {**self._how, "seed": place.seed(self.study.seed), "temperature": place.temperature}
        how |= {} if batch is None else {"batch": batch}
        checkpoint, plan, steps = place.entry.checkpoint, place.plan, place.steps
        if plan is None:
            return sample_causal(checkpoint, n, **how)
        how |= {"plan": plan.plan, "grid": plan.at(steps), "top_p": place.top_p, "compile": self.study.compile}
        return sample(checkpoint, n, steps, **how)

    @property
    def _how(self) -> Json:
        return {name: getattr(self.study, name) for name in ("seed", "batch", "device", "precision")}

    def _timing(self, place: Place) -> Json:
        """What the seconds of a cell belong to, beside what names the cell; a causal model is never compiled.

        All this, and the batch too, moves a text by rounding only: the same noise, the same law. So it names no cell.
        """
        compiled, machine = self.study.compile and place.plan is not None, provenance.device_name(self.ranks.device)
        return {"compile": compiled, "batch": self.study.batch, "processes": self.ranks.world, "device": machine}

    def _warming(self, entry: Entry) -> int:
        """Texts that start a model; compiled, a whole batch for every process: no shape is new to the timed draw."""
        rows = self.study.batch or usual_batch(entry.checkpoint.model, self.ranks.device)
        return min(self.study.n, rows * self.ranks.world) if self.study.compile else 1

    def _score(self, place: Place, drawn: Drawn, close: bool) -> Cell:
        entry, samples = place.entry, drawn.samples
        texts = of_samples(samples, entry.checkpoint.tokenizer, sha256=entry.sha256, name=entry.name)
        found = self.measure(texts, close=close)
        found["record"]["timing"] = drawn.timing
        nfe, tokens = float(samples.nfe.double().mean()), int((samples.tokens >= 0).sum())
        where = (entry.name, place.plan_name, place.steps, place.temperature, len(texts), nfe, drawn.seconds, tokens)
        return Cell(*where, **found, samples=tuple(texts.strings[:SHOWN]), top_p=place.top_p)

    def bound(self, entry: Entry, plan: PlanOnGrid | None, steps: int, texts: Texts) -> Bound:
        """NELBO on a plan in so many steps; without a plan, the ELBO."""
        what = f"{entry.name}, " + (f"NELBO, {plan.name}, {steps} steps" if plan else "ELBO")
        self.progress.say(what)
        law = plan and [plan.law(steps), steps, plan.does(steps, 1.0, entry.checkpoint)]
        place = [self.study.seed, self.study.precision, texts.record["sha256"], self.ranks.device.type]
        key = ["bound", entry.identity, law, *place]
        bound = self._find("", key, Bound.from_json)
        if bound is None:
            if plan is None:
                found = elbo(entry.checkpoint, texts, masks=4, **self._how)
            else:
                how = {**self._how, "compile": self.study.compile}
                found = nelbo(entry.checkpoint, texts, steps, plan=plan.plan or "", grid=plan.at(steps), **how)
            scores = {name: getattr(found, name).plain() for name in ("per_token", "per_byte", "perplexity")}
            assert found.per_token.ratio is not None
            ratio, record = found.per_token.ratio.rounded(), found.per_token.record
            assert found.per_byte.ratio is not None
            sizes = tuple(int(size) for size in found.per_byte.ratio.bottom_n)  # of what was scored
            bound = Bound(entry.name, None, steps if plan else None, found.nfe, scores, ratio, record, sizes)
            self._keep("", key, bound.to_json())
        self.progress.say(what, finished=1)
        return replace(bound, model=entry.name, plan=plan.name if plan else None)

    # --- the folder ---------------------------------------------------------------------------------------------------

    def _find(self, kind: str, key: list[Any], read: Callable[[Json], Kept]) -> Kept | None:
        """What an earlier run finished; a file that is damaged, or that `read` cannot take, is made again."""
        if self.folder is None:
            return None
        path = self._path(kind, key)

        def look() -> Json | None:
            try:
                said = read_json(path, "cell") if path.is_file() else None
                if said is not None:
                    read(said)
                return said
            except (UserError, LookupError, TypeError, ValueError, AttributeError, AssertionError):
                return None

        found = self.ranks.on_first(look)
        return None if found is None else read(found)

    def _keep(self, kind: str, key: list[Any], said: Json) -> None:
        if self.folder is not None:
            path = self._path(kind, key)
            self.ranks.on_first(lambda: write_text(path, json.dumps(said) + "\n"))

    def _path(self, kind: str, key: list[Any]) -> Path:
        assert self.folder is not None
        return self.folder / f"{key_of(*key)[:24]}{kind}.json"
