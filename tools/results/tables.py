"""The tables of docs/, each made from committed runs. A page names them by the keys of TABLES."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from tools.results.runs import Json, Run

Runs = Mapping[str, Run]
NOTHING = "–"
PLANS = {
    "iid": "`iid` (published)",
    "iid@cosine": "`iid` on the cosine grid",
    "permutation": "`permutation`",
    "golden": "`golden`",
    "van_der_corput": "`van_der_corput`",
    "stride": "`stride`",
    "dilated": "`dilated`",
    "rotation": "`rotation`",
    "comb": "`comb`",
    "left_to_right": "`left_to_right`",
    "rising": "`comb` in ascending order",
    "comb@uniform": "`comb` on the grid `uniform`",
    "hop": "`comb` that hops three places a step",
    "twice": "`comb` that sweeps over every second class, then over the others",
    "golden@cosine": "`golden` on the cosine grid",
    "golden@grid-golden.json": "`golden` on the fitted grid",
}
TEACHERS = {  # what it is: the run with its NELBOs, and the runs of its samples by judge
    "`pocket`, 6.3M, L = 256": ("plans-study-judge", "headline"),
    "DiT small, L = 1024, first": ("scale-first-study-judge", "scale-first"),
    "DiT small, L = 1024, seed 0": ("scale-study-judge", "scale"),
    "DiT small, L = 1024, seed 1": ("scale-again-study-judge", "scale-again"),
}
JUDGES = ("study-judge", "smollm2")


@dataclass(frozen=True)
class Table:
    """A note, a head and rows."""

    note: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        rule = ["---", *["---:"] * (len(self.head) - 1)]
        lines = ["| " + " | ".join(words) + " |" for words in (self.head, rule, *self.rows)]
        return "\n".join([self.note, "", *lines])


# --- numbers in words ------------------------------------------------------------------------------------------------


def signed(value: float | None, digits: int = 3) -> str:
    return NOTHING if value is None else f"{value:+.{digits}f}".replace("-", "−")


def half(score: Sequence[float] | None, digits: int = 3, sign: bool = False) -> str:
    """value ± half of the 95% interval."""
    if not score:
        return NOTHING
    value, low, high = score
    mark = "+" if sign else ""
    return f"{value:{mark}.{digits}f} ± {(high - low) / 2:.{digits}f}".replace("-", "−")


def ppl(cell: Json | None) -> str:
    """Gen PPL, with a digit behind the point only where it is small."""
    return half(cell["gen_ppl"], 1 if cell["gen_ppl"][0] < 100 else 0) if cell and "gen_ppl" in cell else NOTHING


def percent(one: Json | None, other: Json | None) -> str:
    """Gen PPL of one less the other's, in per cent, with the 95% interval of two independent sets of texts."""
    if not one or not other:
        return NOTHING
    value, low, high = log_ratio(one["gen_ppl"], other["gen_ppl"])
    ends = [100 * math.expm1(end) for end in (value, low, high)]
    return f"{ends[0]:+.0f}% [{ends[1]:+.0f}, {ends[2]:+.0f}]".replace("-", "−")


def log_ratio(one: Sequence[float], other: Sequence[float]) -> tuple[float, float, float]:
    """log(one / other) of two [value, low, high] whose texts have nothing in common."""
    value = math.log(one[0] / other[0])
    spread = math.hypot(*(math.log(high / low) / 2 for _, low, high in (one, other)))
    return value, value - spread, value + spread


def less(one: Sequence[float], other: Sequence[float]) -> str:
    """The same for a difference of two scores."""
    spread = math.hypot(*((high - low) / 2 for _, low, high in (one, other)))
    return f"{signed(one[0] - other[0])} ± {spread:.3f}"


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
        run = runs[name]
        level, measured = one_token_a_step(run)
        values = {plan: run.nats("teacher", plan, 8) for plan in ("iid", "golden", "stride")}
        above = {plan: None if value is None else value - level for plan, value in values.items()}
        share = {plan: NOTHING if a is None else f"{1 - a / (above['iid'] or 1):.0%}" for plan, a in above.items()}
        rows.append([
            teacher, f"{'' if measured else '≈ '}{level:.3f}", signed(above["iid"]), signed(above["golden"]),
            share["golden"], signed(above["stride"]), share["stride"],
        ])  # fmt: skip
    note = (
        "N-step NELBO on held-out books in nats a token: one token a step in random order (≈: extrapolated from "
        "`iid`), what 8 steps lose against it, and the share of `iid`'s loss that a spread plan removes."
    )
    head = ["teacher", "one token a step", "`iid` loses", "`golden` loses", "removed", "`stride` loses", "removed"]
    return Table(note, head, rows)


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


def few_steps(runs: Runs) -> Table:
    """Samples in few steps against one token a step, at one temperature."""
    rows = []
    for teacher, (_, name) in TEACHERS.items():
        judged = [runs[f"{name}-{judge}"] for judge in JUDGES]
        length = judged[0].said["settings"]["length"]
        for plan in ("iid", "golden"):
            for steps in (8, 16):
                cells = [
                    (run.cell("teacher", plan, steps), run.cell("teacher", "permutation", length)) for run in judged
                ]
                if any(one for one, _ in cells):
                    gaps = [less(a["path_gap"], b["path_gap"]) if a and b else NOTHING for a, b in cells]
                    rows.append([f"{teacher}: {PLANS[plan]}, {steps}", *(percent(a, b) for a, b in cells), *gaps])
    note = (
        "Both at T = 1, less one token a step in random order; below 0 is better. Gen PPL in per cent with its 95% "
        "interval, the path gap R in nats a byte with half of it. 4,096 or 1,024 texts at L = 256, 256 at L = 1024."
    )
    head = [
        "teacher: plan, steps",
        *(f"{score}, {judge}" for score in ("Gen PPL", "R") for judge in ("ours", "SmolLM2")),
    ]
    return Table(note, head, rows)


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


# --- trained models --------------------------------------------------------------------------------------------------


def finetuned(runs: Runs) -> Table:
    """The teacher trained on for the masks of a plan, three seeds of each."""
    run, seeds, counts = runs["matched-study-judge"], range(3), (4, 8)
    masks = {"A": "`iid`", "B": "`golden` in 8 steps", "C": "`golden` in 4 steps"}

    def nats(arm: str, steps: int) -> list[float]:
        found = [run.nats(f"{arm}-s{seed}", "golden", steps) for seed in seeds]
        return [value for value in found if value is not None]

    rows = [["the teacher, untouched", *(f"{run.nats('teacher', 'golden', steps):.4f}" for steps in counts), "", ""]]
    for arm, mask in masks.items():
        mine = [nats(arm, steps) for steps in counts]
        apart = [[a - b for a, b in zip(nats(arm, steps), nats("A", steps), strict=True)] for steps in counts]
        words = [
            "" if arm == "A" else f"{signed(mean(a), 4)} ({signed(min(a), 4)} to {signed(max(a), 4)})" for a in apart
        ]
        rows.append([f"{arm}: masks of {mask}", *(f"{mean(m):.4f}" for m in mine), *words])
    note = (
        "N-step NELBO on `golden`, nats a token: mean of three seeds, then the difference to A of the same seed (least "
        "to largest)."
    )
    return Table(note, ["trained on", "4 steps", "8 steps", "less A, 4 steps", "less A, 8 steps"], rows)


def _students(named: Mapping[str, tuple[Run, str]], second: Run | None, steps: int = 8) -> list[list[str]]:
    """Rows of models on golden at T = 1: Gen PPL with entropy, R, NELBO; `second` adds another judge."""
    rows = []
    for name, (run, model) in named.items():
        cells = [one.cell(model, "golden", steps) for one in (run, second) if one]
        entropy = cells[0] and f"{cells[0]['entropy'][0]:.3f}"
        gaps = [half(cell["path_gap"]) if cell else NOTHING for cell in cells]
        nats = run.nats(model, "golden", steps)
        rows.append([name, entropy or NOTHING, *map(ppl, cells), *gaps, NOTHING if nats is None else f"{nats:.3f}"])
    return rows


def rounds(runs: Runs) -> Table:
    """Students after five rounds beside the teacher."""
    first, second = (runs[f"rounds-{judge}"] for judge in JUDGES)
    named = {
        "teacher": "teacher", "ELBO control": "elbo-r5", "MCD, τ curriculum": "mcd-r5", "MCD, τ = 1": "mcd-tau1-r5",
        "MCD along `golden`, τ = 1": "mcd-golden-r5", "SDTT, τ curriculum": "sdtt-r5", "SDTT, τ = 1": "sdtt-tau1-r5",
        "CD4LM, τ curriculum": "cd4lm-r5", "CD4LM, τ = 1": "cd4lm-tau1-r5",
    }  # fmt: skip
    note = (
        "After five rounds, `golden` in 8 steps, T = 1, 1,024 texts. Entropy is of the words within a text (nats); R "
        "in nats a byte; NELBO in nats a token. ± is half of the 95% interval."
    )
    head = ["model", "entropy", "Gen PPL, ours", "Gen PPL, SmolLM2", "R, ours", "R, SmolLM2", "NELBO"]
    return Table(note, head, _students({name: (first, model) for name, model in named.items()}, second))


def ablation(runs: Runs) -> Table:
    """Variants of MCD after one round."""
    run = runs["ablation-study-judge"]
    named = {
        "teacher": "teacher", "reverse KL + CE (default)": "mcd-r1", "forward KL + CE": "forward-r1",
        "Jensen-Shannon + CE": "jsd-r1", "total variation + CE": "tvd-r1", "reverse KL alone": "no-ce-r1",
        "backward KL over all positions": "kl-backward-r1", "default at τ = 1": "mcd-tau1-r1",
        "forward KL + CE at τ = 1": "forward-tau1-r1", "a third of the rate": "slow-r1",
        "three times the rate": "quick-r1",
    }  # fmt: skip
    note = (
        "After one round of MCD, `golden` in 8 steps, T = 1, our judge, 1,024 texts; τ = 0.96 unless it says otherwise."
    )
    head = ["variant", "entropy", "Gen PPL", "R", "NELBO"]
    return Table(note, head, _students({name: (run, model) for name, model in named.items()}, None))


def teacher(runs: Runs) -> Table:
    """The search for a training recipe: one thing changed at a time, then two combinations."""
    changes = {
        "base": "base: AdamW, rate 1.5e-3, β₂ 0.98, warm-up 200, weight decay 0.05, batch 128", "lr3e-3": "rate 3e-3",
        "beta2.95": "β₂ 0.95", "exact": "exact counts of masks", "qk": "qk-norm", "muon": "Muon, rate 0.02",
        "muon-qk": "Muon and qk-norm", "muon-exact-b95": "Muon, exact counts, β₂ 0.95",
        "muon.04-exact-b95": "the same, Muon's rate 0.04",
    }  # fmt: skip
    found = {one["name"]: one for one in runs["teacher"].said["search"]}
    rows = []
    for name, words in changes.items():
        one = found[name]
        rows.append(
            [words, f"{one['ema']:.3f} ± {one['stderr']:.3f}", f"{min(one['ent']):.2f}", f"{one['ema_byte']:.3f}"]
        )
    note = (
        "24M parameters, L = 1024, 72 million tokens each, seed 0, the same batches: ELBO on the same 512 validation "
        "blocks (± a standard error; differences are paired, and surer), and the least attention entropy of a block, "
        "in nats."
    )
    return Table(note, ["change", "ELBO, nats a token", "attention entropy", "nats a byte"], rows)


def teacher_again(runs: Runs) -> Table:
    """Muon against AdamW at a lower rate."""
    names = {
        "muon": "Muon, rate 0.02",
        "adamw-b95": "AdamW, rate 7e-4, β₂ 0.95",
        "adamw-b98": "AdamW, rate 7e-4, β₂ 0.98",
    }
    found = {one["name"]: one for one in runs["teacher"].said["again"]}
    rows = [
        [words, f"{one['elbo']:.3f} ± {one['stderr']:.3f}", f"{min(one['ent']):.2f}"]
        for words, one in ((words, found[name]) for name, words in names.items())
    ]
    note = (
        "`unmask train`, 24M parameters, L = 1024, 72 million tokens each, exact counts, warm-up 200, then linear to "
        "0, weight decay 0.05, batch 128, seed 0; 512 validation blocks."
    )
    return Table(note, ["optimiser", "ELBO, nats a token", "attention entropy"], rows)


TABLES: dict[str, Callable[[Runs], Table]] = {
    table.__name__.replace("_", "-"): table
    for table in (
        lost, plans, plans_verse, plans_code, orders, copying, drift, few_steps, grids, finetuned, rounds, ablation,
        teacher, teacher_again,
    )
}  # fmt: skip
