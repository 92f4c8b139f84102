"""CD4LM against a direct float64 computation from full logits."""

import pytest
import torch
import torch.nn.functional as F
from tests.objectives.subs import carry_over

from unmask.core.errors import UserError
from unmask.core.streams import stream
from unmask.models.denoiser import log_probs
from unmask.objectives.distil.cd4lm import CD4LM
from unmask.objectives.distil.curriculum import Curriculum
from unmask.plans.plan import draw_u
from unmask.processes.schedule import stratified

MASK, LENGTH, ROWS = 11, 9, 6


def plain_loss(student, teacher, objective, text, soft_weight):
    """Full logits, two softened tables, each term clamped; returns the loss, and both terms of every hidden token."""
    noise = stream(1, "noise")
    r_s = stratified(ROWS, noise, low=0.4, high=0.9)
    r_t = (r_s * stratified(ROWS, noise, low=0.3, high=0.7)).clamp(0.1, 0.6)
    u_BL = draw_u((ROWS, LENGTH), objective.plan, generator=noise)
    hidden, hidden_from_teacher = (u_BL >= 1 - ratio[:, None] for ratio in (r_s, r_t))
    z_t, z_s = (torch.where(masked, MASK, text.tokens_BL) for masked in (hidden, hidden_from_teacher))
    T = objective.temperature
    log_p = log_probs(student(z_t) / T, MASK)
    log_q = carry_over(teacher(z_s).detach() / T / objective.tau, z_s, MASK)
    soft = T**2 * F.kl_div(log_p, log_q, reduction="none", log_target=True).sum(-1)
    hard = -log_probs(student(z_t), MASK).gather(-1, text.tokens_BL[..., None])[..., 0]
    kept = [term[hidden].clamp(max=objective.clamp) for term in (soft, hard)]
    return (soft_weight * kept[0] + (1 - soft_weight) * kept[1]).mean(), (soft[hidden], hard[hidden])


@pytest.mark.parametrize("options", [{}, {"tau": 0.8}, {"temperature": 1.0}, {"clamp": 1e9}, {"plan": "iid"}], ids=str)
def test_loss_and_gradient_are_those_of_full_logits(random_dit, text, step_of, direct, options):
    """The weights are so large that many a token is clamped in either term."""
    student, teacher = random_dit(1, size=0.5), random_dit(2, size=0.5)
    objective = CD4LM(teacher, steps=100, **options)
    loss, terms = plain_loss(student, teacher, objective, text, 0.9)
    found = step_of(student, objective(student, text, step=0, generator=stream(1, "noise")))
    expected = direct(student, loss)
    assert torch.allclose(found.loss, expected.loss, rtol=1e-12)
    assert torch.allclose(found.gradient, expected.gradient, atol=1e-10)
    assert all(0.1 < float((term > 5).double().mean()) < 0.9 for term in terms)


def test_the_weight_of_soft_targets_falls_along_a_cosine(random_dit, text, step_of):
    objective = CD4LM(random_dit(2), steps=100)
    assert [objective.soft_weight(step) for step in (0, 10, 55, 100, 200)] == pytest.approx([0.9, 0.9, 0.7, 0.5, 0.5])
    student = random_dit(1)
    found = step_of(student, objective(student, text, step=55, generator=stream(1, "noise")))
    assert torch.allclose(found.loss, plain_loss(student, random_dit(2), objective, text, 0.7)[0], rtol=1e-12)


def test_parts_of_a_batch_give_what_the_whole_gives(random_dit, text):
    student, objective = random_dit(1), CD4LM(random_dit(2))
    whole = objective(student, text, step=0, generator=stream(1))
    parts = [objective(student, text.part(a, b), step=0, generator=stream(1)) for a, b in ((0, 1), (1, ROWS))]
    assert torch.allclose(torch.cat([part.loss_BL for part in parts]), whole.loss_BL, atol=1e-12)
    assert torch.equal(torch.cat([part.region_BL for part in parts]), whole.region_BL)


def test_it_has_no_rounds(random_dit):
    first = CD4LM(random_dit(1))
    assert first.at(3, CD4LM.curriculum, random_dit(2)).teacher is first.teacher
    assert first.at(3, Curriculum(), random_dit(2)).tau == pytest.approx(0.90)


def test_mistakes_are_told_in_one_line(random_dit):
    with pytest.raises(UserError, match="steps of the whole run must be at least 1, not 0"):
        CD4LM(random_dit(1), steps=0)
    with pytest.raises(UserError, match=r"must be above 0, not 0\.0 and 5\.0"):
        CD4LM(random_dit(1), temperature=0.0)
