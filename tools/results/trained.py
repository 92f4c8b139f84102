"""The tables of docs/ about models that were trained, and about samples: each made from committed runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean

from tools.results.frontier import between, gap, own_entropy, path
from tools.results.runs import JUDGES, NOTHING, PLANS, TEACHERS, Json, Run, Runs, Table, half, ppl, signed, width

UNPAIRED = "± is half of the 95% interval, unpaired"


def few_steps(runs: Runs) -> Table:
    """Samples in few steps against one token a step, at its own entropy."""
    rows = []
    for teacher, (_, name) in TEACHERS.items():
        if not name:
            continue
        judged = [runs[f"{name}-{judge}"] for judge in JUDGES]
        length = judged[0].said["settings"]["length"]
        for plan in ("iid", "golden"):
            at = [(plan, 8), (plan, 16)]
            found = [between(run, few, ("permutation", length)) for few in at for run in judged]
            rows.append([f"{teacher}: {PLANS[plan]}", *_with_widest(found)])
    note = (
        "The judge's nats a byte in 8 and 16 steps less those of one token a step in random order at T = 1, the few "
        "steps' temperature set to equal own entropy (below 0 is better; – where none that was run encloses it). "
        f"{UNPAIRED}. 4,096 or 1,024 texts at L = 256, 256 at L = 1024."
    )
    return Table(note, ["teacher: plan", "8, ours", "8, SmolLM2", "16, ours", "16, SmolLM2", "± at most"], rows)


def _with_widest(found: Sequence[Sequence[float] | None]) -> list[str]:
    """Values without their intervals, then how wide one of these is at most."""
    known = [width(one) for one in found if one]
    return [*(signed(one[0]) if one else NOTHING for one in found), f"{max(known):.3f}"]


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


def _students(named: Mapping[str, str], runs: Sequence[Run], steps: int = 8) -> list[list[str]]:
    """Rows of models on golden at T = 1: own entropy, Gen PPL, the gap to the teacher by each judge, NELBO."""
    first, rows = runs[0], []
    for name, model in named.items():
        cells = [run.cell(model, "golden", steps) for run in runs]
        own = cells[0] and own_entropy(first, cells[0])
        gaps = [
            NOTHING if model == "teacher" else half(gap(run, cell, path(run, "teacher", "golden", steps)), sign=True)
            for run, cell in zip(runs, cells, strict=True)
        ]
        nats = first.nats(model, "golden", steps)
        last = NOTHING if nats is None else f"{nats:.3f}"
        rows.append([name, NOTHING if own is None else f"{own:.3f}", ppl(cells[0]), *gaps, last])
    return rows


def rounds(runs: Runs) -> Table:
    """Students after five rounds beside the teacher."""
    named = {
        "teacher": "teacher", "ELBO control": "elbo-r5", "MCD, τ curriculum": "mcd-r5", "MCD, τ = 1": "mcd-tau1-r5",
        "MCD along `golden`, τ = 1": "mcd-golden-r5", "SDTT, τ curriculum": "sdtt-r5", "SDTT, τ = 1": "sdtt-tau1-r5",
        "CD4LM, τ curriculum": "cd4lm-r5", "CD4LM, τ = 1": "cd4lm-tau1-r5",
    }  # fmt: skip
    note = (
        "After five rounds, `golden` in 8 steps, T = 1, 1,024 texts. Own entropy in nats a byte; *to the teacher*: the "
        "judge's nats a byte less those of the teacher in 8 steps, its temperature set to equal own entropy (below 0 "
        "is better, – not enclosed); NELBO of these 8 steps, nats a token, on other held-out blocks than plans.md. "
        f"{UNPAIRED}."
    )
    head = ["model", "own entropy", "Gen PPL, ours", "to the teacher, ours", "to the teacher, SmolLM2", "NELBO"]
    return Table(note, head, _students(named, [runs[f"rounds-{judge}"] for judge in JUDGES]))


def distilled(runs: Runs) -> Table:
    """The gain of the students with τ = 1 at equal own entropy, by plan and steps."""
    named = {"MCD": "mcd-tau1-r5", "MCD along `golden`": "mcd-golden-r5", "SDTT": "sdtt-tau1-r5"}
    places = [(f"{name}, {PLANS[plan]}", "rounds", model, plan)
              for name, model in named.items() for plan in ("iid", "golden")]  # fmt: skip
    places += [(f"MCD along `golden`, seed {seed}, `golden`", "headline", f"mcd-golden-r5-s{seed}", "golden")
               for seed in range(3)]  # fmt: skip
    rows = []
    for name, run_name, model, plan in places:
        judged = [runs[f"{run_name}-{judge}"] for judge in JUDGES]
        in_8, others = (
            [gap(run, run.cell(model, plan, n), path(run, "teacher", plan, n)) for n in counts for run in judged]
            for counts in ((8,), (4, 16, 64))
        )
        every = sorted(one for one in (*in_8, *others) if one)
        rows.append([name, *_with_widest([*in_8, every[-1], every[0]])[:-1], f"{max(map(width, every)):.3f}"])
    note = (
        "Students of five rounds with τ = 1: the judge's nats a byte less those of the teacher in as many steps at "
        "equal own entropy, in 8 steps, and the least and the largest gain in 4, 8, 16 and 64 to either judge (seeds: "
        f"to 16). {UNPAIRED}. 1,024 texts; rows with a seed 4,096. The teacher's temperature is the only control."
    )
    return Table(note, ["student, plan", "8, ours", "8, SmolLM2", "least", "largest", "± at most"], rows)


def ablation(runs: Runs) -> Table:
    """Variants of MCD after one round."""
    named = {
        "teacher": "teacher", "reverse KL + CE (default)": "mcd-r1", "forward KL + CE": "forward-r1",
        "Jensen-Shannon + CE": "jsd-r1", "total variation + CE": "tvd-r1", "reverse KL alone": "no-ce-r1",
        "backward KL over all positions": "kl-backward-r1", "default at τ = 1": "mcd-tau1-r1",
        "forward KL + CE at τ = 1": "forward-tau1-r1", "a third of the rate": "slow-r1",
        "three times the rate": "quick-r1",
    }  # fmt: skip
    note = (
        "After one round of MCD, `golden` in 8 steps, T = 1, our judge, 1,024 texts; τ = 0.96 unless it says so. "
        f"Columns as in [rounds](rounds.md). {UNPAIRED}."
    )
    head = ["variant", "own entropy", "Gen PPL", "to the teacher", "NELBO"]
    return Table(note, head, _students(named, [runs["ablation-study-judge"]]))


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
        ends = (f"{min(one['ent']):.2f}", f"{one['ema_byte']:.3f}")
        rows.append([words, f"{one['ema']:.3f} ± {one['stderr']:.3f}", *ends])
    note = (
        "24M parameters, L = 1024, 72 million tokens each, seed 0, the same batches: ELBO on the same 512 validation "
        "blocks (± a standard error; differences are paired, and surer), and the least attention entropy of a block, "
        "in nats."
    )
    return Table(note, ["change", "ELBO, nats a token", "attention entropy", "nats a byte"], rows)


def teacher_again(runs: Runs) -> Table:
    """Muon against AdamW at a lower rate."""
    names = {"muon": "Muon, rate 0.02", "adamw-b95": "AdamW, rate 7e-4, β₂ 0.95",
             "adamw-b98": "AdamW, rate 7e-4, β₂ 0.98"}  # fmt: skip
    found = {one["name"]: one for one in runs["teacher"].said["again"]}
    rows = []
    for name, words in names.items():
        elbo, stderr, least = (found[name]["elbo"], found[name]["stderr"], min(found[name]["ent"]))
        rows.append([words, f"{elbo:.3f} ± {stderr:.3f}", f"{least:.2f}"])
    note = (
        "`unmask train`, 24M parameters, L = 1024, 72 million tokens each, exact counts, warm-up 200, then linear to "
        "0, weight decay 0.05, batch 128, seed 0; 512 validation blocks."
    )
    return Table(note, ["optimiser", "ELBO, nats a token", "attention entropy"], rows)


NO_MODEL = ("real text", "parrot", "period", "mirror", "phrase bank")


def judged(runs: Runs) -> Table:
    """Few steps of three plans at T = 1, and less `comb` at equal own entropy."""
    run, rows = runs["judged-pocket-judge"], []
    for steps in (4, 8, 16):
        for plan in ("comb", "golden", "iid"):
            cell = run.cell("teacher", plan, steps)
            less = NOTHING if plan == "comb" else half(between(run, (plan, steps), ("comb", steps)), sign=True)
            rows.append([f"{PLANS[plan]}, {steps}", *_scores(cell), less])
    rows += [[name, *_scores(run.cell(name, None, None, None)), NOTHING] for name in NO_MODEL]
    note = (
        "`pocket`, T = 1, 192 texts a cell, `pocket-judge`: own entropy and judge's nats, both a byte; the energy "
        "distance of its features from real text (0 in the mean for real text); judge's nats less those of `comb` in "
        "as many steps, at equal own entropy (above 0 is worse). ± is half of the 95% interval, in the last column "
        "unpaired."
    )
    return Table(note, ["plan, steps", "own entropy", "judge's nats", "energy distance", "less `comb`"], rows)


def _scores(cell: Json | None) -> list[str]:
    return [half((cell or {}).get(name)) for name in ("sampler_entropy", "judge_nll", "energy_distance")]
