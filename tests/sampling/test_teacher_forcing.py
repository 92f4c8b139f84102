"""log q of a given text: what `sample` recorded for its own draws, a law that sums to 1, closed forms of oracles."""

import itertools

import pytest
import torch
from tests.theory.test_plan_laws import kl_given_plan

from unmask.checkpoint.io import Checkpoint
from unmask.core.streams import stream
from unmask.inference.categorical import Law
from unmask.inference.ready import make_ready
from unmask.models.dit.network import DiT
from unmask.plans.grids import Grid, make_grid
from unmask.plans.plan import Blocks, Confidence, choose_grid, locked_plans, make_plan
from unmask.processes import Masked
from unmask.processes.schedule import Cosine, LogLinear
from unmask.sampling.teacher_forcing import teacher_force
from unmask.sampling.verbs import sample
from unmask.theory.exact import Views
from unmask.theory.oracle import Enumerated, sticky
from unmask.theory.plan_laws import chain_of

CPU = torch.device("cpu")
FITTED = Grid("fitted", (1.0, 0.95, 0.6, 0.55, 0.0), by="rank")
TAILED = Grid("tailed", (1.0, 0.75, 0.4), argmax_tail=True)  # MDLM's noise removal, with a tail large enough to see


@pytest.fixture(scope="module")
def network():
    """A small DiT in float64, shaken: a fresh one has a head of zeros and answers the same everywhere."""
    torch.manual_seed(0)
    model = DiT(vocab_size=11, length=24, hidden=16, cond=8, blocks=2, heads=2).double().eval()
    generator = stream(0, "shake")
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.3 * torch.randn(weight.shape, generator=generator, dtype=torch.float64)
    return model


CASES = [
    *((plan, grid, {}) for plan in locked_plans() for grid in ("rank", FITTED)),
    ("iid", "uniform", {}),
    ("iid", TAILED, {}),
    ("iid", "mdlm", {"temperature": 0.7}),
    ("golden", "cosine", {"top_p": 0.8}),
    ("golden", [0.9, 0.2], {"top_k": 3}),
    ("left_to_right", "rank", {"top_p": 0.9, "top_k": 5, "temperature": 1.3}),
    (Blocks(7, make_plan("golden")), "cosine", {}),
    ("confidence", "rank", {"temperature": 0.8}),
    ("llada", "rank", {"temperature": 0.8}),
    ("dream_entropy:alg_temp=0.1", "rank", {"temperature": 0.8}),
    (Confidence("entropy", threshold=1.0), None, {}),
    (Blocks(9, Confidence(threshold=0.3)), None, {"top_p": 0.9}),
]


@pytest.mark.parametrize(("plan", "grid", "law"), CASES, ids=str)
def test_what_sample_recorded_comes_out_again(network, plan, grid, law):
    checkpoint = Checkpoint(network, Masked(Cosine()))
    plan, steps = make_plan(plan), 4 if isinstance(grid, str) else None
    drawn = sample(checkpoint, 5, steps, plan=plan, grid=grid, seed=3, device="cpu", batch=2, **law)
    forced = teacher_force(
        make_ready(network, CPU), drawn.tokens, plan, choose_grid(plan, grid, steps), Cosine(),
        law=Law(**law), seed=3, rows=3,
    )  # fmt: skip
    assert torch.allclose(forced.log_q_TL, drawn.log_q, rtol=0, atol=1e-9)
    assert torch.equal(forced.nfe_T, drawn.nfe)
    assert drawn.log_q.sum() < -20  # far from certain, so a law taken at another view would show


@pytest.mark.parametrize("plan", ["golden", "left_to_right", "confidence"])
def test_given_words_are_not_scored(network, plan):
    wanted = torch.full((3, 20), network.mask_id)
    wanted[:, :4], wanted[1, 9:13], wanted[2, -1] = 5, torch.tensor([1, 2, 3, 4]), 0
    drawn = sample(Checkpoint(network), 3, 4, plan=plan, infill=wanted, seed=1, device="cpu")
    forced = teacher_force(
        make_ready(network, CPU), drawn.tokens, make_plan(plan), make_grid("rank", 4), LogLinear(),
        blank_TL=~drawn.given, seed=1,
    )  # fmt: skip
    assert torch.allclose(forced.log_q_TL, drawn.log_q, rtol=0, atol=1e-9)
    assert torch.equal(forced.step_TL < 0, drawn.given)
    assert torch.equal(forced.nfe_T, drawn.nfe)
    assert torch.allclose(forced.nats_T, -drawn.log_q.sum(1) / (~drawn.given).sum(1))


def test_it_takes_no_part_whom_a_text_is_scored_with(network):
    body, x_TL = make_ready(network, CPU), torch.randint(10, (6, 24), generator=stream(0, "texts"))
    plan, grid = make_plan("iid"), make_grid("uniform", 5)
    whole = teacher_force(body, x_TL, plan, grid, LogLinear(), seed=2)
    part = teacher_force(body, x_TL[[5, 1]], plan, grid, LogLinear(), seed=2, indices=[5, 1], rows=1)
    assert torch.equal(part.step_TL, whole.step_TL[[5, 1]])
    assert torch.allclose(part.log_q_TL, whole.log_q_TL[[5, 1]], rtol=0, atol=1e-9)


class TableModel:
    """A denoiser whose answer at each masked view is its own random law."""

    length, vocab_size, mask_id = 5, 4, 3

    def __init__(self):
        self.table = 2 * torch.randn(4**5, 5, 4, generator=stream(0, "table"), dtype=torch.float64)

    def features(self, z):
        return self.table[(z * 4 ** torch.arange(4, -1, -1)).sum(-1)]

    def logits(self, h):
        return h


@pytest.mark.parametrize("law", [Law(), Law(temperature=0.6), Law(top_p=0.7), Law(top_k=2)], ids=str)
@pytest.mark.parametrize(
    ("plan", "grid"),
    [("golden", "rank"), ("iid", TAILED), ("iid", "cosine"), ("confidence", "rank"),
     (Confidence(threshold=0.5), None), (Blocks(2, Confidence("entropy")), "rank")],
    ids=str,
)  # fmt: skip
def test_q_given_the_plan_sums_to_one_over_all_texts(plan, grid, law):
    """Every text under one and the same u."""
    every = torch.tensor(list(itertools.product(range(3), repeat=5)))
    plan, steps = make_plan(plan), 3 if isinstance(grid, str) else None
    forced = teacher_force(
        make_ready(TableModel(), CPU), every, plan, choose_grid(plan, grid, steps), LogLinear(),
        law=law, indices=[7] * len(every), rows=64,
    )  # fmt: skip
    q = forced.log_q_TL.sum(1).exp()
    assert float(q.sum()) == pytest.approx(1, abs=1e-12)
    assert int((q > 1e-3).sum()) > 2  # spread out, not a point mass
    assert grid != TAILED or int((forced.step_TL == TAILED.steps).sum()) > 0


@pytest.mark.parametrize("plan", [*locked_plans(), "left_to_right", "confidence"])
def test_one_token_a_step_under_the_exact_posterior_is_the_source(plan):
    source = Enumerated(sticky(length=6))
    x_TL = source.draw(20, stream(0, "draw"))
    forced = teacher_force(make_ready(source, CPU), x_TL, make_plan(plan), make_grid("rank", 6), LogLinear())
    assert torch.allclose(-6 * forced.nats_T, source.log_prob(x_TL), rtol=0, atol=1e-9)
    assert forced.nfe_T.tolist() == [6] * 20


def test_the_mean_is_the_entropy_and_the_samplers_own_error():
    """E[-log q_u] = H(p) + KL(p || q_u), the second by the exact law of the plan."""
    p = sticky(length=6)
    source = Enumerated(p)
    every = torch.cartesian_prod(*[torch.arange(3)] * 6)
    plan, grid = make_plan("left_to_right"), make_grid([0.8, 0.3], 3)
    forced = teacher_force(make_ready(source, CPU), every, plan, grid, LogLinear(eps=0.0), rows=256)
    nelbo = float((p.flatten() * -forced.log_q_TL.sum(1)).sum())
    chain = chain_of(plan, torch.ones(6, dtype=torch.bool), grid, LogLinear(eps=0.0))
    entropy = float(torch.special.entr(p).sum())
    error = kl_given_plan(Views(source, 6), p, chain)
    assert error > 0.1
    assert nelbo == pytest.approx(entropy + error, abs=1e-9)
