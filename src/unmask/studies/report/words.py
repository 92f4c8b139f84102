"""What results mean, in plain words: a headline and a handful of sentences. Claims no more than the intervals allow.

Refuses to know pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from unmask.studies.report.tables import limits
from unmask.studies.results import Results


@dataclass(frozen=True)
class Headline:
    """The first thing a reader sees."""

    words: str
    ends: str  # the interval, or why there is none
    about: str
    good: bool


def headline(results: Results) -> Headline:
    """The speed-up at matched entropy of the headline's cell; 'x faster' only where its lower end is above 1."""
    entry = results.analysis["headline"]
    if entry is None:
        why = "no judge was given" if results.judge is None else "there is no student beside a teacher"
        return Headline("Measured, not compared", f"No speed-up is stated: {why}.", "", False)
    found = entry["speed_up"]
    teacher = results.analysis["teacher"]
    about = (
        f"{entry['model']} in {entry['steps']} steps on the plan {entry['plan']} (entropy {entry['entropy']:.3f}), "
        f"against {teacher} on the same plan with its temperature set to the same entropy"
    )
    if found["value"] is None:
        return Headline(
            "Not bracketed",
            "No teacher temperature has the student's entropy, and nothing is extrapolated.",
            about,
            False,
        )
    sign = {"=": "", ">": "more than ", "<": "less than "}[found["relation"]]
    ends = f"95% interval {_ends(found)} from {results.analysis['draws']:,} joint bootstrap draws"
    if found["faster"]:
        return Headline(f"{sign}{found['value']:.1f}× faster".capitalize(), ends, about, True)
    return Headline("No speed-up shown", f"{sign}{found['value']:.2f}×, {ends}", about, False)


def _ends(found: dict[str, Any]) -> str:
    low = "0" if found["low"] is None else f"{found['low']:.2f}"
    high = "∞" if found["high"] is None else f"{found['high']:.2f}"
    return f"[{low}, {high}]"


def meaning(results: Results) -> list[str]:
    """The sentences of 'what this means'."""
    parts = (_speed, _gap, _alike, _plan, _likelihood, _real, _diversity, _clock)
    return [sentence for part in parts for sentence in part(results)] + list(results.notes)


def _speed(results: Results) -> list[str]:
    entry = results.analysis["headline"]
    if entry is None:
        return []
    found, name, teacher = entry["speed_up"], entry["model"], results.analysis["teacher"]
    steps = f"{entry['steps']} steps"
    if found["value"] is None:
        return [
            f"In {steps} {name} has an entropy of {entry['entropy']:.3f} nats, which {teacher} has at none of the "
            "temperatures that were run: the two cannot be compared, and nothing is extrapolated."
        ]
    if found["faster"] and found["relation"] == "=":
        return [
            f"What {name} writes in {steps} takes {teacher} {found['n_star']:.0f} at the same entropy: "
            f"{found['value']:.1f} times as many, with 95% confidence {_ends(found)}."
        ]
    if found["faster"] and found["relation"] == "<":
        return [
            f"The fewest steps that were run already let {teacher} write at the same entropy what {name} writes in "
            f"{steps}: less than {found['value']:.1f} times as many, with 95% confidence {_ends(found)}."
        ]
    if found["faster"]:
        return [
            f"No number of steps that was run lets {teacher} write at the same entropy what {name} writes in {steps}: "
            f"more than {found['value']:.1f} times as many."
        ]
    if _worse(entry):
        return [
            f"At the same entropy, {name} in {steps} is worse than {teacher} in as many: 95% interval of the speed-up "
            f"{_ends(found)}."
        ]
    return [
        f"At the same entropy, {name} in {steps} cannot be told from {teacher} in as many (interval {_ends(found)}): "
        "a lower Gen PPL here is what lowering the teacher's temperature gives as well."
    ]


def _worse(entry: dict[str, Any]) -> bool:
    """Whether the speed-up is surely below 1, or the gap at equal NFE surely a loss.

    The gap is asked too, because in the teacher's fewest steps no speed-up below 1 can be seen: a teacher that is
    better there already has no smaller number of steps to be read off at.
    """
    high, loss = entry["speed_up"]["high"], entry["gap"]["low"]
    return (high is not None and high < 1) or (loss is not None and loss > 0)


def _gap(results: Results) -> list[str]:
    """A gain or a loss at equal NFE, where the interval leaves no doubt which."""
    entry = results.analysis["headline"]
    if entry is None or entry["gap"]["value"] is None:
        return []
    gap = entry["gap"]
    below = gap["high"] is not None and gap["high"] < 0
    above = gap["low"] is not None and gap["low"] > 0
    if not below and not above:
        return []
    where = f"{abs(gap['value']):.3f} {'below' if below else 'above'}"
    return [
        f"At equal NFE and entropy its log PPL is {where} the teacher's: 95% interval of the difference "
        f"{limits(gap, signed=True)}."
    ]


def _alike(results: Results) -> list[str]:
    """Whether equal entropy was not equal diversity."""
    entry = results.analysis["headline"]
    found = entry and entry.get("alike")
    if not found or not found["differ"]:
        return []
    student, teacher = (found[who]["value"] for who in ("student", "teacher"))
    more = "more" if student > teacher else "less"
    return [
        f"At that entropy, which is of the words within a text, its texts are {more} alike among themselves than the "
        f"teacher's in as many steps: self-BLEU {student:.3f} and {teacher:.3f}."
    ]


def _plan(results: Results) -> list[str]:
    """What the plan alone gives the teacher, at the fewest steps."""
    found = results.analysis
    best, base, teacher = found["best_plan"], found["base_plan"], found["teacher"]
    if teacher is None or best == base:
        return []
    cells = [
        results.one(model=teacher, plan=plan, steps=results.steps[0], temperature=results.temperature)
        for plan in (base, best)
    ]
    if cells[0] is None or cells[1] is None or not cells[0].judged or not cells[1].judged:
        return []
    before, after = cells[0].value("gen_ppl") or 0, cells[1].value("gen_ppl") or 0
    return [
        f"The plan alone, without any training, takes {teacher} in {results.steps[0]} steps from a Gen PPL of "
        f"{before:.1f} (entropy {cells[0].value('entropy'):.3f}) on {base} to {after:.1f} "
        f"({cells[1].value('entropy'):.3f}) on {best}. A student is credited only beyond that."
    ]


def _likelihood(results: Results) -> list[str]:
    entry = results.analysis["headline"]
    for found in results.analysis["likelihood"]:
        if entry and all(found[name] == entry[name] for name in ("model", "plan", "steps")):
            low, high = found["low"] or 0, found["high"] or 0
            word = "better" if high < 0 else "worse" if low > 0 else "the same within its interval"
            return [
                f"As a model of real text (NELBO of {entry['steps']} steps, no judge) {entry['model']} is {word}: "
                f"{found['value']:+.3f} nats a token to the teacher [{low:+.3f}, {high:+.3f}]."
            ]
    return []


def _real(results: Results) -> list[str]:
    for name in results.named("real"):
        cell = results.one(model=name)
        if cell is not None and cell.judged:
            return [
                f"Real text has a Gen PPL of {cell.value('gen_ppl'):.1f} at an entropy of {cell.value('entropy'):.3f} "
                "nats: a lower Gen PPL than that is not better writing."
            ]
    return []


def _diversity(results: Results) -> list[str]:
    """One sentence a model, with the first of its cells that looks wrong; and whether the parrot was caught."""
    said = []
    for name, about in results.models.items():
        cells = results.where(model=name)
        if about["role"] in ("teacher", "student", "elbo"):
            cells = [cell for cell in cells if cell.temperature == results.temperature and cell.steps in results.steps]
        wrong = [cell for cell in cells if cell.suspicions]
        if about["role"] == "parrot":
            caught = "is caught by the scores across samples" if wrong else "is NOT caught: too few texts to tell"
            said.append(f"The parrot only repeats a few real passages: it passes Gen PPL and entropy, and {caught}.")
        elif wrong:
            first = f"{wrong[0].plan}, {wrong[0].steps} steps" if wrong[0].steps else f"T = {wrong[0].temperature}"
            said.append(
                f"{name} looks wrong across samples in {len(wrong)} of {len(cells)} cells, first in ({first}): "
                f"{'; '.join(wrong[0].suspicions)}."
            )
    return said


def _clock(results: Results) -> list[str]:
    hot = [pair for pair in results.analysis["wall_clock"] if pair["temperature"] == results.temperature]
    entry = results.analysis["headline"]
    for pair in hot:
        if entry and pair["model"] == entry["model"] and pair["ppl"] is not None and pair["ar_ppl"] is not None:
            there = f"in the time {pair['ar']} takes" if pair["found"] == "=" else f"before {pair['ar']} is done"
            return [
                f"The causal {pair['ar']} reads {pair['ar_ppl']:.1f} at entropy {pair['ar_entropy']:.3f}; {there}, "
                f"{pair['model']} reads {pair['ppl']:.1f} at {pair['entropy']:.3f} (NFE {pair['nfe']:.0f})."
            ]
    return []
