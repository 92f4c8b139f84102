"""Made-up results of a study: a teacher, two rounds of a student, a causal model, real text and a parrot."""

import dataclasses
import functools

import torch

from unmask.core.streams import stream
from unmask.metrics.score import Ratio, Score
from unmask.studies.analysis import analyse
from unmask.studies.results import Bound, Cell, Results

STEPS, PLANS, TEMPERATURES, N = (4, 8, 16, 32, 64), ("iid", "golden"), (1.0, 0.9, 0.8, 0.7), 48
PROSE = (
    "The old man looked out over the water, and <said> nothing for a long while. “It is not the wind,” he said at "
    "last; “it is the waiting.” She had heard that before, from another mouth, and it had not been "
    "true then either. averyveryverylongwordthatnobodywouldeverwritewithoutabreakinitsomewhereinthemiddleofalineoftext "
)


def _scores(**ratios: tuple[Ratio, str]) -> dict:
    found = {name: Score.of(ratio, unit, {}).to_json() for name, (ratio, unit) in ratios.items()}
    return {name: {k: v for k, v in said.items() if k != "record"} for name, said in found.items()}


def made_cell(
    model: str, plan: str | None, steps: int | None, temperature: float | None, entropy: float, log_ppl: float
) -> Cell:
    name = f"{model} {plan} {steps} {temperature}"
    noise_2N = torch.randn(2, N, generator=stream(0, name), dtype=torch.float64)
    entropy_N = entropy + 0.05 * noise_2N[0]
    nll_N = 250 * (log_ppl + 0.08 * noise_2N[1] + 3 * (entropy_N - entropy))
    ppl, mean = Ratio.of(nll_N, torch.full((N,), 250), exponential=True), Ratio.mean(entropy_N)
    own_N = 250 * entropy_N if plan else torch.full((N,), 2.8).double()
    bytes_N = torch.full((N,), 1000)
    looks = {"distinct_4": "only 6.2% of its 4-grams are distinct, real text's 97.0%: texts repeat each other"}
    shares = {"distinct_4": 0.96, "self_bleu": 0.21, "coverage_4": 0.11, "repeated_4": 0.01, "information_gap_1": -0.02}
    extra = {key: (Ratio.mean(value + 0.01 * noise_2N[0]), "share") for key, value in shares.items()}
    extra |= {"judge_nll": (Ratio.of(nll_N, bytes_N), "nats/byte")}
    if model != "real text":
        extra |= {"sampler_entropy": (Ratio.of(own_N, bytes_N), "nats/byte")}
        extra |= {"path_gap": (Ratio.of(nll_N - own_N, bytes_N), "nats/byte")}
    every = {"gen_ppl": (ppl, "perplexity"), "entropy": (mean, "nats"), **extra}
    scores = _scores(**every)
    nfe = None if plan is None else float(steps or 256)
    return Cell(
        model, plan, steps, temperature, N, nfe, nfe and 0.02 * N * nfe**0.9, 256 * N, scores,
        {name: ratio for name, (ratio, _) in every.items()}, (PROSE * 3, PROSE),
        looks if model == "parrot" else {},
    )  # fmt: skip


def teacher_at(plan: str, steps: float, temperature: float) -> tuple[float, float]:
    """(entropy, log PPL) near what a 33M teacher gave; spread plans lose less at few steps."""
    entropy = 4.84 + 0.25 / steps - 1.9 * (1 - temperature) - 0.4 * (1 - temperature) ** 2
    error = (2.2 if plan == "iid" else 0.7) * steps**-0.75
    return entropy, 5.2 + error + 3.2 * (entropy - 4.84) + 0.9 * (entropy - 4.84) ** 2


@functools.cache
def made_up(gain: float = 3.0) -> Results:
    """A teacher, two rounds of a student that hides `gain` steps in one, a causal model, real text and a parrot."""
    cells, bounds = [], []
    for plan in PLANS:
        for temperature in (*TEMPERATURES, 0.84):
            for steps in (*STEPS, 128, 256):
                cells.append(made_cell("teacher", plan, steps, temperature, *teacher_at(plan, steps, temperature)))
        for temperature in TEMPERATURES:
            for steps in STEPS:
                for model, share in (("round 1", 0.5), ("student", 1.0)):
                    like = teacher_at(plan, steps * gain**share, temperature * (1 - 0.16 * share))
                    cells.append(made_cell(model, plan, steps, temperature, *like))
        for model, better in (("teacher", 0.0), ("round 1", -0.02), ("student", 0.05)):
            for steps in STEPS:
                nats = 3.9 + 1.2 * steps ** (-1.0 if plan == "golden" else -0.6) + better
                text_N = torch.randn(N, generator=stream(1, "texts"), dtype=torch.float64)
                own_N = torch.randn(N, generator=stream(1, model, plan, steps), dtype=torch.float64)
                ratio = Ratio.of(256 * (nats + 0.3 * text_N + 0.03 * own_N), torch.full((N,), 256))
                byte = Ratio.of(ratio.top_n, torch.full((N,), 1050))
                bounds.append(Bound(model, plan, steps, float(steps), _scores(
                    per_token=(ratio, "nats/token"), per_byte=(byte, "nats/byte"),
                    perplexity=(dataclasses.replace(ratio, exponential=True), "perplexity")), ratio))  # fmt: skip
    cells += [made_cell("causal", "causal", None, t, 4.8 - 1.5 * (1 - t), 4.6 - 4 * (1 - t)) for t in TEMPERATURES]
    cells += [made_cell("real text", None, None, None, 4.75, 3.9), made_cell("parrot", None, None, None, 4.75, 3.9)]
    roles = {"teacher": "teacher", "round 1": "student", "student": "student", "causal": "ar", "real text": "real",
             "parrot": "control"}  # fmt: skip
    settings = {"steps": list(STEPS), "plans": list(PLANS), "temperatures": list(TEMPERATURES), "n": N, "seed": 0,
                "protocol": "mdlm", "control_steps": [128, 256], "length": 256, "data": "books"}  # fmt: skip
    results = Results(
        models={name: {"role": role, "sha256": "0" * 64, "provenance": {}} for name, role in roles.items()},
        cells=cells, bounds=bounds, settings=settings, judge={"name": "smollm2", "id": "x"},
        notes=[], provenance={"device": "made up", "unmask": "0", "time": "now"},
    )  # fmt: skip
    return analyse(results, draws=300)
