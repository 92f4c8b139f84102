"""The best plan for a model, and its best grid: a search over settings, then a shortest path.

N-step NELBO scores any locked plan exactly: each candidate on the grid `rank`, by teacher forcing. The best one's grid
is then fitted.

Positions are ranked by u and cut into M levels of equal share. A step from level a to level b costs the mean of
-log p(x_i | levels below a) summed over the levels a .. b-1; it does not depend on the other steps, so the N-step NELBO
of a grid is the length of a path with N edges from level 0 to level M. One forward for each start a prices every b,
and a small dynamic programme finds the best path, for all numbers of steps up to N at once. A chain's head runs once
for every pair (a, b).

The grid is fitted on the first half of the texts; the second half, which it has not seen, says what it is worth, with
the errors of real text everywhere: those of documents.

Shapes: T texts, L positions, M levels, R views in a forward; costs run from level a < M (A) to level b <= M (B).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from unmask.checkpoint.io import Checkpoint, load
from unmask.core import provenance
from unmask.core.errors import UserError
from unmask.core.files import check_writable, write_json
from unmask.core.ranks import Ranks, interleaved, joined
from unmask.core.streams import stream
from unmask.core.verbs import verb
from unmask.data.shards import INDEX
from unmask.inference.categorical import Law
from unmask.inference.ready import Precision, Ready, make_ready, usual_batch
from unmask.inference.step_law import Factorised, StepLaw
from unmask.metrics.score import Ratio, Score, difference
from unmask.metrics.texts import Texts, clusters, held_out, prepared
from unmask.models.denoiser import check_denoiser
from unmask.plans.grids import Grid, assign_steps, make_grid
from unmask.plans.laws import Turning
from unmask.plans.plan import USUAL, LeftToRight, Locked, Plan, make_plan
from unmask.processes.masked import mask_of
from unmask.processes.schedule import Schedule
from unmask.sampling.teacher_forcing import Advance, Forced, score_features, teacher_force

RIVALS = ("rank", "cosine")  # what a fitted grid is compared with
LEAST_TEXTS = 4  # two on either side, for a standard error
Progress = Callable[[int, int], None]  # views done, of how many


@dataclass(frozen=True)
class Worth:
    """What a grid is worth on text that it was not fitted on."""

    grid: Grid
    nelbo: Score  # nats per token
    fitted_minus_this: Score  # of the same texts and plans, so that most of the noise cancels
    nfe: float
    tokens_a_step: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        def plain(score: Score) -> dict[str, float]:
            return {"nats": score.value, "stderr": score.stderr, "low": score.low, "high": score.high}

        less, steps = plain(self.fitted_minus_this), list(self.tokens_a_step)
        return {**plain(self.nelbo), "fitted_minus_this": less, "nfe": self.nfe, "tokens_a_step": steps}


@dataclass(frozen=True)
class FittedPlan:
    """The grid, what it and its rivals are worth, and the best paths of 1 .. N steps (costs of the fitting half).

    Where the plan's order depends on the number of steps, paths of fewer would cut another order: then only that of N.
    """

    grid: Grid
    plan: str
    worth: dict[str, Worth]
    paths: list[Edges]
    record: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """`sample --grid` reads this back (grids.read_grid)."""
        grids = [(path.cost, path.grid()) for path in self.paths]
        return {
            "grid": self.grid.to_json(), "plan": self.plan, "steps": self.grid.steps,
            "nelbo": {name: worth.to_json() for name, worth in self.worth.items()},
            "fitting_half": [{"steps": one.steps, "nats": cost, "times": list(one.times)} for cost, one in grids],
            "record": self.record,
        }  # fmt: skip


@verb
def fit_plan(
    model: Checkpoint | str | Path,
    data: str | Path | Sequence[str | Path],
    steps: int = 8,
    *,
    plans: Sequence[str] = (USUAL,),
    texts: int = 64,
    split: Literal["validation", "test"] | None = None,
    wrap: bool = False,
    levels: int | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    overwrite: bool = False,
    batch: int | None = None,
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto",
    precision: Literal["auto", "bf16", "fp32"] = "auto",
    progress: Progress | None = None,
) -> FittedPlan:
    """Find the best locked plan and grid of N steps for a model, and say what they are worth.

    On the first half of the texts it tries every plan with its settings (drift and direction of comb), and fits the
    best one's grid by dynamic programming. On the second half it compares with the grids `rank` and `cosine`, and
    with the first plan as it comes. It writes a file for `unmask sample --plan PLAN --grid FILE`.

    Args:
        model: a checkpoint's folder or name
        data: held-out text: folders made by `unmask prepare` with the model's tokenizer, a text file, or `sample`,
            which is what `unmask prepare sample` holds out
        steps: N, the number of steps
        plans: plans to choose from; of comb and rotation without settings (comb:drift=0.5) all that copy at every lag
        texts: how many held-out texts to take, evenly spaced
        split: which held-out part of prepared folders or the sample (default: validation); a text file has none
        wrap: texts as MDLM makes them: BOS, length - 2 tokens, EOS
        levels: places where a step may end (default: 4 for each step, at least 32); the work grows with them
        seed: names the draws of the plan
        out: the .json file to write
        overwrite: replace a file that is already there
        progress: called with the views that are done, and of how many

    Machine:
        batch: texts in a forward
        device: where to run
        precision: of the network; auto is bf16 on CUDA, else fp32
    """
    target = None if out is None else Path(out)
    with joined(device) as ranks:
        if target is not None:
            ranks.on_first(lambda: _check_target(target, overwrite))
        checkpoint = model if isinstance(model, Checkpoint) else load(model)
        if not checkpoint.process.by_plan:
            raise UserError(f"the process {checkpoint.process.name} draws every position at every step: it has no plan "
                            "to fit")  # fmt: skip
        folders = [data] if isinstance(data, (str, Path)) else list(data)
        read = _held_out(checkpoint, str(model), folders, texts, split, wrap)
        facts = {"data": list(map(str, folders)), "split": read.record["split"], "wrap": wrap}
        fitted = fit_on(
            checkpoint, read.tokens_TL, steps, document_T=read.document_T, plans=plans, levels=levels, seed=seed,
            batch=batch, device=device, precision=precision, progress=progress, facts=facts,
        )  # fmt: skip
        if target is not None:
            ranks.on_first(lambda: write_json(target, fitted.to_json()))
    return fitted


def _check_target(out: Path, overwrite: bool) -> None:
    if out.suffix != ".json":
        raise UserError(f"--out is a .json file, which `unmask sample --grid` knows by its ending, not {out}")
    if out.exists() and not overwrite:
        raise UserError(f"{out} exists: name another file, or say --overwrite")
    check_writable(out)


def _held_out(
    checkpoint: Checkpoint, name: str, data: Sequence[str | Path], texts: int, split: str | None, wrap: bool
) -> Texts:
    """Blocks of the model's length, evenly spaced over the held-out text."""
    if texts < LEAST_TEXTS:
        raise UserError(f"--texts must be at least {LEAST_TEXTS}: half to fit on, half to measure on")
    tokenizer, length = checkpoint.tokenizer, checkpoint.model.length
    if len(data) > 1 or (Path(data[0]) / INDEX).is_file():
        return prepared(data, tokenizer, length, count=texts, split=split, wrap=wrap, owner=name)
    if tokenizer is None:
        raise UserError(f"{name} has no tokenizer to read text with: give folders made by `unmask prepare`")
    return held_out(data[0], tokenizer, length, count=texts, split=split, wrap=wrap)


def fit_on(
    checkpoint: Checkpoint, texts_TL: Tensor, steps: int = 8, *, document_T: Tensor | None = None,
    plans: Sequence[str | Plan] = (USUAL,), levels: int | None = None, seed: int = 0, batch: int | None = None,
    device: str = "auto", precision: Precision = "auto", progress: Progress | None = None,
    facts: dict[str, Any] | None = None,
) -> FittedPlan:  # fmt: skip
    """The same on texts that are tokens already.

    `document_T` says which document each text is cut from (default: all are of one). Under torchrun the processes share
    the texts and all return the same. `facts` (where the texts are from) join the record.
    """
    model, candidates = checkpoint.model, [one for plan in plans for one in _candidates(plan)]
    check_denoiser(model)
    T, L = texts_TL.shape
    levels = choose_levels(levels, steps, L)
    if T < LEAST_TEXTS:
        raise UserError(f"there are {T} texts of {L} tokens, and fitting needs at least {LEAST_TEXTS}: give more")
    if batch is not None and batch < 1:
        raise UserError(f"batch must be at least 1, not {batch}")
    half = T // 2
    with joined(device) as ranks:
        if half < ranks.world:
            raise UserError(f"{T} texts for {ranks.world} processes: give each at least two, or take fewer processes")
        body = make_ready(model, ranks.device, precision)
        rows = batch or usual_batch(model, ranks.device)
        own, schedule = checkpoint.step_law, checkpoint.process.schedule
        fits = [_Fit(body, own, one, schedule, texts_TL, steps, seed, rows, ranks) for one in candidates]
        tried = len(fits) * (len(fits) > 1)
        views = half * (levels + steps * tried) + (T - half) * steps * (1 + len(RIVALS))
        done = 0

        def advance(more: int) -> None:
            nonlocal done
            done += more * ranks.world  # as if the others were as far
            if progress:
                progress(min(done, views), views)

        rank = make_grid("rank", steps)
        nats = [float(fit.forced(rank, range(half), advance).nats_T.mean()) for fit in fits[:tried]]
        fit = fits[nats.index(min(nats))] if nats else fits[0]
        plan = fit.plan
        paths = shortest_paths(fit.costs(range(half), levels, advance), steps)
        paths = paths[-1:] if isinstance(plan, Locked) and plan.for_steps else paths
        cluster_T = clusters((torch.zeros(T, dtype=torch.int64) if document_T is None else document_T)[half:])
        first = fits[0] if fit is not fits[0] else None
        worth = fit.compare(paths[-1].grid(), range(half, T), cluster_T, advance, first)
        record = provenance.record(
            ranks.device, model=checkpoint.provenance, plan=plan.name, step_law=own.name, levels=levels, seed=seed,
            precision=body.precision, forwards=sum(ranks.gather(body.forwards)),
            chosen_from={one.name: value for one, value in zip(candidates, nats, strict=False)},
            texts={
                "fitted_on": half, "measured_on": T - half, "clusters": len(cluster_T.unique()), "length": L,
                "sha256": hashlib.sha256(texts_TL.numpy().tobytes()).hexdigest(), **(facts or {}),
            },
        )  # fmt: skip
    return FittedPlan(paths[-1].grid(), plan.name, worth, paths, record)


def choose_levels(levels: int | None, steps: int, length: int) -> int:
    """Four a step unless others are asked for, at least 32, at most one a position: so the grid `rank` can be found."""
    if steps < 1:
        raise UserError(f"steps must be at least 1, not {steps}")
    if steps > length:
        raise UserError(f"{steps} steps for texts of {length} tokens: at most one step a token")
    if levels is None:
        return min(max(4, math.ceil(32 / steps)) * steps, length)
    if not steps <= levels <= length:
        raise UserError(f"levels must lie between the {steps} steps and the {length} tokens of a text, not {levels}")
    return levels


def _candidates(plan: str | Plan) -> list[Locked | LeftToRight]:
    """A plan, and where it is named without settings its other choices."""
    one = _one_order(make_plan(plan))
    choices = one.law.choices if isinstance(one, Locked) and isinstance(one.law, Turning) else ()
    if not isinstance(plan, str) or ":" in plan:
        return [one]
    return [one, *(_one_order(make_plan(f"{plan}:{choice}")) for choice in choices)]


def _one_order(plan: Plan) -> Locked | LeftToRight:
    """A grid cuts one order of all positions into steps: only plans that have one can be fitted."""
    if isinstance(plan, (Locked, LeftToRight)):
        return plan
    why = f"a grid cannot be fitted for {plan.name!r}, whose order of positions is not known beforehand"
    raise UserError(f"{why}: take a locked plan such as golden or iid, or left_to_right")


@dataclass(frozen=True)
class _Fit:
    """What stays the same between the two halves."""

    body: Ready
    step_law: StepLaw
    plan: Locked | LeftToRight
    schedule: Schedule
    texts_TL: Tensor
    steps: int
    seed: int
    rows: int
    ranks: Ranks

    def mine(self, texts: range) -> list[int]:
        return list(texts[self.ranks.rank :: self.ranks.world])

    def costs(self, texts: range, levels: int, advance: Advance | None) -> Tensor:
        """The cost of every step, in nats per token, over the texts of all processes."""
        share = self.mine(texts)
        x_TL = self.texts_TL[share]
        blank_TL = torch.ones_like(x_TL, dtype=torch.bool)
        u_TL = self.plan.u(blank_TL, self.steps, [stream(self.seed, "reveal", i) for i in share])
        cells = self.plan.cells(self.steps) if isinstance(self.plan, Locked) else 1
        level_TL = assign_steps(u_TL, blank_TL, make_grid("rank", levels), self.schedule, cells)
        nll_AB = step_costs(self.body, x_TL, level_TL, levels, self.step_law, u_TL, rows=self.rows, advance=advance)
        nll_AB = torch.tensor(self.ranks.gather(nll_AB.tolist()), dtype=torch.float64).sum(0)
        if not bool(nll_AB.isfinite().all()):
            raise UserError("the model gives a held-out token no probability (or none at all): its grid has no NELBO")
        return forward_only(nll_AB / (len(texts) * x_TL.shape[1]))

    def compare(
        self, fitted: Grid, texts: range, cluster_T: Tensor, advance: Advance | None, first: _Fit | None = None
    ) -> dict[str, Worth]:
        """The fitted grid and its rivals on the same texts, by teacher forcing; `first`: another plan on `rank`."""
        grids = {"fitted": fitted, **{name: make_grid(name, self.steps) for name in RIVALS}}
        forced = {name: self.forced(grid, texts, advance) for name, grid in grids.items()}
        if first:
            grids[first.plan.name] = grids["rank"]
            forced[first.plan.name] = first.forced(grids["rank"], texts, advance)
        ratios = {name: Ratio.mean(one.nats_T).together(cluster_T) for name, one in forced.items()}
        return {name: self.worth(grids[name], forced[name], ratios[name], ratios["fitted"]) for name in grids}

    def forced(self, grid: Grid, texts: range, advance: Advance | None) -> Forced:
        """Teacher forcing of the texts, shared out and put together again."""
        share = self.mine(texts)
        part = teacher_force(
            self.body, self.texts_TL[share], self.plan, grid, self.schedule,
            step_law=self.step_law, seed=self.seed, indices=share, rows=self.rows, advance=advance,
        )  # fmt: skip
        # in the order of the text, as documents are
        log_q_TL, step_TL = (interleaved(self.ranks.gather(of_TL.tolist())) for of_TL in (part.log_q_TL, part.step_TL))
        return Forced(torch.tensor(log_q_TL, dtype=torch.float64), torch.tensor(step_TL))

    def worth(self, grid: Grid, forced: Forced, mine: Ratio, fitted: Ratio) -> Worth:
        """A grid's NELBO, and what the fitted one has less on the same texts."""
        tokens_S = torch.bincount(forced.step_TL.flatten(), minlength=grid.steps) / len(forced.step_TL)
        nelbo = Score.of(mine, "nats/token", {}, seed=self.seed)
        less = difference(fitted, mine, "nats/token", {}, seed=self.seed)
        return Worth(grid, nelbo, less, float(forced.nfe_T.double().mean()), tuple(tokens_S.tolist()))


@dataclass(frozen=True)
class Edges:
    """A grid as the levels its steps end at, 0 = e_0 < e_1 < ... < e_N = M, and its cost."""

    edges: tuple[int, ...]
    cost: float

    def grid(self) -> Grid:
        return Grid("fitted", tuple(1 - edge / self.edges[-1] for edge in self.edges), by="rank")


@torch.inference_mode()
def step_costs(
    body: Ready, x_TL: Tensor, level_TL: Tensor, levels: int, step_law: StepLaw, u_TL: Tensor, *, rows: int = 8,
    advance: Advance | None = None,
) -> Tensor:  # fmt: skip
    """nll[a, b]: the sum over texts of -log q of the tokens of levels a .. b-1 in one step; 0 for b <= a. Where tokens
    of a step are independent, one pass of the vocabulary head serves all b of an a."""
    nll_AB, alone = torch.zeros(levels, levels + 1, dtype=torch.float64), isinstance(step_law, Factorised)
    for view_R in torch.arange(len(x_TL) * levels).split(rows):
        text_R, a_R = view_R // levels, view_R % levels
        x_RL, level_RL, hidden_RL = x_TL[text_R], level_TL[text_R], level_TL[text_R] >= a_R[:, None]
        z_RL = torch.where(hidden_RL, mask_of(body.states), x_RL)
        h_ND = body.features(z_RL.to(body.device)).flatten(0, 1)
        for b in [levels] if alone else range(1, levels + 1):
            scored_RL = hidden_RL & (level_RL < b)
            if not bool(scored_RL.any()):
                continue
            nll_RL = -score_features(body, h_ND, x_RL, scored_RL, Law(), step_law, u_RL=u_TL[text_R])
            if alone:
                nll_RM = torch.zeros(len(view_R), levels, dtype=torch.float64).scatter_add_(1, level_RL, nll_RL)
                nll_AB.index_add_(0, a_R, F.pad(nll_RM.cumsum(1), (1, 0)))
            else:
                nll_AB.index_put_((a_R, torch.tensor(b)), nll_RL.sum(1), accumulate=True)
        if advance:
            advance(len(view_R))
    return nll_AB


def forward_only(nll_AB: Tensor) -> Tensor:
    """The same, infinite for b <= a, since a step goes forward."""
    return nll_AB.masked_fill(torch.ones_like(nll_AB, dtype=torch.bool).tril(), torch.inf)


def shortest_paths(cost_AB: Tensor, steps: int) -> list[Edges]:
    """The cheapest path with n edges, n = 1 .. steps: best_n(b) = min over a of best_{n-1}(a) + cost(a, b)."""
    best_B, parents, paths = cost_AB[0], [], []
    for n in range(1, steps + 1):
        if n > 1:
            best_B, parent_B = (best_B[:-1, None] + cost_AB).min(0)
            parents.append(parent_B.tolist())
        edges = [cost_AB.shape[0]]
        for parent in reversed(parents):
            edges.append(parent[edges[-1]])
        paths.append(Edges((0, *reversed(edges)), float(best_B[-1])))
    return paths
