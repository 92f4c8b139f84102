"""Guidance, LLaDA's random order and Dream's alg_temp draw by the laws that they say, enumerated on a table."""

import itertools

import pytest
import torch
from tests.sampling.test_sampler_law import BELIEVABLE, MODEL, N, draws, p_value

from unmask.checkpoint.io import Checkpoint
from unmask.core.errors import UserError
from unmask.core.streams import stream
from unmask.plans.grids import make_grid
from unmask.plans.plan import make_plan
from unmask.plans.published import dream_counts
from unmask.processes.schedule import LogLinear
from unmask.sampling.verbs import sample

MASK, L, V = MODEL.mask_id, MODEL.length, MODEL.mask_id


def logits_at(view_L):
    return MODEL.logits(MODEL.features(torch.tensor([view_L])))[0]


def law_at(logits_LV):
    logits_LV = logits_LV.clone()
    logits_LV[:, MASK] = -torch.inf
    return logits_LV.softmax(-1)


@pytest.mark.parametrize("w", [0.3, 1.5])
def test_log_q_is_of_the_guided_law_which_is_drawn(w):
    """The first token is given, the next two are drawn in one step, the last one in another."""
    template = torch.tensor([[1, -1, -1, -1]]).expand(N, -1)
    samples = draws(MODEL, 2, infill=template, plan="left_to_right", guidance=w)
    q, steps = torch.zeros(V, V, V, V, dtype=torch.float64), [(1, 2), (3,)]
    for line in itertools.product([1], *[range(V)] * 3):
        view, log_q = [1, MASK, MASK, MASK], 0.0
        for places in steps:
            known, unknown = logits_at(view), logits_at([MASK, *view[1:]])
            law = law_at((1 + w) * known - w * unknown)
            log_q += sum(float(law[i, line[i]].log()) for i in places)
            view = [line[i] if i in places else now for i, now in enumerate(view)]
        q[line] = log_q
    said = samples.log_q.sum(1)
    assert torch.allclose(said, q[tuple(samples.tokens.T)], atol=1e-6)
    q[1] = q[1].exp()
    assert p_value(samples.tokens, q) > BELIEVABLE
    assert samples.nfe.tolist() == [4] * N, "two runs of the network a step"


def drawn_without_replacement(weights, count):
    """(set, probability): one after the other, each by its share of what is left."""
    found = {}
    for order in itertools.permutations(range(len(weights)), count):
        left, p = sum(weights), 1.0
        for one in order:
            p *= weights[one] / left
            left -= weights[one]
        found[frozenset(order)] = found.get(frozenset(order), 0.0) + p
    return found.items()


@pytest.mark.parametrize(("plan", "heat"), [("dream", 0.1), ("dream_entropy", 0.5), ("dream_margin", 0.2)])
def test_alg_temp_draws_positions_by_softmax_of_confidence_without_replacement(plan, heat):
    q, counts = torch.zeros(V, V, V, V, dtype=torch.float64), dream_counts(L, 2)

    def go(view, step, p):
        if step == len(counts):
            q[tuple(view)] += p
            return
        logits, hidden = logits_at(view), [i for i in range(L) if view[i] == MASK]
        whole, law = logits.softmax(-1), law_at(logits)
        best = whole.sort(-1, descending=True).values
        sure = {"dream": best[:, 0], "dream_margin": best[:, 0] - best[:, 1],
                "dream_entropy": (whole * whole.log()).sum(-1)}[plan]  # fmt: skip
        weights = (sure[hidden] / heat).exp().tolist()
        for chosen, share in drawn_without_replacement(weights, counts[step]):
            places = [hidden[one] for one in chosen]
            for tokens in itertools.product(range(V), repeat=len(places)):
                after = list(view)
                for place, token in zip(places, tokens, strict=True):
                    after[place] = token
                go(after, step + 1, p * share * float(law[places, tokens].prod()))

    go([MASK] * L, 0, 1.0)
    assert float(q.sum()) == pytest.approx(1)
    assert p_value(draws(MODEL, 2, plan=f"{plan}:alg_temp={heat}").tokens, q) > BELIEVABLE
    cold = draws(MODEL, 2, plan=plan)
    assert p_value(cold.tokens, q) < BELIEVABLE, "another law than that of the surest positions"


def test_the_positions_of_a_text_do_not_depend_on_its_company():
    how = {"plan": "dream:alg_temp=0.3", "device": "cpu", "seed": 4}
    together = sample(Checkpoint(MODEL), 5, 4, **how)
    assert torch.equal(together.tokens, sample(Checkpoint(MODEL), 5, 4, batch=1, **how).tokens)
    assert torch.equal(together.tokens[[3]], sample(Checkpoint(MODEL), 1, 4, numbers=[3], **how).tokens)


def test_a_random_order_reveals_every_set_of_its_block_equally_often():
    """Blocks of 4 after a prompt of 2, two steps in each."""
    blank_BL = torch.ones(3000, 10, dtype=torch.bool)
    blank_BL[:, :2] = False
    plan = make_plan("llada_random").__class__(size=4)
    generators = [stream(1, "reveal", i) for i in range(3000)]
    assigned = plan.assign(blank_BL, make_grid("rank", 4), LogLinear(), generators)
    for block, steps in ((slice(2, 6), (0, 1)), (slice(6, 10), (2, 3))):
        step_B4 = assigned.step_BL[:, block]
        assert ((step_B4 == steps[0]).sum(1) == 2).all()
        assert ((step_B4 == steps[1]).sum(1) == 2).all()
        sets = ((step_B4 == steps[0]).long() * torch.tensor([1, 2, 4, 8])).sum(1)
        seen = torch.bincount(sets, minlength=16)
        seen = seen[seen > 0].double()
        assert len(seen) == 6
        assert float(((seen - 500) ** 2 / 500).sum()) < 25.7, "chi-square of 5 degrees, p = 1e-4"
    text = sample(Checkpoint(MODEL), 4, 4, plan="llada_random", device="cpu", seed=2)
    assert torch.equal(text.tokens[[2]], sample(Checkpoint(MODEL), 1, 4, plan="llada_random", device="cpu", seed=2,
                                                numbers=[2]).tokens)  # fmt: skip


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"plan": "dream:alg_temp=-1"}, "alg_temp must be 0"),
        ({"plan": "dream:alg_tmp=1"}, "alg_temp"),
        ({"plan": "llada:alg_temp=1"}, "no settings"),
        ({"guidance": -1.0}, "guidance must be at least 0"),
        ({"guidance": 1.0}, "nothing is"),
        ({"guidance": 1.0, "draw": "legacy_fp32", "plan": "iid", "grid": "mdlm"}, "guidance is for"),
    ],
)
def test_bad_settings_get_one_line(how, why):
    with pytest.raises(UserError, match=why):
        sample(Checkpoint(MODEL), 1, 2, device="cpu", **how)
