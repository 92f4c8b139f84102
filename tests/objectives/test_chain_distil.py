"""A chain that learns from its teacher: what it is shown is drawn from the teacher's joint law of many steps."""

import pytest
import torch
from tests.inference.chains import L, V, head, random_weights, tiny_body

from unmask.core.errors import UserError
from unmask.data.loader import Batch
from unmask.objectives.chain import Chaining

AT, SHORT = [0, 1, 3], 4


def strong() -> torch.nn.Module:
    """A body whose positions depend on one another: a short text, tokens far apart, flat laws."""
    body = random_weights(tiny_body(), 0, 1.0)
    with torch.no_grad():
        body.embedding.weight.mul_(4)
        body.head.linear.weight.mul_(0.3)
    return body


def law_of(steps: list[list[int]], z_L: torch.Tensor) -> torch.Tensor:
    """The probability of every triple of tokens at AT when these positions are drawn step after step."""
    body, S = strong(), V - 1
    every_T3 = torch.cartesian_prod(*[torch.arange(S)] * 3)
    z_TL, log_p_T = z_L.repeat(len(every_T3), 1), torch.zeros(len(every_T3), dtype=torch.float64)
    for step in steps:
        with torch.no_grad():
            logits_TLV = body.logits(body.features(z_TL))[..., :S].log_softmax(-1)
        for j in step:
            log_p_T += logits_TLV[torch.arange(len(z_TL)), AT[j], every_T3[:, j]]
        z_TL = z_TL.clone()
        z_TL[:, [AT[j] for j in step]] = every_T3[:, step]
    return log_p_T.exp()


@pytest.mark.parametrize(("count", "steps"), [(3, [[1], [2], [0]]), (1, [[0, 1, 2]])])
def test_it_learns_what_the_teacher_draws_in_many_steps(count, steps):
    """In the order of u, as an enumeration says."""
    n, S = 4000, V - 1
    x_L = torch.randint(S, (SHORT,), generator=torch.Generator().manual_seed(3))
    x_nL, scored_nL = x_L.repeat(n, 1), torch.zeros(n, SHORT, dtype=torch.bool)
    scored_nL[:, AT] = True
    u_nL = torch.full((n, SHORT), 0.99, dtype=torch.float64)
    u_nL[:, AT] = torch.tensor([0.7, 0.2, 0.4], dtype=torch.float64)
    objective = Chaining(strong(), teacher_steps=count)
    uniform_nL = torch.rand(n, SHORT, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    z_nL = x_nL.masked_fill(scored_nL, V - 1)
    shown_nL = objective.taught(z_nL, x_nL, scored_nL, u_nL, uniform_nL)
    assert torch.equal(shown_nL[~scored_nL], x_nL[~scored_nL])
    p_T = law_of(steps, z_nL[0])
    torch.testing.assert_close(p_T.sum(), torch.ones_like(p_T.sum()))
    place_n = (shown_nL[:, AT] * torch.tensor([S * S, S, 1])).sum(1)
    seen_T = torch.bincount(place_n, minlength=S**3).double()
    often = p_T * n > 5
    expected = torch.cat([p_T[often], p_T[~often].sum()[None]]) * n
    seen = torch.cat([seen_T[often], seen_T[~often].sum()[None]])
    chi, free = float(((seen - expected) ** 2 / expected).sum()), len(seen) - 1
    assert free > 30
    assert abs(chi - free) < 4 * (2 * free) ** 0.5
    other_T = law_of([[0, 1, 2]] if count > 1 else [[1], [2], [0]], z_nL[0])
    assert float((p_T - other_T).abs().sum() / 2) > 0.1  # many steps and one are two laws


def test_its_loss_is_that_of_the_tokens_drawn_and_it_is_judged_by_the_text():
    x_BL = torch.randint(V - 1, (6, L), generator=torch.Generator().manual_seed(1))
    batch, student = Batch(x_BL, 0, 6), head()
    text, taught = (Chaining(tiny_body(), teacher_steps=count) for count in (None, 4))
    losses = [one.loss(student, batch, 4, torch.Generator().manual_seed(2)).loss_BL for one in (text, taught)]
    assert torch.equal(losses[0] > 0, losses[1] > 0)  # the same positions
    assert not torch.equal(*losses)
    scores = [one.scorer(student, batch)(x_BL, slice(0, 6)) for one in (text, taught)]
    assert torch.equal(*scores)


@pytest.mark.parametrize("steps", [0, -1, True, 2.5])
def test_it_takes_a_whole_number_of_steps(steps):
    with pytest.raises(UserError, match="teacher_steps must be a whole number above 0"):
        Chaining(tiny_body(), teacher_steps=steps)
