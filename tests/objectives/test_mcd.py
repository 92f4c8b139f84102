"""MCD against a direct float64 computation from full logits, for every option; and what it refuses."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.objectives.subs import carry_over

import unmask
from unmask.core.errors import UserError
from unmask.core.streams import stream
from unmask.models.dit.network import DiT
from unmask.objectives.base import describe
from unmask.objectives.distil.base import draw_u_between
from unmask.objectives.distil.curriculum import Curriculum
from unmask.objectives.distil.mcd import MCD
from unmask.plans.plan import draw_u, locked_plans
from unmask.processes import Masked
from unmask.processes.schedule import Cosine, stratified

MASK, LENGTH, ROWS = 11, 9, 6


def jsd(p, q):
    log_m = ((p.exp() + q.exp()) / 2).clamp(min=1e-300).log()
    return sum((law.exp() * (law - log_m)).sum(-1) / 2 for law in (p, q))


DISTANCES = {
    "reverse": lambda p, q: (p.exp() * (p - q)).sum(-1),
    "forward": lambda p, q: (q.exp() * (q - p)).sum(-1),
    "jsd": jsd,
    "tvd": lambda p, q: (p.exp() - q.exp()).abs().sum(-1) / 2,
}


def views(objective, text):
    """The masks of both views of a batch, from the noise the objective draws: t first, then u."""
    noise = stream(1, "noise")
    t_B = stratified(ROWS, noise, low=objective.delta)
    steps = objective.plan_steps or round(1 / objective.delta)
    u_BL = draw_u((ROWS, LENGTH), objective.plan, generator=noise, steps=steps)
    m_t, m_s = (u_BL >= objective.process.schedule.gamma(time)[:, None] for time in (t_B, t_B - objective.delta))
    return m_t, m_s


def plain_loss(student, teacher, objective, text):
    """Full logits of both models in float64, the carry-over rule, the paper's equation, the reduction as it is said."""
    m_t, m_s = views(objective, text)
    z_t, z_s = (torch.where(masked, MASK, text.tokens_BL) for masked in (m_t, m_s))
    log_p = carry_over(student(z_t).double(), z_t, MASK)
    log_q = carry_over(teacher(z_s).double() / objective.tau, z_s, MASK).detach()
    nll = -log_p.gather(-1, text.tokens_BL[..., None])[..., 0]
    if objective.divergence in DISTANCES:
        each = torch.where(m_s, DISTANCES[objective.divergence](log_p, log_q), nll)
    else:
        each = DISTANCES[{"kl_forward": "forward", "kl_backward": "reverse"}[objective.divergence]](log_p, log_q)
    each = torch.where(m_s, each, objective.reconstruct * each)
    if objective.reduction == "token_mean":
        return each[m_t].mean()
    if objective.reduction == "sum":
        return each[m_t].sum() / ROWS
    return each[m_s].mean() + each[m_t & ~m_s].mean()


OPTIONS = [
    *({"divergence": name} for name in (*DISTANCES, "kl_forward", "kl_backward")),
    {"reduction": "sum"},
    {"reduction": "term_means"},
    {"reduction": "term_means", "divergence": "jsd"},
    {"reconstruct": 0.0},
    {"reconstruct": 0.3, "reduction": "term_means"},
    {"reconstruct": 2.0, "reduction": "sum", "divergence": "kl_forward"},
    {"tau": 1.0},
    {"process": Masked(Cosine())},
    *({"plan": plan} for plan in locked_plans() if plan != "iid"),
    {"plan": "stride", "plan_steps": 3},
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_loss_and_gradient_are_those_of_full_logits(random_dit, text, step_of, direct, options, dtype):
    student, teacher = random_dit(1), random_dit(2)
    objective = MCD(teacher, **{"delta": 0.3, **options})
    expected = direct(student, plain_loss(student, teacher, objective, text))
    learner = random_dit(1, dtype)
    found = step_of(learner, objective(learner, text, step=0, generator=stream(1, "noise")))
    # the weights of `term_means`, one over a count, are float32
    tolerance = 1e-5 if dtype == torch.float32 else 1e-7 if objective.reduction == "term_means" else 1e-10
    assert torch.allclose(found.loss.double(), expected.loss, rtol=tolerance)
    assert float((found.gradient.double() - expected.gradient).norm() / expected.gradient.norm()) < tolerance


def test_each_text_has_a_comb_of_its_own_number_of_steps():
    """u falls by (1 + eps)/N a position, eps ~ U(0, 1/2), and log N is uniform."""
    u_TL = draw_u_between((4000, 6), "comb", 4, 64, stream(3))
    falls_TL = (u_TL[:, :1] - u_TL[:, 1:]) % 1
    assert torch.allclose(falls_TL[:, :1] * torch.arange(1, 6) % 1, falls_TL)
    N_T = 1 / falls_TL[:, 0]
    assert 4 / 1.5 < float(N_T.min()) < 3.2
    assert 55 < float(N_T.max()) <= 64
    ends = torch.tensor([4, 8, 16, 32, 64], dtype=torch.float64)
    share = ((N_T[:, None] <= ends).double().mean(0)).tolist()
    chances = [
        sum(math.log((N + 1) / N) / math.log(65 / 4) * min(1.0, max(0.0, 2 * (1.5 - N / end))) for N in range(4, 65))
        for end in ends.tolist()
    ]  # N (1 + eps)^-1 <= end, that is eps >= N / end - 1, and eps is uniform below 1/2
    assert share == pytest.approx(chances, abs=0.03)


def test_regions_are_the_views(random_dit, text):
    objective = MCD(random_dit(2), delta=0.3)
    output = objective(random_dit(1), text, step=0, generator=stream(1, "noise"))
    m_t, m_s = views(objective, text)
    assert torch.equal(output.region_BL.long(), torch.where(m_s, 1, torch.where(m_t, 2, 0)))
    assert 0 < int(m_s.sum()) < int(m_t.sum()) < m_t.numel()  # all three regions are there
    assert not bool(output.loss_BL[~m_t].any() or output.weight_BL[~m_t].any())


def test_kl_forward_is_the_hybrid_with_forward(random_dit, text, step_of):
    student, teacher = random_dit(1), random_dit(2)
    one, hybrid = (
        step_of(student, MCD(teacher, delta=0.3, divergence=name)(student, text, step=0, generator=stream(1)))
        for name in ("kl_forward", "forward")
    )
    assert torch.allclose(one.loss, hybrid.loss, rtol=1e-14)
    assert torch.allclose(one.gradient, hybrid.gradient, atol=1e-14)


def test_kl_backward_explodes_where_the_teacher_sees_the_token_and_only_there(random_dit, text, step_of):
    student, teacher = random_dit(1), random_dit(2)
    sane, failing = (
        MCD(teacher, delta=0.3, divergence=name)(student, text, step=0, generator=stream(1))
        for name in ("reverse", "kl_backward")
    )
    revealed = failing.region_BL == 2
    assert torch.allclose(failing.loss_BL[~revealed], sane.loss_BL[~revealed])
    assert float(failing.loss_BL[revealed].detach().min()) > 1e5
    assert float(sane.loss_BL.detach().max()) < 100
    assert float(step_of(student, failing).gradient.norm()) > 1e3 * float(step_of(student, sane).gradient.norm())


@pytest.mark.parametrize("divergence", ["reverse", "forward", "jsd", "tvd", "kl_forward", "kl_backward"])
def test_no_gap_and_no_sharpening_leave_a_copy_where_it_is(random_dit, text, step_of, divergence):
    model = random_dit(1)
    objective = MCD(model, delta=0.0, tau=1.0, divergence=divergence)
    found = step_of(model, objective(model, text, step=0, generator=stream(1)))
    assert abs(float(found.loss)) < 1e-13
    assert float(found.gradient.norm()) < 1e-13


@pytest.mark.parametrize("options", [{}, {"reduction": "sum"}, {"reduction": "term_means"}, {"plan": "golden"}])
def test_parts_of_a_batch_add_up_to_the_whole(random_dit, text, options):
    """Ranks and micro-batches share one gradient: sum(loss · weight) over the sum of all weights."""
    student, objective = random_dit(1), MCD(random_dit(2), delta=0.3, **options)
    whole = objective(student, text, step=0, generator=stream(1))
    parts = [objective(student, text.part(a, b), step=0, generator=stream(1)) for a, b in ((0, 1), (1, 4), (4, ROWS))]
    for name in ("loss_BL", "weight_BL", "region_BL"):
        together = torch.cat([getattr(part, name) for part in parts])
        assert torch.allclose(together, getattr(whole, name), atol=1e-13), name


def test_a_round_is_the_same_method_with_its_own_gap_temperature_and_teacher(random_dit):
    first = MCD(random_dit(1), divergence="jsd", plan="golden", process=Masked(Cosine()))
    third = first.at(3, Curriculum(), random_dit(2))
    assert (third.delta, third.tau) == (4 / 512, pytest.approx(0.90))
    changed = {"teacher": "x", "delta": 0, "tau": 0}
    assert describe(third) | changed == describe(first) | changed
    assert str(third.teacher) != str(first.teacher)
    again = first.at(1, Curriculum(), random_dit(1))
    assert describe(again) == describe(first)  # by content: the same weights are the same teacher


def test_the_teacher_is_a_frozen_copy(random_dit, text):
    model = random_dit(1)
    objective = MCD(model, delta=0.3)
    before, name = objective(model, text, step=0, generator=stream(1)).loss_BL, str(objective.teacher)
    reference = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    assert torch.equal(objective(reference, text, step=0, generator=stream(1)).loss_BL, before)
    assert str(objective.teacher) == name
    assert str(MCD(model).teacher) != name


def test_a_student_is_trained_as_the_readme_says(write_corpus, tmp_path):
    """Training teacher.model itself moves the student and not the teacher."""
    path = np.cumsum(np.random.default_rng(0).integers(0, 3, 600)) % 5
    corpus = write_corpus(tmp_path / "corpus", path[:400], path[400:], 6)
    teacher = unmask.Checkpoint(DiT(7, 12, hidden=16, cond=8, blocks=1, heads=2), Masked(Cosine()))
    objective = unmask.MCD(teacher)
    weights = copy.deepcopy(teacher.model.state_dict())
    trainer = unmask.Trainer(steps=3, batch=4, eval_every=0, device="cpu", progress=False)
    student = trainer.fit(teacher.model, objective, corpus)
    assert student.process.schedule == Cosine()
    assert student.provenance["config"]["objective"]["teacher"] == str(objective.teacher)
    frozen = objective.teacher.model.state_dict()
    assert all(torch.equal(frozen[key], value) for key, value in weights.items())
    assert any(not torch.equal(teacher.model.state_dict()[key], value) for key, value in weights.items())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tau": 0.0}, "tau is the temperature of the teacher's target: above 0, not 0.0"),
        ({"delta": 1.0}, "0 <= delta < 1, not 1.0"),
        ({"divergence": "revers"}, "did you mean 'reverse'?"),
        ({"reconstruct": -1.0}, "a weight, 0 or more"),
        ({"reduction": "mean"}, "did you mean 'token_mean'?"),
        ({"plan": "gold"}, "did you mean 'golden'?"),
        ({"plan": "golden", "plan_steps": 8}, "plan_steps is for a plan"),
        ({"plan": "stride", "plan_steps": 0}, "at least 1, not 0"),
        ({"plan": "comb", "plan_steps": (64, 4)}, "the least and the most: at least 1, not"),
    ],
)
def test_mistakes_are_told_in_one_line(random_dit, options, message):
    with pytest.raises(UserError) as error:
        MCD(random_dit(1), **options)
    assert message in str(error.value)


def test_a_teacher_without_a_mask_or_with_another_vocabulary_is_refused(random_dit, text):
    with pytest.raises(UserError, match="causal model has no mask state"):
        MCD(DiT(12, 9, hidden=8, cond=4, blocks=1, heads=2, causal=True))
    with pytest.raises(UserError, match="the teacher has 9 states, mask 8, the student 12 states, mask 11"):
        MCD(random_dit(2, vocab_size=9))(random_dit(1), text, step=0, generator=stream(1))
    with pytest.raises(UserError, match="'stride' is made for one number of steps"):
        MCD(random_dit(2), delta=0.0, plan="stride")(random_dit(1), text, step=0, generator=stream(1))
    objective = MCD(random_dit(2), delta=0.0, plan="stride")
    replace(objective, plan_steps=4)(random_dit(1), text, step=0, generator=stream(1))  # said by the user, it works
