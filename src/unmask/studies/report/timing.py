"""The tables of a report in which time counts: the causal rival, equal wall-clock, tokens a second."""

from __future__ import annotations

from unmask.studies.analysis import contenders
from unmask.studies.report.tables import NONE, Table, halved, head_of, with_numbers
from unmask.studies.results import Cell, Results


def rival(results: Results) -> Table:
    """The causal model beside masked ones on the chosen plan: likelihood, path gap, and seconds a text."""
    plan, names = results.analysis["best_plan"], [*results.named("teacher"), *contenders(results)]
    headline = results.where(temperature=results.temperature)
    causal = [(cell, results.bound(cell.model, None, None)) for cell in headline if cell.model in results.named("ar")]
    masked = [(cell, results.bound(name, plan, steps)) for name in names for steps in results.steps
              for cell in headline if (cell.model, cell.plan, cell.steps) == (name, plan, steps)]  # fmt: skip
    batches = sorted({int(batch) for cell, _ in causal + masked for batch in cell.timed})
    rows = [
        [
            cell.model if cell.steps else f"{cell.model}\ncausal, with a cache",
            str(cell.steps or results.settings["length"]),
            NONE if bound is None else halved(bound.scores["per_byte"]) + ("" if cell.steps else "\nexact"),
            *(halved(cell.scores.get(name)) for name in ("path_gap", "sampler_entropy")),
            NONE if not cell.seconds else f"{cell.seconds / cell.n:.3g}",
            *(f"{cell.timed[str(batch)]:.3g}" if str(batch) in cell.timed else NONE for batch in batches),
        ]
        for cell, bound in causal + masked
    ]
    head = ["", "forwards", "nats a byte", "R", "own entropy", "s a text", *(f"batch {batch}" for batch in batches)]
    note = (
        f"Masked models on {plan}. Nats a byte are of held-out text: a causal model's are exact, the others are "
        "bounds, so a causal model's lead is at most what the table says; its first token is not scored, which favours "
        "it a little. Seconds a text as the cells were drawn, and in batches that were timed (--timed)."
    )
    return Table("The causal rival", head, rows if causal else [], note)


def wall_clock(results: Results) -> Table:
    rows = [
        [
            f"{pair['ar']}\nT = {pair['temperature']:g}",
            f"{pair['seconds']:.3g} s",
            _pair(pair["ar_nats"], pair["ar_entropy"]),
            f"{pair['model']}\n{pair['plan']}",
            NONE if pair["nfe"] is None else f"{pair['nfe']:.1f}",
            NONE if pair["entropy"] is None else _pair(pair["nats"], pair["entropy"]),
            "" if pair["found"] == "=" else pair["found"],
        ]
        for pair in results.analysis["wall_clock"]
    ]
    nats = "judge's nats, own entropy"
    head = ["causal model", "a text", nats, "student", "NFE in that time", nats, ""]
    note = "The causal model writes with a cache of keys and values, in the same batches on the same machine."
    return Table("At equal wall-clock", head, rows, note)


def _pair(*values: float | None) -> str:
    return "\n".join(NONE if value is None else f"{value:.3f}" for value in values)


def speed(results: Results) -> Table:
    rows = []
    for name in [*results.named("teacher"), *contenders(results)]:
        for plan in results.plans:
            at = {"model": name, "plan": plan, "temperature": results.temperature}
            rows.append([f"{name}\n{plan}", *(_rate(results.one(steps=steps, **at)) for steps in results.steps)])
    rows = with_numbers(rows)
    for name in results.named("ar"):
        rate = _rate(results.one(model=name, temperature=results.temperature))
        if rate != NONE:
            rows.append([f"{name}\ncausal, with a cache", rate, *("" for _ in results.steps[1:])])
    runs = results.provenance.get("merged") or [results.provenance]
    machines = dict.fromkeys(str(run.get("device", "this machine")) for run in runs)
    note = f"Tokens a second on {' and '.join(machines)}; milliseconds a text beneath; – where it was not timed."
    return Table("Speed", head_of(results, "tokens/s"), rows, note)


def _rate(cell: Cell | None) -> str:
    rate = cell.tokens_per_second if cell else None
    if cell is None or rate is None:
        return NONE
    return f"{rate:,.0f}\n{1000 * (cell.seconds or 0) / cell.n:,.1f} ms"
