"""What the headline reads: distances to the yardstick at equal entropy, forwards that suffice, seeds of an arm."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from unmask.metrics.score import Ratio
from unmask.studies.analysis import analyse
from unmask.studies.results import write_results


def level(made_up: Any, name: str, plan: str, steps: int, nats: float) -> Any:
    """A bound without noise."""
    return replace(made_up.bound(name, plan, steps, 8), ratio=Ratio.mean(torch.full((8,), nats)))


def test_forwards_that_suffice_are_read_off_in_log_nfe(made_up):
    """A distance of +0.1 at 4 forwards and -0.1 at 16 is nought half way in log NFE, at 8; the yardstick has 64."""
    from tools.results.match import matches

    found = made_up.results({"teacher": 0.0}, ["iid", "golden"], [4, 16, 64], [1.0], 8)
    nats = {
        ("iid", 4): 5.0,
        ("iid", 16): 4.5,
        ("iid", 64): 4.0,
        ("golden", 4): 4.1,
        ("golden", 16): 3.9,
        ("golden", 64): 3.8,
    }
    bounds = [level(made_up, "teacher", plan, steps, value) for (plan, steps), value in nats.items()]
    entries = matches(analyse(replace(found, bounds=bounds), draws=10), 0)
    needs = {(one["score"], one["plan"]): one["needs"] for one in entries}
    assert needs["nelbo", "golden"]["relation"] == "="
    assert [needs["nelbo", "golden"][end] for end in ("value", "low", "high")] == pytest.approx([8, 8, 8])
    assert needs["nelbo", "iid"]["value"] == pytest.approx(64)


def test_gen_ppl_is_compared_at_equal_entropy(made_up):
    """Made so that log PPL falls by 4 for each nat of entropy: what is off that line counts, not what is cooler."""
    from tools.results.match import matches

    found = made_up.results({"teacher": 0.0, "sharp": 0.0}, ["iid"], [64], [1.1, 1.0, 0.9, 0.8, 0.7], 64)
    keep = [c for c in found.cells if c.model != "sharp" or c.temperature == 0.85]
    cooled = replace(made_up.cell("sharp", "iid", 64, 0.85, 64, gain=0.2), temperature=1.0)
    settings = {**found.settings, "temperatures": [1.0, 0.9, 0.8, 0.7]}
    whole = analyse(replace(found, cells=[*keep, cooled], settings=settings), draws=10)
    entry = next(one for one in matches(whole, 0) if (one["score"], one["model"]) == ("gen_ppl", "sharp"))
    value, low, high = entry["curve"][0]["distance"]
    assert value == pytest.approx(-0.2, abs=1e-6)
    assert low < value < high


def test_forwards_within_a_margin_must_be_sure_and_uncontradicted():
    from tools.results.headline import _within

    def said(*ends, plan="golden"):
        curve = [{"nfe": 4.0 * 2**k, "distance": [0.0, *end]} for k, end in enumerate(ends)]
        of, needs = {"model": "teacher", "plan": "iid", "nfe": 64.0}, {"value": None}
        record = {"score": "nelbo", "model": "teacher", "plan": plan, "yardstick": of, "needs": needs, "curve": curve}
        return _within([record])

    far, near, unsure, unknown = (0.1, 0.3), (-0.01, 0.02), (0.0, 0.021), (None, None)
    assert said(far, near, near) == "8<br>8.0x"
    assert said(near, far, near) == "16<br>4.0x"  # small by chance, then not: it does not count
    assert said(far, near, unsure) == "8<br>8.0x<br>open: 16"  # speaks neither for nor against, and is named
    assert said(far, unsure, unsure) == "open: 8, 16"  # none is surely within, but these are not surely outside
    assert said(unsure, far, unknown) == "not in 8"
    assert said(far, far, unknown) == "not in 8"
    assert said(far, near, unknown) == "8<br>8.0x<br>open: 16"
    assert said(unsure, near, unsure, unknown) == "8<br>8.0x<br>open: 16, 32"  # fewer than enough is of no interest
    assert said(unknown, unknown) == "not bracketed"


# --- at equal entropy ------------------------------------------------------------------------------------------------

N = 400  # texts
SLOPE, GAP_SLOPE = 4.0, 0.3  # log PPL and R for each nat of entropy
TARGET = 4.82  # the yardstick's entropy


def on_the_line(
    made_up: Any, name: str, plan: str, steps: int, temperature: float, entropy: float, above: float = 0.0, **how: float
) -> Any:
    """A cell each of whose texts has the log PPL and R that its entropy (2 nats for each unit of T) gives, and more.

    `above` is added to log PPL and a tenth of it to R; `own` is the size of noise that entropy does not explain.
    """
    cell = made_up.cell(name, plan, steps, temperature, 4)
    key, own = f"{name} {plan} {steps} {temperature}", how.get("own", 0.0)
    entropy_n = entropy - 2 * (1 - temperature) + made_up.noise(N, 0.05, key, "line")
    log_ppl_n = 5.1 + SLOPE * (entropy_n - TARGET) + above + made_up.noise(N, own, key, "own")
    gap_n = 0.25 + GAP_SLOPE * (entropy_n - TARGET) + above / 10 + made_up.noise(N, own / 10, key, "own gap")
    ratios = {"ppl": Ratio.mean(log_ppl_n, True), "entropy": Ratio.mean(entropy_n), "gap": Ratio.mean(gap_n)}
    return replace(cell, ratios=ratios, n=N, nfe=how.get("nfe", float(steps)))


def few_steps(made_up: Any, name: str, steps: int, entropy: float, above: float, **how: float) -> list[Any]:
    return [on_the_line(made_up, name, "golden", steps, t, entropy, above, **how) for t in (1.0, 0.95, 0.9)]


def one_token_a_step(made_up: Any, **how: float) -> list[Any]:
    return [on_the_line(made_up, "teacher", "permutation", 64, t, TARGET, **how) for t in (1.1, 1.0, 0.9)]


def read_cells(made_up: Any, cells: list[Any]) -> list[dict[str, Any]]:
    """What `slim` makes of them: read at T = 1."""
    from tools.results.match import matches

    found = made_up.results(dict.fromkeys([cell.model for cell in cells], 0.0), ["golden"], [8], [1.0], 4)
    return matches(analyse(replace(found, cells=cells, bounds=[]), draws=10), 0)


def curve(entries: list[dict[str, Any]], score: str, model: str) -> dict[int, dict[str, Any]]:
    found = [one for one in entries if (one["score"], one["model"], one["plan"]) == (score, model, "golden")]
    return {point["steps"]: point for one in found for point in one["curve"]}


def test_few_steps_are_cooled_to_the_yardsticks_entropy(made_up):
    """4.9 nats at T = 1 and 2 nats a unit of T: 4.82 is met at T = 0.96, where only what is off the line is left.

    Each text lies on the line, so that what its entropy does in a draw its PPL and R do too: the interval has no width
    unless scores are drawn apart from entropies.
    """
    cells = [*one_token_a_step(made_up), *few_steps(made_up, "B", 8, 4.9, 0.07)]
    entries = read_cells(made_up, cells)
    for score, distance in (("gen_ppl_cooled", 0.07), ("path_gap_cooled", 0.007)):
        point = curve(entries, score, "B")[8]
        assert point["distance"] == pytest.approx([distance] * 3, abs=1e-9)
        assert point["temperature"] == pytest.approx(0.96)
        assert point["nfe"] == 8
        assert point["n"] == N
    uncooled = curve(entries, "path_gap", "B")[8]["distance"][0]
    assert uncooled == pytest.approx(0.007 + GAP_SLOPE * 0.08)  # at T = 1 it pays for its entropy


def test_texts_are_counted_where_the_entropy_is_met(made_up):
    """It is met between T = 1 and 0.95: how many texts a cooler cell has is nothing to it."""
    *around, cooler = few_steps(made_up, "B", 8, 4.9, 0.07)
    entries = read_cells(made_up, [*one_token_a_step(made_up), *around, replace(cooler, n=N // 4)])
    assert curve(entries, "gen_ppl_cooled", "B")[8]["n"] == N


def test_the_interval_at_equal_entropy_is_that_of_what_entropy_does_not_explain(made_up):
    cells = [*one_token_a_step(made_up, own=0.2), *few_steps(made_up, "B", 8, 4.9, 0.07, own=0.2)]
    value, low, high = curve(read_cells(made_up, cells), "gen_ppl_cooled", "B")[8]["distance"]
    assert value == pytest.approx(0.07)
    # the yardstick's noise, and that of T = 1 and 0.95 with the weights 0.2 and 0.8 that mix them to 0.96
    spread = 0.2 * math.sqrt((1 + 0.2**2 + 0.8**2) / N)
    assert high - low == pytest.approx(2 * 1.96 * spread, rel=0.15)
    assert low < 0.07 < high


def test_the_first_crossing_is_linear_between_temperatures_and_nothing_beyond_them():
    from tools.results.match import first_crossing

    entropy_PD = torch.tensor([[5.0, 5.0, 5.0], [4.0, 4.0, 4.0], [4.8, 4.8, 4.8], [3.0, 3.0, 3.0]])
    value_PD = torch.tensor([[10.0], [20.0], [-90.0], [40.0]]).expand(4, 3)
    found_D = first_crossing(entropy_PD, value_PD, torch.tensor([4.75, 5.01, 3.9]))
    assert found_D[0] == 12.5  # the hottest piece that has it, and not the lowest value
    assert found_D[1].isnan()
    assert found_D[2] == pytest.approx(-90 + 130 * 0.5)
    assert first_crossing(entropy_PD[:1], value_PD[:1], torch.tensor([5.0, 5.0, 5.0])).isnan().all()


def test_what_does_not_bracket_the_entropy_is_left_out(made_up):
    cells = [*one_token_a_step(made_up), *few_steps(made_up, "B", 8, 4.9, 0.0), *few_steps(made_up, "B", 32, 4.8, 0.0)]
    cells += few_steps(made_up, "dull", 8, 4.7, 0.0)
    cells += few_steps(made_up, "alone", 8, 4.82, 0.0)[:1]  # of one temperature
    entries = read_cells(made_up, cells)
    assert set(curve(entries, "gen_ppl_cooled", "B")) == {8}
    assert set(curve(entries, "path_gap", "B")) == {8, 32}
    for name in ("dull", "alone"):
        assert not curve(entries, "gen_ppl_cooled", name)
        assert not curve(entries, "path_gap_cooled", name)
        assert curve(entries, "gen_ppl", name)
    only = read_cells(made_up, [c for c in cells if c.model in ("teacher", "alone")])
    assert {one["score"] for one in only} == {"gen_ppl", "path_gap"}


def test_half_of_the_draws_bracketed_is_an_interval_without_ends(made_up):
    """At T = 1 it has the yardstick's entropy and a hair more: every other draw has less than that."""
    cells = [*one_token_a_step(made_up), *few_steps(made_up, "B", 8, TARGET + 1e-6, 0.07)]
    point = curve(read_cells(made_up, cells), "gen_ppl_cooled", "B")[8]
    assert point["distance"][0] == pytest.approx(0.07)
    assert point["distance"][1:] == [None, None]


@pytest.mark.parametrize(
    ("permutation", "iid", "plan", "steps"),
    [
        ({64: 64.0}, {64: 40.0, 96: 50.0}, "permutation", 64),  # steps without a plan run no forward
        ({16: 16.0}, {16: 14.0, 64: 40.0}, "iid", 64),
        ({}, {16: 14.0, 64: 40.0}, "iid", 64),
        ({}, {}, "golden", 64),  # no plan of iid order: the base plan
        ({8: 8.0}, {}, "permutation", 8),  # golden has more forwards, but in an order of its own
    ],
)
def test_the_yardstick_is_the_teachers_most_forwards_in_iid_order(made_up, permutation, iid, plan, steps):
    from tools.results.match import yardstick

    nfe = {"permutation": permutation, "iid": iid, "golden": {64: 64.0}}
    cells = [
        on_the_line(made_up, name, law, count, 1.0, TARGET, nfe=forwards)
        for law, counts in nfe.items()
        for count, forwards in counts.items()
        for name in ("teacher", "B")
    ]
    cells.append(
        on_the_line(made_up, "teacher", "iid", 128, 0.9, TARGET, nfe=90.0)
    )  # not at the headline's temperature
    cells.append(on_the_line(made_up, "B", "iid", 256, 1.0, TARGET, nfe=162.0))  # not the teacher's
    found = made_up.results({"teacher": 0.0, "B": 0.0}, ["golden"], [8], [1.0], 4)
    whole = analyse(replace(found, cells=cells, bounds=[]), draws=10)
    whole = replace(whole, analysis={**whole.analysis, "base_plan": "iid" if iid else "golden"})
    assert yardstick(whole) == ("teacher", plan, steps)


def test_seeds_of_an_arm_are_one_row_and_a_margin_must_hold_for_all(made_up, tmp_path):
    """C's worst seed in 4 steps is 4% above the yardstick, in 8 steps all are below it; B's third seed is too dull."""
    from tools.results.headline import headline
    from tools.results.slim import slim
    from tools.results.studies import read_studies

    cells = one_token_a_step(made_up)
    for seed, above in enumerate((-0.03, -0.02, 0.04)):
        cells += few_steps(made_up, f"C-s{seed}", 4, 4.9, above)
        cells += few_steps(made_up, f"C-s{seed}", 8, 4.88, above - 0.05)
        cells += few_steps(made_up, f"B-s{seed}", 8, 4.9 - 0.1 * (seed == 2), -0.1)
    cells += few_steps(made_up, "mcd-r5-s0", 8, 4.9, 0.01)
    cells += few_steps(made_up, "teacher", 8, 4.9, 0.05)
    cells = [replace(c, scores=made_up.scores(gen_ppl=c.ratios["ppl"], path_gap=c.ratios["gap"])) for c in cells]
    models = dict.fromkeys([cell.model for cell in cells], 0.0)
    found = made_up.results(models, ["permutation", "golden"], [4, 8, 64], [1.1, 1.0, 0.95, 0.9], 4)
    house = tmp_path / "docs" / "results"
    house.mkdir(parents=True)
    write_results(replace(found, cells=cells, bounds=[]), tmp_path / "results.json")
    (house / "studies.yaml").write_text(
        f"headline: {{status: partial, samples: 4, runs: {{one: {{out: {tmp_path}}}}}}}"
    )
    slim([tmp_path], house / "one.json")
    blocks = headline(read_studies(house)[0])
    by = {table.title: table for table in blocks["distances"]}
    table = by["Distance by Gen PPL at equal entropy, judge a judge"]
    assert "the teacher on permutation, one token a step (64 forwards)" in table.note
    assert table.head[1:] == ["4", "8", "64"]
    rows = {line[0]: line[1:] for line in table.rows}
    assert list(rows) == [
        "teacher, permutation, equal counts", "teacher, golden", "B (3 seeds), golden", "C (3 seeds), golden",
        "mcd-r5-s0, golden",
    ]  # fmt: skip
    mean, least, most = (100 * math.expm1(x) for x in (-0.01 / 3, -0.03, 0.04))
    ends = f"({least:+.1f} to {most:+.1f})<br>[{least:+.1f}, {most:+.1f}]<br>T = 0.960"
    assert rows["C (3 seeds), golden"][0] == f"{mean:+.1f}% {ends}".replace("-", "−")
    assert rows["C (3 seeds), golden"][1].startswith("**−")  # bold: within the margin
    assert rows["B (3 seeds), golden"][1].startswith("not bracketed for 1 of 3 seeds")
    assert rows["mcd-r5-s0, golden"][1] == "**+1.0%** [+1.0, +1.0]<br>T = 0.960"
    assert rows["teacher, golden"][1] == "+5.1% [+5.1, +5.1]<br>T = 0.960"
    assert rows["teacher, permutation, equal counts"][2] == "0: the yardstick"
    within = {line[0]: line[1:] for line in blocks["within"][0].rows}
    assert within["C (3 seeds), golden"][0] == "8<br>8.0x"  # the mean would do in 4, and so would two seeds
    assert within["B (3 seeds), golden"][0] == "not bracketed"
    assert within["mcd-r5-s0, golden"][0] == "8<br>8.0x"
    assert within["teacher, golden"][0] == "not in 8"
    suffices = {line[0]: line[1:] for line in blocks["suffices"][0].rows}
    assert suffices["C (3 seeds), golden"][0].endswith("best seed ≤ 4.0")
    assert suffices["C (3 seeds), golden"][0].startswith("7.")  # the worst goes from 0.04 to -0.01: at 4 * 2 ** 0.8


def test_differences_between_arms_pair_seeds_and_texts(made_up):
    from tools.results.match import against

    gains = {f"{arm}-s{seed}": gain + seed / 100 for arm, gain in (("A", 0.0), ("B", 0.3)) for seed in range(3)}
    gains["B-s2"] += 0.3
    found = analyse(made_up.results(gains, ["golden"], [8], [1.0], 64), draws=10)
    nelbo = next(one for one in against(found, 0) if one["score"] == "nelbo" and one["plan"])
    assert (nelbo["arm"], nelbo["to"], nelbo["seeds"]) == ("B", "A", [0, 1, 2])
    assert nelbo["each"] == pytest.approx([-0.03, -0.03, -0.06])  # a gain is worth a tenth of itself in NELBO
    value, low, high = nelbo["difference"]
    assert value == pytest.approx(-0.04)
    spread = 0.02 * math.sqrt(2 / (64 * 3))  # what is hard for all models alike cancels: only their own noise is left
    assert high - low == pytest.approx(2 * 2.5 * spread, rel=0.35)  # of 8 stretches: Student's interval
