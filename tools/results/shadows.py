"""The tables about the uniform process (studies/duo): what both shadows are worth, and how fast Duo is.

Where a study was not run yet, its table is empty; the same call fills it in once its file is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tools.results.frontier import gap, path
from tools.results.runs import NOTHING, Json, Run, Runs, Table, half, not_yet, ppl

NAMES = {
    "mdlm": "masked (MDLM)", "duo": "uniform (Duo)", "curriculum": "uniform after the curriculum",
    "mcd": "masked, MCD", "mcd-plain": "masked, MCD with τ = 1", "dcd": "uniform, DCD", "ar": "causal (exact)",
}  # fmt: skip
TEXT = "both on `pocket`'s text, by likelihood and by a judge"  # what those tables wait for
STUDY, MAUVE, SAMPLING, TRAINING = "shadows", "shadows-mauve", "bench-duo-sampler", "bench-duo"


def _counts(found: Sequence[Json]) -> list[int]:
    return sorted({one["steps"] for one in found if one["steps"]})


def _drawn(found: Sequence[Json]) -> list[tuple[str, str]]:
    """Models and plans, in the order of NAMES."""
    pairs = dict.fromkeys((one["model"], one["plan"]) for one in found if one["model"] in NAMES and one["steps"])
    return sorted(pairs, key=lambda pair: [*NAMES].index(pair[0]))


def shadows_bounds(runs: Runs) -> Table:
    """N-step NELBOs of all models."""
    if STUDY not in runs:
        return not_yet(TEXT)
    run = runs[STUDY]
    said, counts = run.said["likelihood"], _counts(run.said["likelihood"])
    whole = {name: run.bound(name, None, None) for name in NAMES}
    rows = [[NAMES["ar"], "", half(whole["ar"]["per_token"]), *[NOTHING] * len(counts)]] if whole["ar"] else []
    for model, plan in _drawn(said):
        each = [whole[model], *(run.bound(model, plan, N) for N in counts)]
        rows.append([NAMES[model], f"`{plan}`", *(half(one["per_token"]) if one else NOTHING for one in each)])
    note = f"N-step NELBO of {said[0]['n']} held-out blocks in nats a token, ± half of the 95% interval."
    return Table(note, ["model", "plan", "continuous time", *(f"N = {N}" for N in counts)], rows)


def _by_steps(runs: Runs, note: str, shown: Callable[[Json], str]) -> Table:
    """A row a model and plan, a column a number of steps, at T = 1."""
    if STUDY not in runs:
        return not_yet(TEXT)
    run = runs[STUDY]
    counts, rows = _counts(run.said["cells"]), []
    for model, plan in _drawn(run.said["cells"]):
        cells = [run.cell(model, plan, N) for N in counts]
        rows.append([NAMES[model], f"`{plan}`", *(NOTHING if one is None else shown(one) for one in cells)])
    for one in run.said["cells"]:
        if one["model"] == "ar" and one["temperature"] == 1:
            rows.append([NAMES["ar"], "one token a step", shown(one), *[NOTHING] * (len(counts) - 1)])
    texts = max(one["n"] for one in run.said["cells"] if one["model"] in NAMES)
    note = f"{texts} texts a cell, T = 1, judge {run.judge}: {note} `greedy_tail` takes a forward more than its steps."
    return Table(note, ["model", "plan \\ steps", *map(str, counts)], rows)


def shadows_ppl(runs: Runs) -> Table:
    """Gen PPL with the entropy of the tokens."""
    note = "Gen PPL (protocol `mdlm`) ± half of the 95% interval, in brackets the unigram entropy in nats."
    return _by_steps(runs, note, lambda one: f"{ppl(one)} ({one['entropy'][0]:.2f})")


def shadows_nats(runs: Runs) -> Table:
    """The judge's nats a byte with the own entropy, where there is one."""

    def shown(one: Json) -> str:
        own = f" ({one['sampler_entropy'][0]:.2f})" if "sampler_entropy" in one else ""
        return half(one["judge_nll"]) + own

    note = "the judge's nats a byte ± half of the 95% interval, in brackets the own entropy (uniform models have none)."
    return _by_steps(runs, note, shown)


def shadows_students(runs: Runs) -> Table:
    """MCD's students beside the masked model, at its own entropy."""
    if STUDY not in runs:
        return not_yet(TEXT)
    run = runs[STUDY]
    counts = _counts(run.said["cells"])
    rows = []
    for model in ("mcd", "mcd-plain"):
        for plan in ("comb", "iid"):
            found = [gap(run, run.cell(model, plan, N), path(run, "mdlm", plan, N)) for N in counts]
            rows.append([NAMES[model], f"`{plan}`", *(half(one, sign=True) for one in found)])
    note = (
        "The judge's nats a byte of MCD's students less those of the masked model in as many steps, at equal own "
        "entropy (below 0 is better, – not enclosed), ± half of the 95% interval. DCD's student has no own entropy."
    )
    return Table(note, ["model", "plan \\ steps", *map(str, counts)], rows)


def shadows_mauve(runs: Runs) -> Table:
    """MAUVE by the judge's features."""
    if MAUVE not in runs:
        return not_yet(TEXT)
    run = runs[MAUVE]
    cells = run.said["cells"]
    counts = _counts(cells)
    found = {(c["model"], c["plan"], c["steps"]): c for c in cells}
    rows = [
        [NAMES[at[0]], f"`{at[1]}`", *(half(found.get((*at, N), {}).get("mauve")) for N in counts)]
        for at in _drawn(cells)
    ]
    note = f"MAUVE, T = 1, features of {run.judge}, {cells[0]['n']} texts on each side: so few only describe."
    return Table(note, ["model", "plan \\ steps", *map(str, counts)], rows)


def speed_duo_sampling(runs: Runs) -> Table:
    """`unmask bench sampler --process uniform`."""
    if SAMPLING not in runs:
        return not_yet("Duo's sampling step")
    run = runs[SAMPLING]
    ratios = {one["steps"]: one for one in run.said["ratios"]}
    rows = []
    for line in run.said["lines"]:
        ratio = ratios.get(line["steps"], {}) if line["name"] == "ours" else {}
        faster = [f"{ratio[key]:.1f}" if key in ratio else "" for key in map("faster than {}".format, PLAIN)]
        name = f"{line['name']}, {line['steps']} steps" if line["steps"] else line["name"]
        rows.append([name, f"{line['ms_per_sequence_step']:.3f}", f"{line['over_body']:.2f}", *faster, _gib(line)])
    head = ["", "ms per sequence and step", "× body alone", *(f"faster than {name}" for name in PLAIN), "peak GiB"]
    shape, batch, plan = run.said["model"], run.said["batch"], run.said["record"]["plan"]
    about = f"K = {shape['vocab_size']:,}, L = {shape['length']}, batch {batch}, `{plan}`"
    return Table(f"{_where(run)}: {about}.", head, rows)


PLAIN = ("plain, our body", "plain, eager body")


def speed_duo_training(runs: Runs) -> Table:
    """`unmask bench duo`."""
    if TRAINING not in runs:
        return not_yet("its training step and curriculum")
    run = runs[TRAINING]
    said = run.said
    rows, ratio = [], []
    for one in said["lines"]:
        rows.append([one["name"], f"{one['tokens_per_second']:,.0f}", f"{one['flops_share']:.0%}", _gib(one)])
    for name, one in said["ratios"].items():
        memory = f" in {one['memory']:.0%} of the memory" if "memory" in one else ""
        ratio.append(f"{name}: {one['speed']:.2f} times the tokens a second{memory}")
    note = f"{_where(run)}: {said['batch']} sequences of {said['length']}. Ours against plain, {'; '.join(ratio)}."
    return Table(note, ["", "tokens/s", "share of matmul rate", "peak GiB"], rows)


def _where(run: Run) -> str:
    record = run.said["record"]
    return f"{record['device']}, torch {record['torch']}, {record['time'][:10]}"


def _gib(line: Json) -> str:
    return "" if line["peak_gib"] is None else f"{line['peak_gib']:.1f}"
