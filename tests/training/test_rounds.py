"""Rounds in the one training loop: what the teacher is and when, what is kept, and that no interruption shows."""

import pytest
import torch
from tests.small import shaken
from tests.training.runs import lines, student_of, weights

from unmask.checkpoint.io import Checkpoint, load
from unmask.core.errors import UserError
from unmask.core.streams import stream
from unmask.data.loader import Loader
from unmask.data.shards import ShardSet
from unmask.objectives.distil.curriculum import Curriculum
from unmask.objectives.distil.mcd import MCD
from unmask.training.rounds import METHODS, Rounds, make_rounds


@pytest.fixture
def teacher(model) -> Checkpoint:
    return Checkpoint(shaken(model))


class Spy(MCD):
    """MCD that notes which teacher, gap and temperature each step used."""

    def __call__(self, student, batch, *, step, generator):
        self.seen.append((step, self.delta, self.tau, weights(self.teacher.model).clone(), weights(student).clone()))
        return super().__call__(student, batch, step=step, generator=generator)


@pytest.mark.parametrize("snapshot", ["raw", "ema"])
def test_each_round_has_its_gap_temperature_and_a_hard_snapshot(teacher, trainer, corpus, tmp_path, snapshot):
    Spy.seen = []
    curriculum = Curriculum(3, delta_start=0.1, tau_start=0.9, tau_drop=0.2)
    rounds = Rounds(Spy(teacher), curriculum, 3, snapshot)
    student = student_of(teacher)
    trainer(steps=9, eval_every=100).fit(student, rounds, corpus)
    deltas, taus = ([entry[place] for entry in Spy.seen] for place in (1, 2))
    assert deltas == pytest.approx([0.1] * 3 + [0.2] * 3 + [0.4] * 3)
    assert taus == pytest.approx([0.9] * 3 + [0.7] * 3 + [0.5] * 3)
    expected = [
        teacher,
        load(tmp_path / "run/rounds/1", weights=snapshot),
        load(tmp_path / "run/rounds/2", weights=snapshot),
    ]
    for step, _, _, taught_by, taught in Spy.seen:
        assert torch.equal(taught_by, weights(expected[step // 3].model))
        if step % 3 == 0 and snapshot == "raw":
            assert torch.equal(taught_by, taught)  # the student begins a round as its own teacher
    # the last round's student is the run's; raw and averaged weights are both there
    for kind in ("raw", "ema"):
        last = load(tmp_path / "run/rounds/3", weights=kind)
        assert torch.equal(weights(last.model), weights(load(tmp_path / "run", weights=kind).model))
    assert torch.equal(weights(load(tmp_path / "run/rounds/3", weights="raw").model), weights(student))
    about = load(tmp_path / "run/rounds/2").provenance
    assert (about["step"], about["distillation"]["round"]) == (6, 2)
    assert about["distillation"]["tau_product"] == pytest.approx(0.9 * 0.7)
    assert about["score"] is not None  # every round is evaluated at its end, whatever eval_every says


def test_optimiser_warm_up_and_average_go_on_over_rounds(teacher, trainer, corpus, tmp_path):
    """Rounds of one step with delta and tau that stay (nearly) the same, against the same steps taken by hand."""
    rounds = Rounds(MCD(teacher), Curriculum(4, 1e-9, 0.9, 0.0), 1)
    student = student_of(teacher)
    for block in student.blocks:
        block.dropout = 0.0
    twin = student_of(teacher)
    trainer(steps=4, warmup=3, eval_every=0, save_every=0).fit(student, rounds, corpus)

    data = Loader([ShardSet.open(corpus)], twin.length)
    optimiser = torch.optim.AdamW(twin.parameters(), lr=0.0, betas=(0.9, 0.98), weight_decay=0.0)
    for step in range(4):
        twin.eval()
        loss = MCD(twin, delta=1e-9 * 2**step, tau=0.9)
        output = loss(twin, data.batch(step, 0, 8, 8), step=step, generator=stream(0, "noise", step))
        ((output.loss_BL * output.weight_BL).sum() / output.weight_BL.sum()).backward()
        torch.nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
        optimiser.param_groups[0]["lr"] = 1e-2 * min(1, (step + 1) / 3)
        optimiser.step()
        optimiser.zero_grad()
    assert float((weights(student) - weights(twin)).abs().max()) < 1e-4
    assert float((weights(student) - weights(teacher.model)).abs().max()) > 1e-2
    assert [line["lr"] for line in lines(tmp_path / "run", forwards=4)] == pytest.approx(
        [1e-2 / 3, 2e-2 / 3, 1e-2, 1e-2]
    )


def test_a_round_whose_teacher_is_gone_says_so(teacher, trainer, corpus, tmp_path):
    def rounds():
        return Rounds(MCD(teacher), Curriculum(3, 0.1), 3)

    trainer(steps=5, save_every=1).fit(student_of(teacher), rounds(), corpus)
    (tmp_path / "run/rounds/1").rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"rounds/1 is gone, and the round that was begun needs it"):
        trainer(steps=9).fit(student_of(teacher), rounds(), corpus)
    (tmp_path / "elsewhere").rename(tmp_path / "run/rounds/1")
    trainer(steps=9).fit(student_of(teacher), rounds(), corpus)
    longer = Rounds(MCD(teacher), Curriculum(4, 0.1), 3)  # and a finished run may have another round
    assert trainer(steps=12).fit(student_of(teacher), longer, corpus).provenance["step"] == 12
    assert (tmp_path / "run/rounds/4").is_dir()


def test_methods_have_rounds_of_their_own_and_may_be_given_more(teacher, trainer, corpus, tmp_path):
    own = {name: make_rounds(name, teacher).curriculum.rounds for name in METHODS if name != "dcd"}
    assert own == {"mcd": 5, "sdtt": 7, "cd4lm": 5, "elbo": 5}  # SDTT's gap ends at 1/8
    for rounds in (1, 12):  # more than there are doublings of MCD's gap: the ELBO has none
        longer = make_rounds("elbo", teacher, rounds=rounds, round_steps=1)
        assert trainer(steps=rounds).fit(student_of(teacher), longer, corpus).provenance["step"] == rounds


def test_methods_race_on_the_same_batches(teacher, trainer, corpus, tmp_path):
    """Same tokens in the same order for the same steps; what a step costs is in the log."""
    seen = {}
    for name, cost in (("mcd", 4), ("sdtt", 5), ("cd4lm", 4), ("elbo", 3)):
        data = Loader([ShardSet.open(corpus)], 12)
        read, seen[name] = data.batch, []

        def batch(*where, read=read, found=seen[name]):
            found.append(read(*where))
            return found[-1]

        data.batch = batch
        rounds = make_rounds(name, teacher, rounds=2, round_steps=2)
        out = tmp_path / name
        trainer(steps=4, eval_every=0, out=out).fit(student_of(teacher), rounds, data)
        assert [line["forwards"] for line in lines(out)] == [cost] * 4
        assert [line["round"] for line in lines(out)] == [1, 1, 2, 2]
        assert lines(out)[-1]["seconds"] > lines(out)[0]["seconds"] > 0
        assert sorted(path.name for path in (out / "rounds").iterdir()) == ["1", "2"]
    for batches in seen.values():
        assert len(batches) == 4
        assert all(torch.equal(a.tokens_BL, b.tokens_BL) for a, b in zip(batches, seen["mcd"], strict=True))
    assert seen.keys() | {"dcd"} == METHODS.keys()  # DCD is for another process


def test_a_fixed_teacher_does_not_sharpen_twice(teacher):
    for name, product in (("mcd", 0.9 * 0.8), ("sdtt", 0.9 * 0.8), ("cd4lm", 0.8)):
        rounds = make_rounds(name, teacher, rounds=2, round_steps=1, tau=0.9, tau_drop=0.1)
        assert rounds.tau_product == 1
        rounds.enter(1, None)
        assert rounds.tau_product == pytest.approx(0.9)
        rounds.enter(2, teacher)
        assert rounds.tau_product == pytest.approx(product)
    assert make_rounds("elbo", teacher).tau_product == 1


@pytest.mark.parametrize(
    ("name", "settings", "line"),
    [
        ("mcd", {"rounds": 10}, "reaches 1 in round 10, but must stay below 1: take at most 9 rounds"),
        ("sdtt", {"tau": 0.1, "tau_drop": 0.05}, "must stay above 0"),
        ("mcd", {"tau": 0.0}, "must stay above 0"),
        ("cd4lm", {"tau": float("nan")}, "above 0"),
        ("mcd", {"delta": float("nan")}, "0 < delta < 1"),
        ("mcd", {"round_steps": 0}, "at least 1 optimiser step"),
        ("mcd", {"rounds": 0}, "at least 1 round"),
        ("mcd", {"k": 3}, "k is a setting of sdtt: the method mcd has no use for it"),
        ("elbo", {"tau": 0.9}, "tau is a setting of mcd, sdtt, cd4lm"),
        ("elbo", {"plan": "stride"}, "made for one number of steps, which elbo does not know"),
        ("cd4lm", {"plan": "stride"}, "made for one number of steps, which cd4lm does not know"),
        ("mdc", {}, "did you mean 'mcd'?"),
        ("mcd", {"snapshot": "soft"}, "unknown snapshot 'soft'"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(teacher, name, settings, line):
    with pytest.raises(UserError) as caught:
        make_rounds(name, teacher, **settings)
    assert line in str(caught.value)


def test_more_steps_than_rounds_are_refused(teacher, trainer, corpus, tmp_path):
    with pytest.raises(UserError, match="8 steps are more than 2 rounds of 3"):
        trainer(steps=8).fit(student_of(teacher), make_rounds("mcd", teacher, rounds=2, round_steps=3), corpus)
    assert not (tmp_path / "run").exists()
