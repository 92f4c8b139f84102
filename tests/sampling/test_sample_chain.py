"""`sample` with a chain writes what a loop over the slots of every step writes: any plan, grid, prompt and shape."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch
from tests.inference.chains import L, V, head, sequential, tiny_body

from unmask.checkpoint.io import Checkpoint
from unmask.inference.categorical import Draw, Law
from unmask.inference.chain import Chain
from unmask.inference.ready import make_ready
from unmask.inference.step_law import Factorised
from unmask.metrics.nelbo import nelbo
from unmask.metrics.path_gap import path_gap
from unmask.metrics.texts import of_samples
from unmask.models.chain import ORDERS
from unmask.models.dit.network import DiT
from unmask.plans.grids import Grid, make_grid
from unmask.plans.plan import PLANS, USUAL, Blocks, Plan, locked_plans, make_plan
from unmask.processes.schedule import LogLinear
from unmask.sampling.drafts import How
from unmask.sampling.sample import Row, Run, start_run
from unmask.sampling.teacher_forcing import teacher_force
from unmask.sampling.verbs import sample

RANK, UNIFORM = make_grid("rank", 4), make_grid("uniform", 4)
GIVEN_BL = torch.full((3, L), -1)
GIVEN_BL[0, :5], GIVEN_BL[1, 3:9], GIVEN_BL[2, -1] = 2, 4, 0
PAIRS = [(plan, RANK) for plan in sorted(PLANS)] + [(plan, UNIFORM) for plan in sorted(locked_plans())]


class Slots(Chain):
    """A chain that draws slot after slot."""

    def draw(self, step, uniform_M):
        token_M = sequential(self, step, uniform_M)
        return Draw(token_M, self.log_prob(step, token_M), torch.float64)


def written(law: Chain, plan: str | Plan, grid: Grid, shape: Law | None = None, given_BL=GIVEN_BL) -> list[Row]:
    checkpoint = Checkpoint(tiny_body(), step_law=law)
    run: Run = start_run(checkpoint, make_ready(checkpoint.model, torch.device("cpu")), plan=plan, grid=grid, law=shape)
    return run.batch(list(range(len(given_BL))), given_BL)


def same(one: list[Row], other: list[Row]) -> bool:
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a.log_q_L, b.log_q_L)
    return [row.tokens_L.tolist() for row in one] == [row.tokens_L.tolist() for row in other]


@pytest.mark.parametrize(("plan", "grid"), PAIRS, ids=lambda one: getattr(one, "name", one))
def test_every_plan_on_both_grids_around_given_words(plan, grid):
    rows = written(Chain(head()), plan, grid)
    assert same(rows, written(Slots(head()), plan, grid))
    assert not torch.equal(rows[0].tokens_L, written(Factorised(), plan, grid)[0].tokens_L)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", [Law(temperature=0.6), Law(top_p=0.8), Law(top_k=3), Law(temperature=0.0)])
def test_every_order_at_temperatures_and_cuts(order, shape):
    for plan in ("golden", Blocks(8, make_plan("golden"))):
        assert same(written(Chain(head(order)), plan, RANK, shape), written(Slots(head(order)), plan, RANK, shape))


def test_rounds_are_counted_text_by_text():
    """One text by itself takes the rounds that it takes in company, and at least one a step."""
    rows = written(Chain(head()), "golden", RANK)
    for i, row in enumerate(rows):
        checkpoint = Checkpoint(tiny_body(), step_law=Chain(head()))
        ready = make_ready(checkpoint.model, torch.device("cpu"))
        (alone,) = start_run(checkpoint, ready, plan="golden", grid=RANK).batch([i], GIVEN_BL[i : i + 1])
        assert (alone.rounds, alone.tokens_L.tolist()) == (row.rounds, row.tokens_L.tolist())
        assert row.rounds >= row.nfe
    assert max(row.rounds for row in rows) > 4
    assert written(Factorised(), "golden", RANK)[0].rounds is None


@pytest.mark.parametrize("order", ORDERS)
def test_a_text_that_has_ended_leaves_the_order_of_the_others(order):
    """The slots of a head in the plan's order go by u, which the steps after an end must not lose."""
    blank_BL, plan = torch.full((6, L), -1), Blocks(4, make_plan("golden"))

    def rows(stop_ids):
        codec = SimpleNamespace(stop_ids=frozenset(stop_ids), eos_id=0, size=V - 1, mask_id=None)
        checkpoint = Checkpoint(tiny_body(), step_law=Chain(head(order)), tokenizer=codec)
        how = How(checkpoint, plan, make_grid("rank", 8), spell="to_end")
        return Run(how, make_ready(checkpoint.model, torch.device("cpu"))).batch(list(range(6)), blank_BL)

    whole = rows([-1])
    stop = int(whole[0].tokens_L[0])
    ended = rows([stop])
    lasting = [i for i, row in enumerate(whole) if stop not in row.tokens_L[:12].tolist()]
    assert ended[0].nfe < whole[0].nfe
    assert lasting
    assert same([ended[i] for i in lasting], [whole[i] for i in lasting])


def test_one_uniform_a_position_is_the_same_law_in_more_rounds():
    """Mean log q of many texts agrees; the uniform draw changes tokens more often."""
    blank_BL = torch.full((400, L), -1)
    found = [written(Chain(head(), noise=noise), "golden", RANK, given_BL=blank_BL) for noise in ("gumbel", "uniform")]
    log_q = [torch.stack([row.log_q_L.sum() for row in rows]) for rows in found]
    error = sum(float(one.var()) / len(one) for one in log_q) ** 0.5
    assert abs(float(log_q[0].mean() - log_q[1].mean())) < 4 * error
    rounds = [sum(row.rounds for row in rows) for rows in found]
    assert rounds[1] > rounds[0]


def test_the_record_and_teacher_forcing_agree_with_the_draw():
    """log q of what was drawn comes out again, so the NELBO and the path gap are about this sampler."""
    checkpoint = Checkpoint(tiny_body(), step_law=Chain(head()))
    drawn = sample(checkpoint, 5, 4, infill=torch.tensor([1, 2] + [-1] * (L - 2)), device="cpu")
    assert drawn.record["rounds"] == {"mean": float(drawn.rounds.double().mean()), "most": int(drawn.rounds.max())}
    assert drawn.record["step_law"]["name"] == "chain"
    forced = teacher_force(
        make_ready(checkpoint.model, torch.device("cpu")), drawn.tokens, make_plan(USUAL), RANK, LogLinear(),
        step_law=checkpoint.step_law, blank_TL=~drawn.given,
    )  # fmt: skip
    torch.testing.assert_close(forced.log_q_TL, drawn.log_q)


def test_nelbo_and_path_gap_take_a_chain(letters, hand_made):
    codec = letters(V - 1)
    body = DiT.preset("tiny", vocab_size=V, length=L, hidden=16, cond=4, heads=2, blocks=2)
    body.load_state_dict(tiny_body().state_dict())
    chained = Checkpoint(body.eval(), tokenizer=codec, step_law=Chain(head()))
    plain = dataclasses.replace(chained, step_law=Factorised())
    drawn = sample(chained, 300, 4, device="cpu")
    texts = of_samples(drawn, codec)
    found = [nelbo(one, texts, 4, device="cpu").per_token.value for one in (chained, plain)]
    assert found[0] == pytest.approx(-float(drawn.log_q.mean()), abs=1e-4)
    assert found[0] < found[1] - 0.02  # its own texts are likelier under it than under the law without the head
    judge, _ = hand_made(codec)
    gap = path_gap(texts, judge)
    assert gap.gap.value == pytest.approx(gap.judge_nll.value - gap.sampler_entropy.value)
