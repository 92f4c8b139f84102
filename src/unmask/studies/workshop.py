"""Where cells are made: drawn, timed, scored, and kept in a folder as soon as they are done.

Samples are kept by what made them (model, plan, steps, temperature, seed), scores by the samples, the judge and the
real text as well: another judge costs no sampling, the same call costs nothing. How long drawing took is stated only
where it was drawn as it would be now. Every cell draws from a seed of its own, so that cells are independent and may be
resampled one by one. Refuses to know which cells are wanted, and why.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from unmask.core import provenance
from unmask.core.errors import UserError
from unmask.core.files import read_json, write_text
from unmask.core.hashing import key_of
from unmask.core.ranks import Ranks
from unmask.core.streams import seed_of
from unmask.inference.ready import Precision, usual_batch
from unmask.metrics.nelbo import Likelihood, elbo, nelbo
from unmask.metrics.texts import Texts, of_samples
from unmask.plans.plan import make_plan
from unmask.sampling.causal import sample_causal
from unmask.sampling.sample import sample
from unmask.sampling.samples import Samples
from unmask.studies.entries import Entry
from unmask.studies.measure import Measure
from unmask.studies.results import Bound, Cell, Json
from unmask.studies.ways import Way

CAUSAL = "causal"  # the plan of a cell that was written from left to right
SHOWN = 4  # texts of a cell that a report may show
_VERSION = 3  # of what is kept
_CAUSALLY = [CAUSAL, "residual in float32"]  # which law: cells that were drawn in bf16 throughout are of another


@dataclass(eq=False)
class Workshop:
    """Makes cells, and keeps them in a folder; None: nothing is kept."""

    measure: Measure
    ranks: Ranks
    folder: Path | None
    n: int
    seed: int
    batch: int | None
    device: str
    precision: Precision
    compile: bool = False
    mauve_at: float | None = None
    progress: Callable[[str, int, int], None] | None = None
    done: int = 0
    planned: int = 0
    _warm: set[str] = field(default_factory=set)

    def plan(self, count: int) -> None:
        """So many more cells are coming."""
        self.planned += count

    def cell(self, entry: Entry, way: Way, steps: int, temperature: float) -> Cell:
        """A masked model's cell."""
        seed = self._seed(entry, way.identity(steps), steps, str(temperature))

        def draw(n: int) -> Samples:
            return sample(
                entry.checkpoint,
                n,
                steps,
                plan=way.plan,
                grid=way.at(steps),
                temperature=temperature,
                seed=seed,
                batch=self.batch,
                device=self.device,
                precision=self.precision,
                compile=self.compile,
            )

        return self._made(entry, way.name, _identity_of(way, steps), steps, temperature, draw)

    def causal(self, entry: Entry, temperature: float) -> Cell:
        """A causal model's cell: as many forwards as tokens, each of one position."""
        seed = self._seed(entry, CAUSAL, str(temperature))

        def draw(n: int) -> Samples:
            return sample_causal(
                entry.checkpoint,
                n,
                temperature=temperature,
                seed=seed,
                batch=self.batch,
                device=self.device,
                precision=self.precision,
            )

        return self._made(entry, CAUSAL, _CAUSALLY, None, temperature, draw)

    def given(self, name: str, texts: Texts) -> Cell:
        """A cell of texts that nobody drew."""
        found = self.measure(texts, with_mauve=self.mauve_at is not None)
        return Cell(
            model=name,
            plan=None,
            steps=None,
            temperature=None,
            n=len(texts),
            nfe=None,
            seconds=None,
            tokens=sum(map(len, texts.rows)),
            scores=found.scores,
            ratios=found.ratios,
            samples=tuple(texts.strings[:SHOWN]),
            suspicions=found.suspicions,
            record=found.record,
        )

    def _seed(self, entry: Entry, *where: str | int) -> int:
        """By the weights alone: so were the published cells drawn, and twins on another schedule may share noise."""
        return seed_of(self.seed, "cell", entry.sha256 or entry.name, *where) % 2**31

    def _identity(self, entry: Entry) -> str:
        """A network by what it is; an oracle, which has no weights, by its name as well."""
        return entry.identity if entry.sha256 else f"{entry.name} {entry.identity}"

    def _timing(self, plan: str) -> Json:
        """What the seconds of a cell belong to, beside what names the cell; a causal model is never compiled.

        All this, and the batch too, moves a text by rounding only: the same noise, the same law. So it names no cell.
        """
        compiled, machine = self.compile and plan != CAUSAL, provenance.device_name(self.ranks.device)
        return {"compile": compiled, "batch": self.batch, "processes": self.ranks.world, "device": machine}

    def _made(
        self,
        entry: Entry,
        plan: str,
        how: Any,
        steps: int | None,
        temperature: float,
        draw: Callable[[int], Samples],
    ) -> Cell:
        what = f"{entry.name}, {plan}" + (f", {steps} steps" if steps else "") + f", T = {temperature:g}"
        if self.progress:
            self.progress(what, self.done, self.planned)
        made = [
            _VERSION,
            self._identity(entry),
            how,
            steps,
            temperature,
            self.n,
            self.seed,
            self.precision,
            self.ranks.device.type,
        ]
        judge, real = self.measure.judge, self.measure.real
        with_mauve = temperature == self.mauve_at and plan != CAUSAL
        scored = [
            made,
            judge and [judge.id, self.measure.protocol],
            with_mauve,
            real and [real.pool.record["sha256"], real.reference.record["sha256"]],
        ]
        kept = self._kept(f"{key_of(*scored)[:24]}.json", Cell.from_json)
        if kept is None:
            samples = self._samples(entry, plan, made, draw)
            kept = self._score(entry, plan, steps, temperature, samples, with_mauve).to_json()
            self._keep(f"{key_of(*scored)[:24]}.json", kept)
        self.done += 1
        if self.progress:
            self.progress(what, self.done, self.planned)
        cell = Cell.from_json({**kept, "model": entry.name, "plan": plan})
        return cell if cell.record.get("timing") == self._timing(plan) else replace(cell, seconds=None)

    def _samples(self, entry: Entry, plan: str, made: list[Any], draw: Callable[[int], Samples]) -> Json:
        """Samples and the seconds they took, as JSON: what is kept before any judge is asked."""
        name = f"{key_of(*made)[:24]}.samples.json"
        kept = self._kept(name, _drawn)
        if kept is None:
            if self._identity(entry) not in self._warm:  # the first draw of a model pays for its start
                draw(self._warming(entry))
                self._warm.add(self._identity(entry))
            start = time.perf_counter()
            samples = draw(self.n)
            seconds = time.perf_counter() - start
            kept = {
                "tokens": samples.tokens.tolist(),
                "log_q": samples.log_q.sum(1).tolist(),
                "nfe": samples.nfe.tolist(),
                "seconds": seconds,
                "timing": self._timing(plan),
                "record": samples.record,
            }
            self._keep(name, kept)
        return kept

    def _warming(self, entry: Entry) -> int:
        """Texts that start a model; compiled, a whole batch for every process: no shape is new to the timed draw."""
        rows = self.batch or usual_batch(entry.checkpoint.model, self.ranks.device)
        return min(self.n, rows * self.ranks.world) if self.compile else 1

    def _score(
        self, entry: Entry, plan: str, steps: int | None, temperature: float, kept: Json, with_mauve: bool
    ) -> Cell:
        samples, seconds, timing = _drawn(kept)
        texts = of_samples(samples, entry.checkpoint.tokenizer, sha256=entry.sha256, name=entry.name)
        found = self.measure(texts, with_mauve=with_mauve)
        return Cell(
            model=entry.name,
            plan=plan,
            steps=steps,
            temperature=temperature,
            n=len(texts),
            nfe=float(samples.nfe.double().mean()),
            seconds=seconds,
            tokens=int((samples.tokens >= 0).sum()),
            scores=found.scores,
            ratios=found.ratios,
            samples=tuple(texts.strings[:SHOWN]),
            suspicions=found.suspicions,
            record={**found.record, "timing": timing},
        )

    # --- likelihood ---------------------------------------------------------------------------------------------------

    def bounds(self, entries: Sequence[Entry], ways: Sequence[Way], steps: Sequence[int], texts: Texts) -> list[Bound]:
        """NELBO of every masked model on every plan in every number of steps, and every model's ELBO."""
        wanted: list[tuple[Entry, Way | None, int]] = [(entry, None, 0) for entry in entries]
        wanted += [(e, way, n) for e in entries if e.role != "ar" for way in ways for n in steps]
        self.plan(len(wanted))
        return [self._bound(*one, texts) for one in wanted]

    def _bound(self, entry: Entry, way: Way | None, steps: int, texts: Texts) -> Bound:
        """NELBO on a way in so many steps; without one, the ELBO."""
        what = f"{entry.name}, " + (f"NELBO, {way.name}, {steps} steps" if way else "ELBO")
        if self.progress:
            self.progress(what, self.done, self.planned)
        made = [_VERSION, self._identity(entry), way and [_identity_of(way, steps), steps], self.seed, self.precision]
        name = f"{key_of('bound', *made, texts.record['sha256'], self.ranks.device.type)[:24]}.json"
        plan, asked = (way.name, steps) if way else (None, None)
        kept = self._kept(name, Bound.from_json)
        if kept is None:
            how: dict[str, Any] = {
                "seed": self.seed,
                "batch": self.batch,
                "device": self.device,
                "precision": self.precision,
            }
            if way is None:
                found = elbo(entry.checkpoint, texts, masks=4, **how)
            else:
                how |= {"compile": self.compile}
                found = nelbo(entry.checkpoint, texts, steps, plan=way.plan, grid=way.at(steps), **how)
            kept = _bound_of(entry.name, plan, asked, found).to_json()
            self._keep(name, kept)
        self.done += 1
        return Bound.from_json({**kept, "model": entry.name, "plan": plan})

    # --- the folder ---------------------------------------------------------------------------------------------------

    def _kept(self, name: str, shape: Callable[[Json], Any]) -> Json | None:
        """What an earlier run finished; a file that is damaged, or that `shape` cannot take, is made again."""
        if self.folder is None:
            return None
        path = self.folder / name

        def read() -> Json | None:
            try:
                said = read_json(path, "cell") if path.is_file() else None
                if said is not None:
                    shape(said)
                return said
            except (UserError, LookupError, TypeError, ValueError, AttributeError, AssertionError):
                return None

        found: Json | None = self.ranks.on_first(read)
        return found

    def _keep(self, name: str, what: Json) -> None:
        if self.folder is not None:
            path = self.folder / name
            self.ranks.on_first(lambda: write_text(path, json.dumps(what) + "\n"))


def _identity_of(way: Way, steps: int) -> Json:
    """Which law this is: the plan and the times, whatever they are called and wherever a file lies."""
    grid, plan = way.at(steps), make_plan(way.plan)
    said = plan.to_json() if plan.rule else plan.name  # settings too: ties once went to the left
    return {"plan": said, "times": grid.times, "by": grid.by, "argmax_tail": grid.argmax_tail}


def _drawn(kept: Json) -> tuple[Samples, float, Json]:
    """Kept samples without their strings, the seconds they took, and what those belong to."""
    tokens_nL, nfe_n = torch.tensor(kept["tokens"]), torch.tensor(kept["nfe"])
    log_q_n1 = torch.tensor(kept["log_q"], dtype=torch.float64)[:, None]
    return Samples(tokens_nL, tokens_nL < 0, log_q_n1, nfe_n, [], kept["record"]), kept["seconds"], kept["timing"]


def _bound_of(name: str, plan: str | None, steps: int | None, found: Likelihood) -> Bound:
    scores = {}
    for kind in ("per_token", "per_byte", "perplexity"):
        scores[kind] = getattr(found, kind).to_json()
        del scores[kind]["record"]
    return Bound(name, plan, steps, found.nfe, scores, found.token_ratio, found.per_token.record)
