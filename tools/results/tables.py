"""The tables of each study, declared: which records, what are rows, columns and cells.

A section is a mapping from block names to tables; a page takes a whole section or single blocks. Refuses to
know files and pages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import mean, stdev
from typing import Any

from tools.results.names import plan_name, plan_order
from tools.results.pivot import NOTHING, Cell, Record, Table, beside, ends, forwards, pivot, score
from tools.results.studies import METHODS, Study

Blocks = dict[str, list[Table]]
HALF = "± is half the 95% interval."
PPL_ENTROPY = beside(score("gen_ppl"), score("entropy", 3), forwards)
GAP = score("path_gap", 3)
NATS = score("per_token", 4)
LAGS = (8, 16, 32)  # tokens
BY_LAG = beside(*(score(f"information_{lag}", 4, f"{lag}: ") for lag in LAGS))
COOLED = "at the best of its temperatures"
STUDENT_T = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # two-sided 95%, by the number of seeds


def tables(*found: Table | None) -> list[Table]:
    return [table for table in found if table is not None]


def by_plan(records: Sequence[Record], *, title: str, note: str, cell: Any) -> Table | None:
    """The commonest table: a plan a row, a number of steps a column."""
    return pivot(
        records, title=title, note=f"{note} {HALF}".strip(), rows="plan", columns="steps", cell=cell,
        corner="plan \\ steps", row=plan_name, order=plan_order,
    )  # fmt: skip


def hot(records: Sequence[Record], *roles: str) -> list[Record]:
    """Cells of sampled models at the headline's temperature."""
    return [r for r in records if r["hot"] and r["steps"] and r["role"] in roles]


def real_text(records: Sequence[Record]) -> str:
    """Real text's own score by this judge, which every other number should be read beside."""
    found = max((r for r in records if r["role"] == "real" and r.get("gen_ppl")), key=lambda r: r["n"], default=None)
    if found is None:
        return ""
    ppl, entropy = score("gen_ppl")([found]), score("entropy", 3)([found])
    return f"Real text: {ppl}, entropy {entropy} (n = {found['n']:,})."


# --- plans -----------------------------------------------------------------------------------------------------------


def plans(study: Study) -> Blocks:
    """Reveal plans of the teacher, without training."""
    quality, gap, mauve = [], [], []
    for judge in study.judged():
        cells = study.cells(judge)
        mine, beside_real = hot(cells, "teacher"), real_text(cells)
        note = f"First line Gen PPL, second unigram entropy in nats. {beside_real}"
        at = ", ".join(f"T = {temperature:g}" for temperature in sorted({r["temperature"] for r in mine}))
        title = f"Gen PPL and entropy, {at}, judge {judge}"
        quality.append(by_plan(mine, title=title, note=note, cell=PPL_ENTROPY))
        gap.append(by_plan(mine, title=f"Path gap R, judge {judge}", note="Nats per byte; lower is better.", cell=GAP))
        mauve.append(by_mauve(mine, judge))
    return {
        "quality": tables(*quality),
        "gap": tables(*gap),
        "nelbo": tables(*(nelbo(study, text) for text in ("prose", "verse"))),
        "mauve": tables(*mauve),
        "lags": tables(by_lag(study.cells())),
    }


def by_lag(records: Sequence[Record]) -> Table | None:
    """How much tokens of one text know of each other at a distance: what steps that reveal many at once lose first."""
    real = max((r for r in records if r["role"] == "real" and BY_LAG([r])), key=lambda r: r["n"], default=None)
    beside_real = f" Real text: {BY_LAG([real]).replace('<br>', ', ')}." if real else ""
    note = (
        f"Nats of mutual information between tokens {LAGS[0]}, {LAGS[1]} and {LAGS[2]} apart, of the 128 most frequent "
        f"and one symbol for the rest; no judge.{beside_real}"
    )
    title = "Information by distance, nothing cooled"
    return by_plan(hot(records, "teacher"), title=title, note=note, cell=BY_LAG)


def by_mauve(records: Sequence[Record], judge: str) -> Table | None:
    """Clouds of features of drawn texts and real ones."""
    note = "Share of the area under the divergence curve; 1 is real text."
    return by_plan(records, title=f"MAUVE, judge {judge}", note=note, cell=score("mauve", 3))


def nelbo(study: Study, text: str) -> Table | None:
    """The teacher's N-step NELBO on one kind of text, with its ELBO in the note."""
    bounds = [r for r in study.bounds(text) if r["role"] == "teacher"]
    whole = next((r for r in bounds if r["plan"] is None), None)
    note = "Nats per token; no judge." + (f" ELBO: {NATS([whole])}." if whole else "")
    to = next((r["to"] for r in bounds if "to" in r), None)
    if to is not None:
        note += f" Second line: less that of {plan_name(to)} on the same texts, 95%."
    told = [r for r in bounds if r["plan"]]
    return by_plan(told, title=f"N-step NELBO, held-out {text}", note=note, cell=beside(NATS, _less_than(to)))


def _less_than(plan: str | None) -> Cell:
    """The paired difference to that plan; a run that had another one first says nothing of it."""

    def words(records: Sequence[Record]) -> str:
        return ends(records[0]["less"], 4, sign=True) if plan and records[0].get("to") == plan else ""

    return words


def grids(study: Study) -> Blocks:
    """Grids fitted to the teacher: what fit-grid itself says, and the plans run on them."""
    fitted = [
        {**grid, "model": "teacher", "n": grid["measured_on"], "of": name, **_of_grid(worth)}
        for grid in study.entries("grids")
        for name, worth in grid["nelbo"].items()
    ]
    worth = pivot(
        fitted, title="N-step NELBO of the fitted grid and its rivals, on text it was not fitted on",
        note=f"Nats per token. {HALF} Second line: fitted less this, paired, 95%.",
        rows=lambda r: (r["plan"], r["steps"]), columns="of", cell=beside(NATS, _fitted_less), corner="plan, steps",
        row=lambda key: f"{plan_name(key[0])}, {key[1]} steps",
    )  # fmt: skip
    return {"worth": tables(worth), **plans(study)}


def _of_grid(worth: dict[str, Any]) -> Record:
    parts = {"per_token": worth, "less": worth["fitted_minus_this"]}
    return {key: [said[name] for name in ("nats", "low", "high")] for key, said in parts.items()}


def _fitted_less(records: Sequence[Record]) -> str:
    return "" if records[0]["of"] == "fitted" else ends(records[0]["less"], 4, sign=True)


# --- plan-matched fine-tuning ----------------------------------------------------------------------------------------


def matched(study: Study) -> Blocks:
    """Arms of several training seeds: mean and range of NELBO and R, and differences to the first arm."""
    over = "Mean over training seeds (lowest to highest)."

    def arms(records: Sequence[Record], title: str, cell: Any) -> Table | None:
        return pivot(
            [r for r in records if r["plan"]], title=title, note=over, rows="arm",
            columns=lambda r: (plan_order(r["plan"]), r["steps"]), cell=cell, corner="fine-tuned on",
            column=lambda key: f"{plan_name(key[0][1])}, {key[1]} steps", order=str,
        )  # fmt: skip

    found = [arms([r for r in study.bounds() if r["role"] != "real"], "N-step NELBO, nats per token", NATS)]
    for judge in study.judged():
        found.append(arms(hot(study.cells(judge), "student", "elbo"), f"Path gap R, judge {judge}", GAP))
    return {"arms": tables(*found), "against": tables(*_against(study))}


def _against(study: Study) -> list[Table | None]:
    made: list[Table | None] = []
    records = [one for one in study.entries("against") if one["plan"]]
    for kind, title in (("nelbo", "N-step NELBO, paired over texts"), ("path_gap", "path gap R")):
        mine = [r for r in records if r["score"] == kind]
        judges = list(dict.fromkeys(r["judge"] for r in mine))
        for judge in judges[:1] if kind == "nelbo" else judges:  # NELBO knows no judge, and stands with each
            rows = [
                [f"{r['arm']}, {plan_name(r['plan'])}, {r['steps']} steps", ends(r["difference"], 4, True), *_seeds(r)]
                for r in mine
                if r["judge"] == judge
            ]
            head = ["", "mean over seeds [95% over texts]", "95% over seeds", "each seed"]
            by = "" if kind == "nelbo" else f", judge {judge}"
            note = f"Nats per {'token' if kind == 'nelbo' else 'byte'}; below 0 is better."
            made.append(Table(f"Difference to {mine[0]['to']} of the same seed: {title}{by}", note, head, rows))
    return made


def _seeds(record: Record) -> tuple[str, str]:
    """Student's interval over training seeds, which is what a claim about the training rests on; and each seed."""
    each = record["each"]
    words = ", ".join(f"{value:+.4f}" for value in each).replace("-", "−")
    if len(each) not in STUDENT_T:
        return NOTHING, words
    half = STUDENT_T[len(each)] * stdev(each) / math.sqrt(len(each))
    return ends([mean(each), mean(each) - half, mean(each) + half], 4, True).split(" ", 1)[1], words


# --- distilled students ----------------------------------------------------------------------------------------------


def label(record: Record) -> str:
    """A student for people: what its provenance says, and the name it had on the command line."""
    said = [record[name] for name in ("method", "tau") if record.get(name)]
    return f"{', '.join(said)} (`{record['arm']}`)" if said else f"`{record['arm']}`"


def teacher_beside(records: Sequence[Record]) -> str:
    """The undistilled teacher at the same NFE and at equal entropy."""
    known = [record for record in records if "gap" in record]
    if known and not any("teacher_ppl" in record for record in known):
        return "teacher: not bracketed"
    return score("teacher_ppl", label="teacher ")(known)


def speed_up(records: Sequence[Record]) -> str:
    """Forwards the teacher needs on the same plan at equal entropy, over the student's."""
    said = [record["speed_up"] for record in records if "speed_up" in record]
    return "<br>".join(_times(one) for one in said)


def alike(records: Sequence[Record]) -> str:
    """Self-BLEU beside the teacher's at equal entropy, where a file has it; bold where the two surely differ."""
    said = [record["alike"] for record in records if record.get("alike")]
    marks = ["**" * one["differ"] for one in said]
    return "<br>".join(
        f"{mark}{one['student']:.3f}{mark}, teacher {one['teacher']:.3f}" for mark, one in zip(marks, said, strict=True)
    )


def _times(said: dict[str, Any]) -> str:
    if said["value"] is None:
        return "not bracketed"
    if said["low"] is None and said["high"] is None:  # where the teacher's scores hardly change with its steps
        return "cannot be told"
    sign = "" if said["relation"] == "=" else f"{said['relation']} "
    low, high = (said["low"] or 0.0), said["high"]
    return f"{sign}{said['value']:.2f}x [{low:.2f}, {'∞' if high is None else f'{high:.2f}'}]"


def at_best_temperature(records: Sequence[Record]) -> list[Record]:
    """The teacher where its R is lowest of several temperatures: cooling lowers it too, and takes no training."""
    found = []
    for steps in dict.fromkeys(r["steps"] for r in records):
        mine = [r for r in records if r["role"] == "teacher" and r["steps"] == steps and r.get("path_gap")]
        if len({r["temperature"] for r in mine}) > 1:
            best = min(mine, key=lambda r: r["path_gap"][0])
            found.append({**best, "method": COOLED, "cooled to": best["temperature"]})
    return found


def cooled_to(records: Sequence[Record]) -> str:
    return "<br>".join(f"T = {r['cooled to']:g}" for r in records if "cooled to" in r)


def students(study: Study, wanted: Callable[[Record], bool], what: str) -> list[Table]:
    """Students against steps: one table for each judge and plan, then NELBO and R."""
    found: list[Table | None] = []
    beneath = "Gen PPL; entropy in nats; the undistilled teacher's Gen PPL at the same NFE and at equal entropy."

    def by_steps(records: Sequence[Record], title: str, note: str, cell: Any) -> Table | None:
        return pivot(
            records, title=title, note=note, columns="steps", cell=cell, rows=lambda r: (label(r), r["round"]),
            corner="model \\ steps", order=lambda key: (key[0] != "`teacher`", not key[0].startswith(COOLED)),
            row=lambda key: key[0] + (f", round {key[1]}" if key[1] else ""),
        )  # fmt: skip

    for judge in study.judged():
        cells = study.cells(judge)
        mine, real = [r for r in hot(cells, "student", "elbo") if wanted(r)], real_text(cells)
        asked = {(r["plan"], r["steps"]) for r in mine}
        mine += [r for r in hot(cells, "teacher") if (r["plan"], r["steps"]) in asked]
        for plan in sorted({r["plan"] for r in mine}, key=plan_order):
            on, where = [r for r in mine if r["plan"] == plan], f"{plan_name(plan)}, judge {judge}"
            cell = beside(score("gen_ppl"), score("entropy", 3), teacher_beside, forwards)
            found.append(by_steps(on, f"{what}: {where}", f"{beneath} {HALF} {real}", cell))
            note = "The teacher's forwards on the same plan at equal entropy, over the student's; 95% intervals."
            known = [r for r in on if "speed_up" in r and r["speed_up"]["value"] is not None]
            if known:  # a table of nothing but "not bracketed" says nothing
                found.append(by_steps(on, f"Speed-up at equal entropy: {where}", note, speed_up))
            note = "Self-BLEU, and the teacher's in as many steps at equal entropy; bold where the two surely differ."
            found.append(by_steps(on, f"How alike texts are: {where}", note, alike))
            cooled = at_best_temperature([r for r in cells if (r["plan"], r["steps"]) in asked and r["plan"] == plan])
            note = f"Nats per byte. {HALF}" + (f" {COOLED.capitalize()}: that with the lowest R." if cooled else "")
            found.append(by_steps([*on, *cooled], f"Path gap R: {where}", note, beside(GAP, cooled_to)))
    bounds = [r for r in study.bounds() if r["plan"] and r["role"] in ("teacher", "student", "elbo")]
    for plan in sorted({r["plan"] for r in bounds}, key=plan_order):
        on = [r for r in bounds if r["plan"] == plan and (r["role"] == "teacher" or wanted(r))]
        if all(r["role"] == "teacher" for r in on):
            continue
        title, note = f"N-step NELBO on held-out text: {plan_name(plan)}", f"Nats per token; no judge. {HALF}"
        found.append(by_steps(on, title, note, NATS))
    return tables(*found)


def rounds(study: Study) -> Blocks:
    """The last rounds in full, and every round at 8 and 32 steps."""
    last = {5, 6, 7} if any((r["round"] or 0) >= 5 for r in study.cells()) else {_last(study)}
    found: list[Table | None] = []
    for judge in study.judged():
        cells = study.cells(judge)
        mine = [r for r in hot(cells, "student", "elbo") if r["steps"] in (8, 32) and r["round"]]
        for plan in sorted({r["plan"] for r in mine}, key=plan_order):
            before = [r for r in hot(cells, "teacher") if r["plan"] == plan and r["steps"] in (8, 32)]
            teacher = {r["steps"]: r for r in before}.values()  # it stands in several runs
            at = "; ".join(f"{r['steps']} steps {score('gen_ppl')([r])}, {score('entropy', 3)([r])}" for r in teacher)
            found.append(
                pivot(
                    [r for r in mine if r["plan"] == plan],
                    rows=label,
                    columns=lambda r: (r["steps"], r["round"]),
                    title=f"Round by round: {plan_name(plan)}, judge {judge}",
                    note=f"Gen PPL; entropy. Before round 1 (the teacher): {at}. {HALF}",
                    corner="student",
                    cell=beside(score("gen_ppl"), score("entropy", 3)),
                    column=lambda key: f"{key[0]} steps, R{key[1]}",
                )
            )
    return {"last": students(study, lambda r: r["round"] in last, "After the last rounds"), "each": tables(*found)}


def _last(study: Study) -> int:
    return max((r["round"] or 0 for r in study.cells()), default=0)


def ablation(study: Study) -> Blocks:
    """Variants of one method after round 1."""
    return {"variants": students(study, lambda r: r["round"] == 1 and r["method"] == METHODS["mcd"], "After round 1")}
