"""The tables of docs/ about plans and grids, made from committed runs."""

from __future__ import annotations

import math
from statistics import mean

from tools.results.runs import NOTHING, PLANS, TEACHERS, Json, Run, Runs, Table, half, signed, values, width


def one_token_a_step(run: Run) -> tuple[float, bool]:
    """NELBO of one token a step in random order; where it was not run, the limit that iid tends to.

    Each doubling of iid's steps halves what it loses, so that limit is 2 NELBO(2N) - NELBO(N). True: it was measured.
    """
    length = run.said["settings"]["length"]
    measured = run.nats("teacher", "permutation", length)
    if measured is not None:
        return measured, True
    iid = (b for b in run.said["likelihood"] if (b["model"], b["plan"]) == ("teacher", "iid"))
    known = {b["steps"]: b["per_token"][0] for b in iid}
    most = max(steps for steps in known if steps // 2 in known)
    return 2 * known[most] - known[most // 2], False


def lost(runs: Runs) -> Table:
    """What 8 steps lose by likelihood, in random order and on spread plans, for every teacher."""
    rows = []
    for teacher, (name, _) in TEACHERS.items():
        if name not in runs:
            continue
        run = runs[name]
        level, measured = one_token_a_step(run)
        values = {plan: run.nats("teacher", plan, 8) for plan in ("iid", "golden", "stride")}
        above = {plan: None if value is None else value - level for plan, value in values.items()}
        share = {plan: NOTHING if a is None else f"{1 - a / (above['iid'] or 1):.0%}" for plan, a in above.items()}
        one = f"{'' if measured else '≈ '}{level:.3f}"
        rows.append([
            teacher, one, _best_order(runs, teacher), signed(above["iid"]), share["golden"], share["stride"]
        ])  # fmt: skip
        if teacher == POCKET and (rival := rival_above(runs)):
            rows.append([
                "its causal rival (exact)", f"{rival[0]:.3f}", f"{signed(rival[1])} to random order", *[NOTHING] * 3,
            ])  # fmt: skip
    note = (
        "NELBO on held-out books, nats a token: one token a step in random order (≈: extrapolated from `iid`), what "
        "the best order that was run has more or less, what `iid` loses in 8 steps, and the share of that loss that "
        "spread plans remove. Other blocks than above, so numbers differ a little."
    )
    head = ["teacher", "one token a step", "best order", "`iid` loses", "`golden` removes", "`stride` removes"]
    return Table(note, head, rows)


POCKET = "`pocket`, 6.3M, L = 256"
RACES = {POCKET: "plans-prose", "24M, L = 1024": "teacher-24m"}  # with one token a step in several orders


def _best_order(runs: Runs, teacher: str) -> str:
    """One token a step in the best order that was run, less random order; `pocket`: on other blocks of the books."""
    if teacher not in RACES:
        return NOTHING
    best = best_order(runs[RACES[teacher]])
    return f"{half(best[1], sign=True)} ({PLANS[best[0]]})" if best else NOTHING


def best_order(run: Run) -> tuple[str, list[float]] | None:
    """The best order of one token a step and what it has more or less than a random one, if any other was run."""
    length = run.said["settings"]["length"]
    found = {plan: above for plan in PLANS if (above := run.above("teacher", plan, length))}
    return min(found.items(), key=lambda pair: pair[1][0]) if len(found) > 1 else None


def rival_above(runs: Runs) -> tuple[float, float] | None:
    """The exact likelihood of `pocket`'s causal rival, and that less one token a step in random order; None before it
    was run on the same 504 blocks."""
    found = runs["rival"].bound("ar", None, None) if "rival" in runs else None
    level = runs["plans-prose"].nats("teacher", "permutation", runs["plans-prose"].said["settings"]["length"])
    if found is None or level is None or found["n"] != runs["plans-prose"].said["settings"]["n"]:
        return None
    return found["per_token"][0], found["per_token"][0] - level


def plans(runs: Runs) -> Table:
    """The plans of the bundled teacher by likelihood."""
    run, counts = runs["plans-prose"], (2, 4, 8, 16, 32, 256)
    named = ("iid", "permutation", "golden", "van_der_corput", "stride", "dilated", "rotation", "comb", "left_to_right")
    rows = values({PLANS[plan]: [run.above("teacher", plan, n) for n in counts] for plan in named})
    note = (
        "N-step NELBO of `pocket`, less that of one token a step in random order (in brackets, nats a token), on "
        f"{_level(run, '18 held-out books')}. ± is half of the paired 95% interval."
    )
    return Table(note, ["plan \\ steps", *map(str, counts)], rows)


def plans_other(runs: Runs) -> Table:
    """The same on nine books of verse and on Python's standard library."""
    texts, counts = {"verse": runs["plans-verse"], "code": runs["plans-code"]}, (4, 8, 16, 256)
    named = ("iid", "golden", "stride", "rotation", "comb", "rising", "left_to_right")
    rows = values(
        {PLANS[plan]: [run.above("teacher", plan, n) for run in texts.values() for n in counts] for plan in named}
    )
    both = " and ".join(_level(run, text) for text, run in texts.items())
    return Table(f"The same on {both}.", ["plan \\ steps", *(f"{text}, {n}" for text in texts for n in counts)], rows)


def _level(run: Run, text: str) -> str:
    """What was scored, and what one token a step in random order has there."""
    found = run.bound("teacher", "permutation", run.said["settings"]["length"])
    assert found, "one token a step was measured"
    return f"{found['n']} blocks of {text} ({found['per_token'][0]:.4f})"


def _copies(runs: Runs, plan: str, steps: int) -> Json:
    return next(c for c in runs["copying"].said["cells"] if (c["plan"], c["steps"]) == (plan, steps))


def worst(runs: Runs, plan: str, steps: int) -> tuple[float, int, int]:
    """The least share of texts right, at which lag, and at how many iid is better by more than 3 standard errors."""
    cell, iid = _copies(runs, plan, steps), _copies(runs, "iid", steps)
    right = cell["right"]
    both = zip(right, cell["stderr"], iid["right"], iid["stderr"], strict=True)
    fails = sum(a - b < -3 * math.hypot(e, f) for a, e, b, f in both)
    return min(right), right.index(min(right)) + runs["copying"].said["lags"][0], fails


COUNTS = (4, 8, 16, 32)
DRIFTS = {"0": "comb-0.0", "0.15": "comb-0.15", "0.3": "comb-0.3", "0.5": "comb", "0.75": "comb-0.75", "1": "comb-1.0"}


def lags(runs: Runs) -> Table:
    """Copies at the worst lag with an exact denoiser, beside the likelihood; for `comb` by how far it may drift."""
    counts = COUNTS[:3]
    named = {PLANS[p]: p for p in ("iid", "golden", "van_der_corput", "stride", "dilated", "rotation")}
    named |= {f"`comb`, drift up to {most}{' (default)' * (plan == 'comb')}": plan for most, plan in DRIFTS.items()}
    found = {name: runs["plans-prose"].above("teacher", plan, 8) for name, plan in named.items()}
    rows = [
        [name, signed(above[0]), f"{mean(_copies(runs, plan, 8)['right']):.2f}", *(_lag(runs, plan, n) for n in counts)]
        for (name, plan), above in zip(named.items(), found.values(), strict=True) if above
    ]  # fmt: skip
    said = runs["copying"].said
    note = (
        f"NELBO of 8 steps on prose (± {max(width(above) for above in found.values() if above):.3f} at most), and the "
        "share of texts with 12 of 256 random digits copied right at lag d by an exact denoiser: in 8 steps in the "
        f"mean over d = {said['lags'][0]} to {said['lags'][1]}, then at the worst lag (which); **bold** where some lag "
        f"is below that of `iid` by more than 3 standard errors. Grid `uniform`, {said['texts']:,} draws, every place."
    )
    return Table(note, ["plan", "NELBO, 8", "mean, 8", *(f"worst, {n}" for n in counts)], rows)


def _lag(runs: Runs, plan: str, steps: int) -> str:
    least, lag, fails = worst(runs, plan, steps)
    return f"**{least:.2f} ({lag})**" if fails else f"{least:.2f} ({lag})"


def grids(runs: Runs) -> Table:
    """A grid fitted to the bundled teacher against the usual ones."""
    run, counts = runs["grids-bounds"], (4, 8, 16)
    rows = []
    for plan in ("golden", "golden@cosine", "golden@grid-golden.json"):
        bounds = [run.bound("teacher", plan, steps) for steps in counts]
        found = [b.get("less", b["per_token"]) if b else None for b in bounds]
        rows.append([PLANS[plan], *(half(one, 4, sign=plan != "golden") for one in found)])
    note = (
        "N-step NELBO of `golden` on the grid `rank` in nats a token, ± half of the 95% interval over books; below it, "
        "what other grids have more or less, paired over texts."
    )
    return Table(note, ["grid \\ steps", *map(str, counts)], rows)
