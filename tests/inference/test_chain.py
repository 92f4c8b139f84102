"""The chain's law: what it says of tokens is what a loop over the slots says, in every order, for every plan."""

import dataclasses

import pytest
import torch
from tests.inference.chains import L, V, head, sequential, tiny_body
from torch.fx.experimental.proxy_tensor import make_fx

from unmask.inference import gumbel
from unmask.inference.categorical import Law
from unmask.inference.chain import Chain
from unmask.inference.ready import make_ready
from unmask.inference.step_law import Factorised, Step
from unmask.models.chain import ORDERS, ChainHead
from unmask.models.dit import DiT
from unmask.plans.grids import make_grid
from unmask.plans.plan import make_plan
from unmask.processes.schedule import LogLinear
from unmask.sampling.teacher_forcing import teacher_force


@pytest.fixture(scope="module")
def body() -> DiT:
    return tiny_body()


def step_of(body: DiT, seed: int = 0) -> tuple[Step, torch.Tensor]:
    """Three texts, some of whose positions are drawn, and tokens there."""
    generator = torch.Generator().manual_seed(seed)
    ready = make_ready(body, torch.device("cpu"))
    x_RL = torch.randint(V - 1, (3, L), generator=generator)
    drawn_RL = torch.rand(3, L, generator=generator) < torch.tensor([[0.2], [0.9], [0.5]])
    h_ND = ready.features(torch.where(drawn_RL, V - 1, x_RL)).flatten(0, 1)
    flat_M = drawn_RL.flatten().nonzero()[:, 0]
    u_M = torch.rand(len(flat_M), generator=generator, dtype=torch.float64)
    return Step(ready, h_ND, flat_M, flat_M, L, Law(), rank_M=u_M), x_RL.flatten()[flat_M]


@torch.inference_mode()
def test_a_head_is_born_as_the_factorised_law(body):
    step, token_M = step_of(body)
    for law in (Chain(head(born=True)), Chain(head(born=True, places=True))):
        torch.testing.assert_close(law.log_prob(step, token_M), Factorised().log_prob(step, token_M))


@torch.inference_mode()
@pytest.mark.parametrize("order", ORDERS)
def test_log_prob_is_that_of_slot_after_slot(body, order):
    """Against a loop that knows only the tokens before a slot: those after it are other ones at every turn."""
    step, token_M = step_of(body)
    law, row_M = Chain(head(order)), step.row_M
    found = law.log_prob(step, token_M)
    surest_M = step.shaped(torch.arange(len(token_M))).softmax(-1).amax(-1)
    key_M = {"left_to_right": step.flat_M.double(), "plan": step.rank_M, "confidence": -surest_M}[order]
    assert float((found - Factorised().log_prob(step, token_M)).abs().max()) > 0.1
    for m in range(len(token_M)):
        later = (row_M == row_M[m]) & (key_M > key_M[m] + (1e-3 if order == "confidence" else 0))
        other_M = torch.where(later, (token_M + 1 + m) % (V - 1), token_M)
        torch.testing.assert_close(law.log_prob(step, other_M)[m], found[m])
        own_M = token_M.clone()
        mass = torch.zeros((), dtype=torch.float64)
        for v in range(V - 1):
            own_M[m] = v
            mass += law.log_prob(step, own_M)[m].exp()
        torch.testing.assert_close(mass, torch.ones_like(mass))


@torch.inference_mode()
def test_a_blind_head_does_not_see_the_tokens_of_its_step(body):
    step, token_M = step_of(body)
    law = Chain(head(blind=True))
    found = law.log_prob(step, token_M)
    for m in range(len(token_M)):
        other_M = (token_M + 3) % (V - 1)
        other_M[m] = token_M[m]
        torch.testing.assert_close(law.log_prob(step, other_M)[m], found[m])
    assert float((found - Factorised().log_prob(step, token_M)).abs().max()) > 0.1


@torch.inference_mode()
@pytest.mark.parametrize("places", [False, True])
def test_only_a_head_with_places_knows_where_its_slots_stand(places):
    """Two steps that differ by a shift, where the body's features say nothing, as in a text all masked."""
    h_RSD, vector_RSE = torch.ones(2, 3, 16).double(), torch.randn(1, 3, 16).double().expand(2, -1, -1)
    position_RS = torch.tensor([[0, 4, 9], [3, 7, 12]])
    one, other = head(places=places)(h_RSD, vector_RSE, position_RS)
    assert torch.allclose(one, other) is not places


@pytest.mark.parametrize("plan", ["golden", "stride", "comb", "iid", "confidence", "blocks", "left_to_right"])
@pytest.mark.parametrize("order", ORDERS)
def test_teacher_forcing_takes_a_chain_under_every_plan(body, plan, order):
    x_TL = torch.randint(V - 1, (3, L), generator=torch.Generator().manual_seed(5))
    ready, grid = make_ready(body, torch.device("cpu")), make_grid("rank", 4)
    law = Chain(head(order))
    together, alone = (
        teacher_force(ready, x_TL, make_plan(plan), grid, LogLinear(), step_law=law, rows=rows) for rows in (7, 1)
    )
    assert bool(together.log_q_TL.isfinite().all())
    torch.testing.assert_close(together.log_q_TL, alone.log_q_TL)
    assert not torch.equal(together.log_q_TL, teacher_force(ready, x_TL, make_plan(plan), grid, LogLinear()).log_q_TL)


def test_a_head_on_another_precision_is_a_copy(body):
    step, token_M = step_of(body)
    narrow = dataclasses.replace(Chain(head()).head.config)
    half = ChainHead(narrow).eval()
    with torch.inference_mode():
        Chain(half).log_prob(step, token_M)
    assert {w.dtype for w in half.parameters()} == {torch.float32}


@torch.inference_mode()
@pytest.mark.parametrize("order", ORDERS)
def test_the_parallel_draw_is_the_sequential_one(body, order, monkeypatch):
    """Token for token, at temperatures and cuts too; and its log q is what teacher forcing says."""
    law = Chain(head(order))
    longest = 0
    for seed, shape in enumerate([Law(), Law(temperature=0.7), Law(top_p=0.8), Law(top_k=3), Law(temperature=0.0)]):
        step = dataclasses.replace(step_of(body, seed)[0], law=shape)
        uniform_M = torch.rand(len(step.local_M), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        drawn = law.draw(step, uniform_M)
        assert drawn.token_M.tolist() == sequential(law, step, uniform_M).tolist()
        with monkeypatch.context() as pieces:  # whose noise is made anew in every round
            pieces.setattr(step.ready, "chunk", 5)
            assert law.draw(step, uniform_M).token_M.tolist() == drawn.token_M.tolist()
        torch.testing.assert_close(drawn.log_q_M, law.log_prob(step, drawn.token_M))
        longest = max(longest, int(drawn.rounds_R.max()))
    assert longest > 2  # the head's tokens did depend on one another


@torch.inference_mode()
@pytest.mark.parametrize("order", ORDERS)
def test_rounds_in_memory_of_their_own_are_the_same_rounds(body, order, monkeypatch):
    """The form that a GPU replays as graphs, here run as it is: same tokens, log q and rounds, text by text."""
    law = Chain(head(order))
    for seed, shape in enumerate([Law(), Law(top_p=0.8), Law(temperature=0.0)]):
        step = dataclasses.replace(step_of(body, seed)[0], law=shape)
        uniform_M = torch.rand(len(step.local_M), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        drawn = law.draw(step, uniform_M)
        monkeypatch.setattr(step.ready, "graphs", True)
        again = law.draw(step, uniform_M)
        monkeypatch.setattr(step.ready, "graphs", False)
        assert again.token_M.tolist() == drawn.token_M.tolist()
        assert again.rounds_R.tolist() == drawn.rounds_R.tolist()
        torch.testing.assert_close(again.log_q_M, drawn.log_q_M)


def copies(body: DiT, count: int) -> Step:
    """Many times the same text, of which three positions are drawn."""
    ready = make_ready(body, torch.device("cpu"))
    x_L = torch.randint(V - 1, (L,), generator=torch.Generator().manual_seed(3))
    x_L[[4, 5, 9]] = V - 1
    h_ND = ready.features(x_L[None]).expand(count, L, -1).flatten(0, 1)
    flat_M = (torch.arange(count)[:, None] * L + torch.tensor([4, 5, 9])).flatten()
    return Step(ready, h_ND, flat_M, flat_M, L, Law())


@torch.inference_mode()
@pytest.mark.parametrize("noise", ["gumbel", "uniform", "acceptance"])
def test_every_draw_follows_the_law_of_the_chain(body, noise):
    """Counts of all triples of tokens against the exact law, by enumeration."""
    count = 4000
    law, step = Chain(head(), noise=noise), copies(body, count)
    uniform_M = torch.rand(3 * count, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    drawn = law.draw(step, uniform_M)
    torch.testing.assert_close(drawn.log_q_M, law.log_prob(step, drawn.token_M))
    S = V - 1
    every = torch.cartesian_prod(*[torch.arange(S)] * 3)
    p_T = law.log_prob(copies(body, len(every)), every.flatten()).view(-1, 3).sum(1).exp()
    token_C3 = drawn.token_M.view(count, 3)
    found_T = torch.bincount(token_C3[:, 0] * S * S + token_C3[:, 1] * S + token_C3[:, 2], minlength=S**3).double()
    often = p_T * count > 5
    expected = torch.cat([p_T[often], p_T[~often].sum()[None]]) * count
    seen = torch.cat([found_T[often], found_T[~often].sum()[None]])
    chi, free = float(((seen - expected) ** 2 / expected).sum()), len(seen) - 1
    assert free > 30
    assert abs(chi - free) < 4 * (2 * free) ** 0.5
    alone_T = Factorised().log_prob(copies(body, len(every)), every.flatten()).view(-1, 3).sum(1).exp()
    assert float((p_T - alone_T).abs().sum() / 2) > 0.2  # another law than the model's alone
    assert int(drawn.rounds_R.max()) <= 4


def test_gumbel_noise_is_gumbel_and_comes_again_in_any_block():
    key_M = gumbel.keys_of(torch.rand(400, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    noise_MV = gumbel.gumbel(key_M, gumbel.offsets_of(500))
    torch.testing.assert_close(gumbel.gumbel(key_M[7:9], gumbel.offsets_of(500)), noise_MV[7:9], rtol=0, atol=0)
    torch.testing.assert_close(gumbel.gumbel(key_M[7:9], gumbel.offsets_of(20)), noise_MV[7:9, :20], rtol=0, atol=0)
    uniform_N = (-(-noise_MV).exp()).exp().flatten().sort().values
    N = len(uniform_N)
    distance = (uniform_N - (torch.arange(N) + 0.5) / N).abs().max() * N**0.5  # Kolmogorov-Smirnov
    assert float(distance) < 1.95  # p = 0.001
    apart = torch.corrcoef(torch.stack([noise_MV[:, :-1].flatten(), noise_MV[:, 1:].flatten()]))[0, 1]
    beside = torch.corrcoef(torch.stack([noise_MV[:-1].flatten(), noise_MV[1:].flatten()]))[0, 1]
    assert max(abs(float(apart)), abs(float(beside))) < 0.01


def test_draws_by_gumbel_noise_follow_the_law():
    p_V = torch.tensor([0.5, 0.3, 0.15, 0.05, 0.0], dtype=torch.float64)
    key_M = gumbel.keys_of(torch.rand(20_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    drawn = gumbel.pick(p_V.log().expand(len(key_M), -1), key_M, gumbel.offsets_of(5))
    count_V = torch.bincount(drawn.token_M, minlength=5).double()
    assert count_V[4] == 0
    chi = ((count_V[:4] - p_V[:4] * len(key_M)) ** 2 / (p_V[:4] * len(key_M))).sum()
    assert float(chi) < 16.3  # p = 0.001 of 3 degrees of freedom
    torch.testing.assert_close(drawn.log_q_M, p_V.log()[drawn.token_M])


def test_what_is_compiled_makes_no_index_of_its_own():
    """Triton's indices have 32 bits, and it refuses to multiply one by SplitMix64's step."""
    given = torch.randn(3, 20), gumbel.keys_of(torch.rand(3, dtype=torch.float64)), gumbel.offsets_of(20)
    traced = make_fx(lambda *now: tuple(gumbel.draw(*now, 19, Law()).__dict__.values())[:2])(*given)
    assert not [node for node in traced.graph.nodes if "arange" in str(node.target) or "iota" in str(node.target)]
    assert [node for node in traced.graph.nodes if "argmax" in str(node.target)]
