"""The tables of a report, as rows of short texts. What follows a line break stands beneath, in small print."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from unmask.studies.analysis import contenders, credited
from unmask.studies.results import Cell, Json, Results

UNKNOWN = "not determined"
NONE = "–"  # nothing was measured, or it was not bracketed
SIGNS = {"=": "", ">": "more than ", "<": "less than "}


@dataclass(frozen=True)
class Table:
    """Rows under a head; `wordy` names columns of whole sentences, `controls` rows that are only to compare with."""

    title: str
    head: list[str]
    rows: list[list[str]]
    note: str = ""
    wordy: frozenset[int] = frozenset()
    controls: frozenset[int] = frozenset()


def with_numbers(rows: Iterable[list[str]]) -> list[list[str]]:
    """Of rows that begin with their name those that have a number."""
    return [row for row in rows if any(text != NONE for text in row[1:])]


def head_of(results: Results, first: str) -> list[str]:
    return [first, *(f"{steps} steps" for steps in results.steps)]


def questions(results: Results) -> Table:
    """Right answers to the questions that were asked, beside what they cost."""
    rows = []
    for row in results.questions:
        error = "" if row["stderr"] is None else f" ± {row['stderr']:.1%}"
        right, cost = f"{row['exact_match']:.1%}{error}", f"{row['tokens_a_forward']:.2f}"
        approximate = (row["record"]["cache"] or {}).get("approximate")
        way = row["way"] + (", approximate cache" if approximate else "")
        seconds = row["seconds_an_answer"]
        rows.append([row["model"], way, right, cost, NONE if seconds is None else f"{seconds:.2f}"])
    head = ["model", "in", "right", "tokens a forward", "seconds an answer"]
    count = results.questions[0]["questions"] if results.questions else 0
    note = "± is a standard error over the questions; seconds are of this machine and batch."
    return Table(f"{count} questions, exact match of the number after ####", head, rows, note)


def models(results: Results) -> Table:
    rows = [[name, about["role"], str(about["sha256"] or NONE)[:16]] for name, about in results.models.items()]
    note = "results.json beside this page holds every cell with its own record."
    return Table("Provenance", ["model", "role", "sha256 of the weights"], rows, note)


def main_table(results: Results) -> Table:
    """The judge's nats a byte, beneath them the own entropy and Gen PPL, for every model, plan and number of steps.

    The teacher also at its temperatures and cuts. Texts without steps (real ones, those of a causal model or of a file)
    have one number, in the first column.
    """
    judged = any("judge_nll" in cell.scores for cell in results.cells)
    what = "The judge's nats a byte; beneath, the sampler's own entropy and Gen PPL"
    rows: list[list[str]] = []
    controls: set[int] = set()
    for model, about in results.models.items():
        for plan in results.plans:
            draws = [(results.temperature, 1.0)]
            if about["role"] == "teacher":
                draws += [(float(t), 1.0) for t in sorted(results.settings["temperatures"], reverse=True)[1:]]
                draws += [(results.temperature, float(top_p)) for top_p in results.settings.get("top_ps") or ()]
            for temperature, top_p in draws:
                at = {"model": model, "plan": plan, "temperature": temperature, "top_p": top_p}
                cells = [results.one(steps=n, **at) for n in results.steps]
                if any(cells):
                    if (temperature, top_p) != draws[0]:
                        controls.add(len(rows))
                    cut = "" if top_p == 1 else f", top-p {top_p:g}"
                    rows.append([f"{model}\n{plan}, T = {temperature:g}{cut}", *map(_nats, cells)])
    for cell in results.cells:
        if cell.steps is None:
            at_heat = "" if cell.temperature is None else f"\n{cell.plan}, T = {cell.temperature:g}"
            controls.add(len(rows))
            rows.append([f"{cell.model}{at_heat}", _nats(cell), *("" for _ in results.steps[1:])])
    head = head_of(results, "model") if results.steps else ["texts", ""]
    title = what if judged else "The sampler's own entropy, nats a byte (no judge was given)"
    return Table(title, head, rows, controls=frozenset(controls))


def _nats(cell: Cell | None) -> str:
    """Of texts that nobody drew the entropy of the words within a text, since they have none of their own."""
    if cell is None:
        return NONE
    own, nats, ppl = cell.value("sampler_entropy"), cell.value("judge_nll"), cell.value("gen_ppl")
    lines = [] if nats is None else [f"{nats:.3f}"]
    lines += [f"words {cell.value('entropy'):.3f}" if own is None else f"own {own:.3f}"]
    return "\n".join(lines + ([] if ppl is None else [f"PPL {ppl:.1f}"]))


def speed_ups(results: Results) -> Table:
    """Speed-up at equal own entropy and the gaps, always against the teacher on the same plan."""
    comparisons = results.analysis["comparisons"]
    kinds = {"temperature": "gap to the teacher at a temperature", "top_p": "gap to its top-p"}
    kinds = {kind: words for kind, words in kinds.items() if any(kind in entry["gap_to"] for entry in comparisons)}
    rows = [
        [
            f"{entry['model']}\n{entry['plan']}, {entry['steps']} steps\nNFE {entry['nfe']:.1f}",
            _speed_up(entry),
            *(interval(entry["gap_to"].get(kind), signed=True) for kind in kinds),
            f"{entry['entropy']:.3f}",
            *(_both(entry["alike"][score]) for score in ("self_bleu", "repeated_4")),
        ]
        for entry in comparisons
    ]
    note = (
        "Against the undistilled teacher on the same plan, with its temperature, or its top-p, set to the student's "
        "own entropy (-log q of what it drew, in nats a byte). Gaps are the judge's nats a byte of student less "
        "teacher: below 0 is the student's gain. The speed-up is against the better of the two controls. A 95% "
        f"interval from {results.analysis['draws']:,} joint bootstrap draws stands beneath; – means not bracketed. By "
        "chance alone, one comparison in forty is credited. Self-BLEU says how alike texts are among themselves, "
        "repeated 4-grams how much a text repeats itself, beneath it the teacher's at that entropy."
    )
    head = ["student", "speed-up", *kinds.values(), "own entropy", "self-BLEU", "repeated"]
    return Table("Speed-up at equal own entropy", head, rows, note, wordy=frozenset({1}))


def _both(scores: Json | None) -> str:
    return "{student[value]:.3f}\nteacher {teacher[value]:.3f}".format(**scores) if scores else NONE


def _speed_up(entry: Json) -> str:
    speed_up = entry["speed_up"]
    if speed_up["value"] is None:
        return "not bracketed: the teacher has this entropy nowhere"
    value = f"{SIGNS[speed_up['relation']]}{speed_up['value']:.2f}x"
    if credited(entry):
        return f"{value} faster\n{limits(speed_up, digits=2)}"
    if speed_up["faster"]:
        return "not credited: its texts look wrong"
    return f"no speed-up shown\n{value}, interval {limits(speed_up, digits=2)}"


def _number(value: float, signed: bool, digits: int) -> str:
    return f"{value:{'+' if signed else ''}.{digits}f}"


def interval(score: Json | None, signed: bool = False, digits: int = 3) -> str:
    """A value with its interval beneath."""
    if score is None or score["value"] is None:
        return NONE
    ends = limits(score, signed, digits)
    return f"{_number(score['value'], signed, digits)}\n{ends if ends != UNKNOWN else 'interval ' + UNKNOWN}"


def limits(score: Json, signed: bool = False, digits: int = 3) -> str:
    """The interval alone; in words where it lacks an end."""
    low, high = (None if score[end] is None else _number(score[end], signed, digits) for end in ("low", "high"))
    if low is None:
        return UNKNOWN if high is None else f"below {high}"
    return f"above {low}" if high is None else f"[{low}, {high}]"


def halved(score: Json | None, signed: bool = False, digits: int = 3) -> str:
    """A value and half its interval, on one line; a single text has no interval."""
    if score is None or score["value"] is None:
        return NONE
    half = "" if None in (score["low"], score["high"]) else f" ± {(score['high'] - score['low']) / 2:.{digits}f}"
    return _number(score["value"], signed, digits) + half


def two_by_two(results: Results) -> Table:
    """{teacher, student} x {base plan, chosen plan}: what the plan gives, what distillation gives."""
    analysis = results.analysis
    plans = list(dict.fromkeys(plan for plan in (analysis["base_plan"], analysis["best_plan"]) if plan))

    def corner(model: str, plan: str, steps: int) -> str:
        cell = results.one(model=model, plan=plan, steps=steps, temperature=results.temperature)
        if cell is None:
            return NONE
        bound = results.bound(model, plan, steps)
        scores = (
            ("judge", cell.scores.get("judge_nll"), 3),
            ("own entropy", cell.scores.get("sampler_entropy"), 3),
            ("NELBO", bound and bound.scores["per_token"], 3),
            ("R", cell.scores.get("path_gap"), 4),
        )
        return "\n".join(f"{name} {halved(score, digits=digits)}" for name, score, digits in scores if score)

    rows = with_numbers(
        [f"{model}\n{steps} steps", *(corner(model, plan, steps) for plan in plans)]
        for name in (contenders(results) if analysis["teacher"] else [])
        for steps in results.steps for model in (analysis["teacher"], name)
    )  # fmt: skip
    head = ["", *(f"{plan}{' (chosen)' if plan == analysis['best_plan'] else ''}" for plan in plans)]
    note = (
        "Down a column is what distillation gives, along a row what the plan gives; ± is half the 95% interval. The "
        "plan is chosen by the teacher's own scores, without looking at a student."
    )
    return Table("Two by two: plan and distillation apart", head, rows, note)


def likelihood(results: Results) -> Table:
    """N-step NELBO in nats per token (per byte beneath), the ELBO in the last columns."""
    less = {(d["model"], d["plan"], d["steps"]): d for d in results.analysis["likelihood"]}

    def text_of(model: str, plan: str, steps: int) -> str:
        bound, difference = results.bound(model, plan, steps), less.get((model, plan, steps))
        if bound is None:
            return NONE
        text = f"{halved(bound.scores['per_token'])}\n{bound.scores['per_byte']['value']:.3f} per byte"
        return text + (f"\n{halved(difference, signed=True)} to teacher" if difference else "")

    rows = []
    for model in dict.fromkeys(bound.model for bound in results.bounds):
        usual = results.bound(model, None, None)
        scores = usual.scores if usual else {}
        elbo = f"{scores['per_token']['value']:.3f}\nPPL {scores['perplexity']['value']:.1f}" if scores else NONE
        on_plans = ([f"{model}\n{plan}", *(text_of(model, plan, n) for n in results.steps)] for plan in results.plans)
        rows += [[*row, elbo] for row in with_numbers(on_plans)]
        if results.models[model]["role"] == "ar":
            rows.append([f"{model}\nexact", *(NONE for _ in results.steps), elbo])
    note = (
        "A bound on the sampler's own negative log-likelihood of held-out text: no judge to please. Lower is better. "
        "± is half the 95% bootstrap interval over texts; differences to the teacher are paired text by text. A causal "
        "model's is exact."
    )
    return Table("N-step NELBO, ± half the 95% interval", [*head_of(results, "nats/token"), "ELBO"], rows, note)


def one_token_a_step(results: Results) -> Table:
    """What few steps lose against one token a step, in random order and in the model's best order."""
    rows = []
    for whole in results.analysis["one_token_a_step"]:
        less = {(one["plan"], one["steps"]): one for one in whole["less"] if one["model"] == whole["model"]}
        order = "in random order" if whole["order"] == "random" else "in its best order"
        against = f"less {whole['model']}, {order} ({whole['plan']}, {whole['nats']:.3f})"
        for plan in results.plans:
            texts = (halved(less.get((plan, steps)), signed=True) for steps in results.steps)
            rows.append([f"{plan}\n{against}", *texts])
    note = (
        "N-step NELBO less that of one token a step, nats a token, paired over texts. Some orders are better for a "
        "model than a random one, so both stand here: the best order is the best of those that were run."
    )
    title = "What few steps lose against one token a step"
    return Table(title, head_of(results, "plan"), with_numbers(rows), note)


def path_gaps(results: Results) -> Table:
    """R at the headline's temperature, and at the one chosen for the least R."""
    least = {(g["model"], g["plan"], g["steps"]): g for g in results.analysis["least_gap"]}

    def text_of(model: str, plan: str, steps: int) -> str:
        cell = results.one(model=model, plan=plan, steps=steps, temperature=results.temperature)
        best = least.get((model, plan, steps))
        return NONE if cell is None or best is None else interval(cell.scores.get("path_gap"), digits=4) + _least(best)

    names = dict.fromkeys((model, plan) for model, plan, _ in least)
    rows = with_numbers(
        [f"{model}\n{plan}", *(text_of(model, plan, n) for n in results.steps)] for model, plan in names
    )
    note = (
        "E[log q - log p of the judge] in nats per byte: at least the sampler's KL divergence from the judge. In "
        "brackets a 95% bootstrap interval over texts. Beneath, R at the temperature where half of the texts find it "
        "least, scored by the other half, n of them: so luck in choosing does not flatter it, and it may come out "
        "above R of a temperature that was not chosen."
    )
    return Table("Path gap R", head_of(results, ""), rows, note)


def _least(best: Json) -> str:
    """What stands beneath R: nothing where there was one temperature, and so none to choose."""
    if len(best["least_of"]) < 2:
        return ""
    value, *brackets = interval(best, digits=4).split("\n")
    lines = [f"chosen T = {best['temperature']:g}: {value}", *(f"{end}, n = {best['count']:,}" for end in brackets)]
    return "\n" + "\n".join(lines)


_COLUMNS = {
    "entropy": "words' entropy", "distinct_4": "distinct-4", "self_bleu": "self-BLEU", "coverage_4": "coverage-4",
    "repeated_4": "repeated-4", "information_gap_8": "MI, lag 8", "energy_distance": "energy distance",
    "gradient_1": "gradient, 1st", "gradient_2": "gradient, 2nd", "mauve": "MAUVE",
}  # fmt: skip
_ELSEWHERE = (
    "gen_ppl", "entropy", "path_gap", "judge_", "sampler_", "distinct", "coverage", "repeated", "information",
)  # fmt: skip


def diversity(results: Results) -> Table:
    """Across samples: real text, texts without a model, then every model at the headline's temperature."""
    drawn = results.where(plan=results.analysis["best_plan"], temperature=results.temperature)
    chosen = [cell for cell in results.cells if cell.steps is None or (cell in drawn and cell.steps in results.steps)]
    order = {"real": 0, "control": 1}
    chosen.sort(key=lambda cell: order.get(results.models[cell.model]["role"], 2))
    known = dict.fromkeys(name for cell in chosen for name in cell.scores)
    columns = {name: label for name, label in _COLUMNS.items() if name in known}
    columns |= {name: name for name in known if name not in _COLUMNS and not name.startswith(_ELSEWHERE)}
    rows = []
    for cell in chosen:
        where = f"{cell.plan}, {cell.steps} steps" if cell.steps else f"T = {cell.temperature:g}" if cell.plan else ""
        values = [_score(cell, name) for name in columns]
        rows.append([f"{cell.model}\n{where}".strip(), *values, "; ".join(cell.suspicions.values()) or NONE])
    head = ["", *columns.values(), "what looks wrong"]
    note = (
        "Over the whole pool of texts, beside real text of the same size. MI is mutual information, less that of "
        "real text, in nats. Energy distance is of the judge's features at the last token; gradient: the squared "
        "distance of its first moment, and its second less real text's. All four are 0 in the mean for real text; ± is "
        "half the 95% interval. Controls without a model (a parrot, a period, a mirrored text, a phrase bank) must "
        "look wrong here."
    )
    return Table("Diversity across samples", head, rows, note, wordy=frozenset({len(head) - 1}))


def _score(cell: Cell, name: str) -> str:
    """A distance to real text with its interval, small ones with more digits; other scores alone."""
    if name not in cell.scores:
        return NONE
    if name in ("energy_distance", "gradient_1", "gradient_2"):
        return halved(cell.scores[name], digits=5 if name == "gradient_1" else 3)
    return f"{cell.value(name):.3f}"


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
