"""The tables of docs/chain.md: what heads beside `pocket` are worth, and what a step with one costs."""

from __future__ import annotations

from collections.abc import Iterator

from tools.results.runs import NOTHING, PLANS, Json, Run, Runs, Table, half, signed

COUNTS = (2, 4, 8, 16)
HEADS = {
    "small-muon": "2.0M, Muon", "blind-muon": "the same, blind to its step", "small-adamw": "2.0M, AdamW",
    "large-muon": "7.4M, Muon", "order-left_to_right": "2.0M, short: left to right",
    "order-plan": "2.0M, short: in the plan's order", "order-confidence": "2.0M, short: the surest first",
    "joint-0": "2.0M, short, the model as it is", "joint-2": "2.0M, short, with the model's last two blocks",
    "distil": "2.0M, short, from the model's own draws", "comb": "2.0M, for `comb` alone, on a CPU",
    "blind": "the same, blind to its step, a quarter of the steps",
}  # fmt: skip
EVERY_PLAN = ("teacher", "small-muon")  # of the others `comb` alone is shown
MEASURED = ("chain", "cpu-chain")


def chain(runs: Runs) -> Table:
    """N-step NELBO of every head that was kept, beside none."""
    level = runs["plans-prose"].bound("teacher", "permutation", 256)
    assert level, "one token a step was measured"
    rows = list(_rows(runs["plans-prose"], level, "teacher"))
    for run in (runs[name] for name in MEASURED if name in runs):
        for model in HEADS:
            rows += _rows(run, level, model)
    note = (
        f"`pocket`, {level['n']} blocks of 18 held-out books: N-step NELBO in nats a token more than one token a step "
        f"in random order ({level['per_token'][0]:.4f}). ± is half of the paired 95% interval, where both were "
        "measured in one run. *Steps* are those of the head's training."
    )
    return Table(note, ["head", "steps", "plan", *(f"N = {N}" for N in COUNTS)], rows)


def _rows(run: Run, level: Json, model: str) -> Iterator[list[str]]:
    """A row for each plan that a head was measured on."""
    about = run.said["models"].get(model, {})
    for plan in ("comb", "stride", "golden", "iid"):
        cells = [_above(run, level, model, plan, N) for N in COUNTS]
        if any(cells) and (plan == "comb" or model in EVERY_PLAN):
            name = "none" if model == "teacher" else HEADS[model]
            yield [name, f"{about['head_steps']:,}" if "head_steps" in about else "", PLANS[plan], *cells]


def _above(run: Run, level: Json, model: str, plan: str, steps: int) -> str:
    """Above one token a step: paired where the run has it, else above what another run has on the same blocks."""
    found = run.bound(model, plan, steps)
    if found is None:
        return ""
    assert found["n"] == level["n"], "other texts"
    paired = run.above(model, plan, steps)
    return half(paired, sign=True) if paired else signed(found["per_token"][0] - level["per_token"][0])


def chain_cost(runs: Runs) -> Table:
    """A step with a trained head and without: what it takes, and what it is worth at equal seconds."""
    timed = [runs[f"{name}-bench"].said for name in MEASURED if f"{name}-bench" in runs]
    note = (
        "`unmask bench chain`, trained heads beside `pocket`: milliseconds a text, rounds a step, the time over that "
        "without the head, the time of speculative acceptance over that of the rounds, the speed over that of a causal "
        "model of the same size with a cache, and the NELBO less that of the model alone *at equal seconds*, in nats a "
        "token (below 0: the head is worth its time)."
        if timed else "the cost of a trained head"
    )  # fmt: skip
    head = ["machine", "plan", "batch", "N", "ms, no head", "ms, with it", "rounds", "× no head", "acceptance ×",
            "× causal's speed", "NELBO at equal seconds"]  # fmt: skip
    return Table(note, head, [row for said in timed for row in _costs(said)])


def _costs(said: Json) -> Iterator[list[str]]:
    """A row for each batch and number of steps with the head."""
    took = {(one["name"], one["batch"], one["steps"]): one for one in said["lines"]}
    causal = {batch: one["seconds"] for (name, batch, _), one in took.items() if name == "causal, cached"}
    for (name, batch, N), one in took.items():
        if name != "head, gumbel":
            continue
        alone, slower = took["no head", batch, N], took["head, acceptance", batch, N]["seconds"] / one["seconds"]
        yield [
            said["record"]["device"], f"`{said['record']['plan']}`", f"{batch}", f"{N}", f"{alone['ms_per_text']:,.0f}",
            f"{one['ms_per_text']:,.0f}", f"{one['rounds']:.1f}", f"{one['over_without']:.2f}", f"{slower:.2f}",
            f"{causal[batch] / one['seconds']:.1f}" if batch in causal else NOTHING,
            half(one.get("less_at_equal_seconds"), sign=True),
        ]  # fmt: skip
