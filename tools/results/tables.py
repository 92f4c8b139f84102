"""The tables of docs/ about plans and grids, made from committed runs. A page names a table by its key in TABLES."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import mean

from tools.results.form import NOTHING, PLANS, TEACHERS, Runs, Table, half, signed
from tools.results.runs import Json, Run
from tools.results.trained import TRAINED

# --- plans -----------------------------------------------------------------------------------------------------------


def one_token_a_step(run: Run) -> tuple[float, bool]:
    """NELBO of one token a step in random order; where it was not run, the limit that iid tends to.

    Each doubling of iid's steps halves what it loses, so that limit is 2 NELBO(2N) - NELBO(N). True: it was measured.
    """
    length = run.said["settings"]["length"]
    measured = run.nats("teacher", "permutation", length)
    if measured is not None:
        return measured, True
    known = {
        b["steps"]: b["per_token"][0] for b in run.said["likelihood"] if (b["model"], b["plan"]) == ("teacher", "iid")
    }
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
        rows.append([
            teacher, f"{'' if measured else '≈ '}{level:.3f}", _best_order(runs, teacher), signed(above["iid"]),
            signed(above["golden"]), share["golden"], signed(above["stride"]), share["stride"],
        ])  # fmt: skip
        if teacher == POCKET and (rival := rival_above(runs)):
            rows.append([
                "its causal rival (exact)", f"{rival[0]:.3f}", f"{signed(rival[1])} to random order", *[NOTHING] * 5,
            ])  # fmt: skip
    note = (
        "N-step NELBO on held-out books in nats a token: one token a step in random order (≈: extrapolated from "
        "`iid`) and what the best order that was run has more or less, what 8 steps lose against random order, and the "
        "share of `iid`'s loss that a spread plan removes. Other blocks than in plans.md, so numbers differ a little."
    )
    head = [
        "teacher",
        "one token a step",
        "best order",
        "`iid` loses",
        "`golden` loses",
        "removed",
        "`stride` loses",
        "removed",
    ]
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


def _race(run: Run, text: str, named: Sequence[str], counts: Sequence[int]) -> Table:
    """Plans on one kind of text, by likelihood."""
    rows = [[PLANS[plan], *(half(run.above("teacher", plan, n), sign=True) for n in counts)] for plan in named]
    found = run.bound("teacher", "permutation", run.said["settings"]["length"])
    assert found, "one token a step was measured"
    note = (
        f"`pocket` on {found['n']} blocks of {text}: N-step NELBO less that of one token a step in random order "
        f"({found['per_token'][0]:.4f} nats a token), ± half of the paired 95% interval."
    )
    return Table(note, ["plan \\ steps", *map(str, counts)], rows)


RACED = ("iid", "permutation", "golden", "stride", "rotation", "comb")


def plans(runs: Runs) -> Table:
    """The plans of the bundled teacher by likelihood."""
    named = ("iid", "permutation", "golden", "van_der_corput", "stride", "dilated", "rotation", "comb", "left_to_right")
    return _race(runs["plans-prose"], "18 held-out books", named, (2, 4, 8, 16, 32, 64, 256))


def plans_verse(runs: Runs) -> Table:
    """The same on nine books of verse."""
    return _race(runs["plans-verse"], "nine books of verse", (*RACED, "left_to_right"), (2, 4, 8, 16, 32, 64, 256))


def plans_code(runs: Runs) -> Table:
    """The same on Python's standard library."""
    named = (*RACED, "rising", "left_to_right")
    return _race(runs["plans-code"], "Python's standard library", named, (2, 4, 8, 16, 32, 64, 256))


def orders(runs: Runs) -> Table:
    """Other orders of classes, and the comb by time."""
    named = ("comb", "comb@uniform", "rising", "hop", "twice", "stride")
    return _race(runs["plans-prose"], "18 held-out books", named, (4, 8, 16, 32))


def _copies(runs: Runs, plan: str, steps: int) -> Json:
    return next(c for c in runs["copying"].said["cells"] if (c["plan"], c["steps"]) == (plan, steps))


def worst(runs: Runs, plan: str, steps: int) -> tuple[float, int, int]:
    """The least share of texts right at a lag, that lag, and how many lags are copied less often than by iid.

    A lag counts where the difference is more than three of its standard errors.
    """
    cell, iid = _copies(runs, plan, steps), _copies(runs, "iid", steps)
    right = cell["right"]
    both = zip(right, cell["stderr"], iid["right"], iid["stderr"], strict=True)
    fails = sum(a - b < -3 * math.hypot(e, f) for a, e, b, f in both)
    return min(right), right.index(min(right)) + runs["copying"].said["lags"][0], fails


def _lags(runs: Runs, plan: str, steps: int) -> str:
    least, lag, fails = worst(runs, plan, steps)
    return f"{mean(_copies(runs, plan, steps)['right']):.2f}, {least:.2f} ({lag}), {fails}"


COUNTS = (4, 8, 16, 32)


def copying(runs: Runs) -> Table:
    """Copies at every lag, with an exact denoiser."""
    named = ("iid", "permutation", "golden", "van_der_corput", "stride", "dilated", "rotation", "comb")
    said = runs["copying"].said
    note = (
        "12 of 256 random digits copied at lag d, exact denoiser, grid `uniform`: the share of texts right in the mean "
        f"over d = {said['lags'][0]} to {said['lags'][1]}, at the worst lag (which), and how many lags are "
        f"below that of `iid` by more than 3 standard errors. {said['texts']:,} draws of each plan, every place."
    )
    rows = [[PLANS[plan], *(_lags(runs, plan, steps) for steps in COUNTS)] for plan in named]
    return Table(note, ["plan \\ steps", *map(str, COUNTS)], rows)


def drift(runs: Runs) -> Table:
    """How far a comb may drift: likelihood against the worst lag."""
    named = {
        "0": "comb-0.0",
        "0.15": "comb-0.15",
        "0.3": "comb-0.3",
        "0.5": "comb",
        "0.75": "comb-0.75",
        "1": "comb-1.0",
    }
    run = runs["plans-prose"]
    rows = [
        [
            name,
            *(half(run.above("teacher", plan, n), sign=True) for n in COUNTS),
            *(_short(runs, plan, n) for n in COUNTS),
        ]
        for name, plan in named.items()
    ]
    note = (
        "By the largest drift: N-step NELBO on prose as above, and the share of texts right at the worst lag (which); "
        "**bold** where some lag is copied less often than by `iid`."
    )
    return Table(note, ["drift up to", *(f"NELBO, {n}" for n in COUNTS), *(f"worst lag, {n}" for n in COUNTS)], rows)


def _short(runs: Runs, plan: str, steps: int) -> str:
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


TABLES: dict[str, Callable[[Runs], Table]] = {
    table.__name__.replace("_", "-"): table
    for table in (lost, plans, plans_verse, plans_code, orders, copying, drift, grids, *TRAINED)
}
