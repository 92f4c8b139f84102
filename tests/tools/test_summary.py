"""The README's table: a row for each way of writing, a line for each judge, nothing that a study has not."""

import math
from types import SimpleNamespace

from tools.results.summary import HEAD, summary


def made_up(name: str, length: int, steps: int, plan: str, distances: dict, seed: int | None = None) -> SimpleNamespace:
    yardstick = {"model": "teacher", "plan": "permutation", "steps": length, "nfe": length, "n": 64, "length": length}
    entries = [
        {"judge": judge, "score": score, "model": "teacher", "plan": plan, "yardstick": yardstick,
         "curve": [{"steps": steps, "nfe": float(steps), "n": 64, "distance": distance}]}
        for (judge, score), distance in distances.items()
    ]  # fmt: skip
    common = {"hot": True, "role": "teacher", "n": 64}
    cells = [
        common | {"plan": "permutation", "steps": length, "gen_ppl": [100, 97, 103]},
        common | {"plan": plan, "steps": steps, "gen_ppl": [110, 107, 113]},
    ]
    slims = [SimpleNamespace(said={"models": {"teacher": {"seed": seed}}})]
    return SimpleNamespace(name=name, entries=lambda kind: entries, cells=lambda judge: cells, slims=slims)


def test_every_score_and_judge_has_its_place():
    log = [math.log(1.1), math.log(1.05), math.log(1.15)]
    study = made_up("headline", 256, 8, "golden", {
        ("ours", "gen_ppl_cooled"): log, ("outside", "gen_ppl_cooled"): [-0.05, None, None],
        ("ours", "path_gap_cooled"): [0.003, 0.001, 0.005], ("outside", "nelbo"): [0.054, 0.045, 0.059],
        ("outside", "path_gap"): [-0.0002, -0.002, 0.006],
    })  # fmt: skip
    table = summary([study])
    assert table is not None
    assert table.note.endswith("The judges: ours, then outside.")
    ((what, fewer, cooled, hot, gap, hot_gap, nelbo),) = table.rows
    assert (what, fewer) == ("L = 256: golden, 8 steps<br>64 texts", "32x")
    assert cooled == "+10% [+5, +15]<br>−5% [−∞, ∞]"
    assert hot == "+10% [+6, +15]<br>+10% [+6, +15]"  # 0.095 ± hypot(0.030, 0.027) in logs
    assert gap == "**+0.0030** [+0.0010, +0.0050]<br>–"  # all of it within the margin
    assert hot_gap == "–<br>−0.0002 [−0.0020, +0.0060]"
    assert nelbo == "+0.054 [+0.045, +0.059]"
    assert len(table.head) == len(HEAD) == 7


def test_what_was_not_run_has_no_row():
    assert summary([made_up("headline", 256, 4, "golden", {("ours", "nelbo"): [0.1, 0.0, 0.2]})]) is None
    assert summary([made_up("plans", 256, 8, "golden", {("ours", "nelbo"): [0.1, 0.0, 0.2]})]) is None


def test_two_trainings_of_one_teacher_are_told_apart():
    told = {("ours", "nelbo"): [0.1, 0.0, 0.2]}
    studies = [made_up(name, 1024, 16, "golden", told, seed) for seed, name in enumerate(("scale", "scale-again"))]
    table = summary(studies)
    assert table is not None
    assert [row[0].rpartition(", ")[2] for row in table.rows] == ["training seed 0", "training seed 1"]
