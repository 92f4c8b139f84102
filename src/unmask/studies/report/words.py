"""What results mean, in plain words: a headline and some sentences, which claim no more than their intervals."""

from __future__ import annotations

from dataclasses import dataclass

from unmask.studies.analysis import contenders, credited
from unmask.studies.report.tables import SIGNS, interval, limits
from unmask.studies.results import Cell, Json, Results


@dataclass(frozen=True)
class Headline:
    words: str
    ends: str  # the interval, or why there is none
    about: str = ""
    good: bool = False


NAMES = {"temperature": "temperature", "top_p": "top-p"}


def headline(results: Results) -> Headline:
    """The speed-up of the headline's cell; 'x faster' only where its lower end is above 1 and its texts look right."""
    entry = results.analysis["headline"]
    if entry is None:
        return Headline("Measured, not compared", f"No speed-up is stated: {_why_none(results)}.")
    speed_up, control = entry["speed_up"], " or its ".join(NAMES[kind] for kind in entry["gap_to"]) or "temperature"
    about = (
        f"{entry['model']} in {entry['steps']} steps on the plan {entry['plan']} (own entropy {entry['entropy']:.3f} "
        f"nats a byte), against {results.analysis['teacher']} on the same plan with its {control} set to the same "
        "entropy"
    )
    if speed_up["value"] is None:
        why = "No control of the teacher has the student's own entropy, and nothing is extrapolated."
        return Headline("Not bracketed", why, about)
    sign, draws = SIGNS[speed_up["relation"]], f"from {results.analysis['draws']:,} joint bootstrap draws"
    ends = f"95% interval {limits(speed_up, digits=2)} {draws}"
    if credited(entry):
        return Headline(f"{sign}{speed_up['value']:.1f}× faster".capitalize(), ends, about, good=True)
    if speed_up["faster"]:
        return Headline("Not credited", f"Its texts look wrong: {'; '.join(entry['suspicions'])}.", about)
    return Headline("No speed-up shown", f"{sign}{speed_up['value']:.2f}×, {ends}", about)


def _why_none(results: Results) -> str:
    if results.judge is None:
        return "no judge was given"
    students = contenders(results)
    if not (students and results.named("teacher")):
        return "there is no student beside a teacher"
    theirs = [cell for cell in results.cells if cell.model in students]
    if theirs and not any(cell.comparable for cell in theirs):
        return f"texts of {', '.join(students)} have no own entropy at which to compare them, only bounds compare"
    return "no plan has both a student's texts and its teacher's"


def facts(results: Results) -> list[tuple[str, str]]:
    """The numbers beneath the headline, each with what it is."""
    entry, numbers = results.analysis["headline"], []
    if entry is not None:
        for name, gap in entry["gap_to"].items():
            text = interval(gap, signed=True)
            what = f"nats a byte of the judge, to the teacher's {NAMES[name]}, at equal NFE and own entropy"
            numbers.append(("not bracketed" if text == "–" else text, what))
        if less := _likelihood_of(results, entry):
            numbers.append((interval(less, signed=True), "nats a token of NELBO to the teacher, on held-out text"))
    if results.analysis["best_plan"]:
        numbers.append((results.analysis["best_plan"], "plan chosen by the teacher's own scores"))
    return numbers


def meaning(results: Results) -> list[str]:
    """The sentences of 'what this means'."""
    entry = results.analysis["headline"]
    sentences = [] if entry is None else [_speed(results, entry), _gap(entry), *_alike(entry)]
    sentences += [_plan(results)]
    sentences += [] if entry is None else [_likelihood(results, entry)]
    sentences += [_real(results), *_diversity(results)]
    sentences += [] if entry is None else [_clock(results, entry)]
    return [sentence for sentence in sentences if sentence] + list(results.notes)


def apart(one: Json, other: Json) -> bool:
    """Whether two intervals have nothing in common; without both ends of both nothing is known."""
    if any(score[end] is None for score in (one, other) for end in ("low", "high")):
        return False
    return bool(one["high"] < other["low"] or other["high"] < one["low"])


def _speed(results: Results, entry: Json) -> str:
    speed_up, name, teacher = entry["speed_up"], entry["model"], results.analysis["teacher"]
    steps = f"{entry['steps']} steps"
    if speed_up["value"] is None:
        return (
            f"In {steps} {name} has an own entropy of {entry['entropy']:.3f} nats a byte, which {teacher} has under "
            "none of the controls that were run: the two cannot be compared, and nothing is extrapolated."
        )
    ends = limits(speed_up, digits=2)
    if entry["suspicions"] and (speed_up["faster"] or _side(entry["gap"]) == "below"):
        return f"{name} in {steps} is not credited with a gain: {'; '.join(entry['suspicions'])}."
    if speed_up["faster"]:
        same, n_star = f"{teacher} write at the same own entropy what {name} writes in {steps}", speed_up["n_star"] or 0
        there = {
            "=": f"What {name} writes in {steps} takes {teacher} {n_star:.0f} steps at its own entropy",
            "<": f"The fewest steps that were run already let {same}",
            ">": f"No number of steps that was run lets {same}",
        }[speed_up["relation"]]
        times = f"{SIGNS[speed_up['relation']]}{speed_up['value']:.1f} times as many"
        return f"{there}: {times}, with 95% confidence {ends}."
    high, loss = entry["speed_up"]["high"], entry["gap"]["low"]
    # the gap is asked too: in the teacher's fewest steps no speed-up below 1 can be seen
    if (high is not None and high < 1) or (loss is not None and loss > 0):
        return (
            f"At the same own entropy, {name} in {steps} is worse than {teacher} in as many: 95% interval of the "
            f"speed-up {ends}."
        )
    if _side(entry["gap"]) == "below":
        return (
            f"At the same own entropy, {name} in {steps} is better than {teacher} in as many; what that is worth in "
            f"steps was not run (95% interval of the speed-up {ends})."
        )
    return (
        f"At the same own entropy, {name} in {steps} cannot be distinguished from {teacher} in as many (95% interval "
        f"of the speed-up {ends}): a lower Gen PPL here may be no more than lowering the teacher's temperature gives."
    )


def _gap(entry: Json) -> str:
    """A gain or a loss at equal NFE, where the interval leaves no doubt which."""
    gap = entry["gap"]
    side = "" if gap["value"] is None else _side(gap)
    if not side or (side == "below" and entry["suspicions"]):
        return ""
    return (
        f"At equal NFE and own entropy the judge's nats a byte are {abs(gap['value']):.3f} {side} the teacher's: 95% "
        f"interval of the difference {limits(gap, signed=True)}."
    )


def _side(less: Json) -> str:
    """'below' or 'above' where a difference surely is, else nothing."""
    if less["high"] is not None and less["high"] < 0:
        return "below"
    return "above" if less["low"] is not None and less["low"] > 0 else ""


def _alike(entry: Json) -> list[str]:
    """Where equal entropy was not equal diversity."""
    words = {"self_bleu": "alike among themselves: self-BLEU", "repeated_4": "repetitive: repeated 4-grams"}
    sentences = []
    for score, what in words.items():
        scores = entry["alike"][score]
        if scores and scores["differ"]:
            student, teacher = (scores[who]["value"] for who in ("student", "teacher"))
            more = "more" if student > teacher else "less"
            beside = f"the teacher's in as many steps {teacher:.3f}"
            sentences.append(f"At that entropy its texts are {more} {what} {student:.3f}, {beside}.")
    return sentences


def _plan(results: Results) -> str:
    """What the plan alone gives the teacher, at the fewest steps."""
    analysis = results.analysis
    best, base, teacher = analysis["best_plan"], analysis["base_plan"], analysis["teacher"]
    if teacher is None or best == base:
        return ""
    steps = results.steps[0]
    at = {"model": teacher, "steps": steps, "temperature": results.temperature}
    before, after = (results.one(plan=plan, **at) for plan in (base, best))
    if before is None or after is None or not before.comparable or not after.comparable:
        return ""
    if not apart(before.scores["path_gap"], after.scores["path_gap"]):
        return (
            f"In {steps} steps the path gap R of {teacher} on {base} and on {best} cannot be distinguished: "
            f"{_gap_of(before)} and {_gap_of(after)}."
        )
    return (
        f"The plan alone, without any training, takes {teacher} in {steps} steps from a path gap R of "
        f"{_gap_of(before)} on {base} to {_gap_of(after)} on {best}. A student is credited only beyond that."
    )


def _gap_of(cell: Cell) -> str:
    gap = cell.scores["path_gap"]
    return f"{gap['value']:.3f} {limits(gap)}"


def _likelihood_of(results: Results, entry: Json) -> Json | None:
    names = ("model", "plan", "steps")
    differences = results.analysis["likelihood"]
    return next((less for less in differences if all(less[name] == entry[name] for name in names)), None)


def _likelihood(results: Results, entry: Json) -> str:
    less = _likelihood_of(results, entry)
    if less is None:
        return ""
    verdict = {"below": "is better than the teacher", "above": "is worse than the teacher"}
    word = verdict.get(_side(less), "cannot be distinguished from the teacher")
    return (
        f"As a model of real text (NELBO of {entry['steps']} steps, no judge) {entry['model']} {word}: "
        f"{less['value']:+.3f} nats a token, 95% interval {limits(less, signed=True)}."
    )


def _real(results: Results) -> str:
    for ppl in (cell.scores.get("gen_ppl") for name in results.named("real") for cell in results.where(model=name)):
        if ppl:
            said = f"{ppl['value']:.1f} {limits(ppl, digits=1)}"
            return f"Real text has a Gen PPL of {said}: a lower one is not better writing."
    return ""


def _diversity(results: Results) -> list[str]:
    """One sentence a model, with the first of its cells that looks wrong; and whether each control was caught."""
    sentences = []
    for name, about in results.models.items():
        cells = [cell for cell in results.where(model=name) if not cell.steps
                 or (cell.temperature == results.temperature and cell.steps in results.steps)]  # fmt: skip
        wrong = [cell for cell in cells if cell.suspicions]
        if about["role"] == "control":
            sentences += [_control(results, cell) for cell in cells]
        elif wrong:
            steps = f", {wrong[0].steps} steps" if wrong[0].steps else ""
            first = f"first in ({wrong[0].plan}{steps}, T = {wrong[0].temperature:g})" if wrong[0].plan else ""
            where = f" in {len(wrong)} of {len(cells)} cells, {first}" if first else ""
            sentences.append(f"{name} looks wrong across samples{where}: {'; '.join(wrong[0].suspicions.values())}.")
    return sentences


def _control(results: Results, cell: Cell) -> str:
    """Whether it is caught; that it passes Gen PPL and entropy is said only where both are real text's."""
    real = next((cell for name in results.named("real") for cell in results.where(model=name)), None)
    scores = [name for name in ("gen_ppl", "entropy") if name in cell.scores and real and name in real.scores]
    alike = [name for name in scores if real and not apart(cell.scores[name], real.scores[name])]
    names = {"gen_ppl": "Gen PPL", "entropy": "entropy of words"}
    by = " and ".join(names[name] for name in alike)
    passes = f" By {by} it cannot be distinguished from real text." if alike else ""
    caught = "caught by" if cell.suspicions else "NOT caught (too few texts to tell) by"
    own = cell.value("sampler_entropy")
    narrow = "" if own is None else f" Its own entropy is {own:.3f} nats a byte."
    return f"The {cell.model}, which no model wrote, is {caught} the scores across samples.{passes}{narrow}"


def _clock(results: Results, entry: Json) -> str:
    for pair in results.analysis["wall_clock"]:
        known = None not in (pair["nats"], pair["ar_nats"], pair["entropy"], pair["ar_entropy"])
        if known and pair["model"] == entry["model"] and pair["temperature"] == results.temperature:
            there = f"in the time {pair['ar']} takes" if pair["found"] == "=" else f"before {pair['ar']} is done"
            return (
                f"The causal model {pair['ar']} has {pair['ar_nats']:.3f} of the judge's nats a byte at an own entropy "
                f"of {pair['ar_entropy']:.3f}; {there}, {pair['model']} has {pair['nats']:.3f} at "
                f"{pair['entropy']:.3f} (NFE {pair['nfe']:.0f}). No interval was worked out for this."
            )
    return ""
