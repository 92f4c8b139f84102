"""MDLM in N steps of a plan: the sampler's own views and its own likelihood; and its loss in pieces, which is exact."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from unmask.checkpoint.io import Checkpoint
from unmask.core.errors import UserError
from unmask.core.streams import stream
from unmask.inference.ready import make_ready
from unmask.models.denoiser import log_probs
from unmask.models.dit.network import DiT
from unmask.objectives import elbo as mdlm
from unmask.objectives import head_loss
from unmask.objectives.ar import AR
from unmask.objectives.base import IDENTITY, RECONSTRUCT, describe
from unmask.objectives.elbo import MDLM
from unmask.plans.grids import make_grid
from unmask.plans.plan import draw_u, locked_plans, make_plan
from unmask.processes import Masked
from unmask.processes.schedule import Cosine, LogLinear, stratified
from unmask.sampling.teacher_forcing import teacher_force
from unmask.sampling.verbs import sample

NUMBER, SEED = 2, 5  # of the sample that is looked at


@pytest.fixture
def model(random_dit):
    return random_dit(1, length=22).eval()


def with_views(model, objective, batch, seed=0):
    """What an objective gives, and the views that its student was shown."""
    seen = []
    model.features = lambda z: seen.append(z) or DiT.features(model, z)
    output = objective(model, batch, step=0, generator=stream(seed))
    del model.features
    return output, *seen


@pytest.mark.parametrize("plan", locked_plans())
@pytest.mark.parametrize("steps", [1, 4, 8, 22])
def test_its_views_and_its_mean_are_those_of_the_sampler(model, text, monkeypatch, plan, steps):
    """One text, its plan fixed, every step once: which views there are, and sum over k = -log q_u(x)."""
    views = [torch.full((1, 22), model.mask_id)]
    drawn = sample(
        Checkpoint(model, Masked(LogLinear())), NUMBER + 1, steps, plan=plan, grid="rank", seed=SEED, device="cpu",
        callback=lambda view: views.append(view.tokens_BL[NUMBER:]),
    )  # fmt: skip
    u_1L = make_plan(plan).u(torch.ones(1, 22, dtype=torch.bool), steps, [stream(SEED, "reveal", NUMBER)])
    monkeypatch.setattr(mdlm, "draw_u", lambda shape, plan, *, generator, steps: u_1L.expand(shape))
    objective, rows = MDLM(plan=plan, plan_steps=steps), partial(replace, text, total=steps)
    output, z_KL = with_views(model, objective, rows(tokens_BL=drawn.tokens[NUMBER].expand(steps, -1)))

    visible_K = (z_KL != model.mask_id).sum(1)
    assert torch.equal(z_KL[visible_K.argsort()], torch.cat(views[:-1]))  # the last view is the finished text
    assert torch.allclose(output.loss_BL.mean(), -drawn.log_q[NUMBER].mean(), rtol=0, atol=1e-12)

    other_L = torch.randint(model.mask_id, (22,), generator=stream(3))  # a text that the sampler has not written
    forced = teacher_force(
        make_ready(model, torch.device("cpu")), other_L[None], make_plan(plan), make_grid("rank", steps), LogLinear(),
        seed=SEED, indices=[NUMBER],
    )  # fmt: skip
    output, _ = with_views(model, objective, rows(tokens_BL=other_L.expand(steps, -1)))
    assert torch.allclose(output.loss_BL.mean(), forced.nats_T[0], rtol=0, atol=1e-12)
    assert bool((output.weight_BL == 1).all())


def direct_loss(model, objective, batch, generator):
    """MDLM from full logits, one position at a time; and the positions that carry loss."""
    total, L = batch.tokens_BL.shape
    t_T = stratified(total, generator).tolist()
    u_TL = draw_u((total, L), objective.plan, generator=generator, steps=objective.plan_steps).tolist()
    loss, scored = 0.0, []
    for x_L, u_L, t in zip(batch.tokens_BL, u_TL, t_T, strict=True):
        if (steps := objective.plan_steps) is None:
            gamma = float(objective.process.schedule.gamma(torch.tensor(t, dtype=torch.float64)))
            hidden = chosen = [i for i in range(L) if u_L[i] >= gamma]
            weight = float(objective.process.schedule.elbo_weight(torch.tensor(t, dtype=torch.float64)))
        else:
            of_step = {i: rank * steps // L for rank, i in enumerate(sorted(range(L), key=u_L.__getitem__))}
            if objective.plan == "stride":  # a step is a class of positions, also where classes are not of one size
                of_step = {i: int(u_L[i] * steps) for i in range(L)}
            now, weight = int((1 - t) * steps), steps
            hidden, chosen = [i for i in of_step if of_step[i] >= now], [i for i in of_step if of_step[i] == now]
        z_L = x_L.clone()
        z_L[hidden] = model.mask_id
        log_p_LV = log_probs(model(z_L[None])[0], model.mask_id)
        loss = loss - weight * log_p_LV[chosen, x_L[chosen]].sum()
        scored.append([i in chosen for i in range(L)])
    return loss / (total * L), torch.tensor(scored)


EXAMPLES = [
    MDLM(),
    MDLM(Masked(Cosine()), "golden"),
    MDLM(plan="golden", plan_steps=3),
    MDLM(plan="stride", plan_steps=2),
    MDLM(plan_steps=20),  # more steps than positions: some reveal nothing
]


@pytest.mark.parametrize("objective", EXAMPLES, ids=lambda objective: str(describe(objective)))
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_in_pieces_it_is_the_loss_of_full_tables(random_dit, text, step_of, direct, monkeypatch, objective, dtype):
    monkeypatch.setitem(head_loss.TABLE_BYTES, "cpu", 300)  # a few positions at once
    exact, model = random_dit(1), random_dit(1).to(dtype)
    expected, scored_BL = direct_loss(exact, objective, text, stream(4))
    output = objective(model, text, step=0, generator=stream(4))
    assert torch.equal(output.region_BL, torch.where(scored_BL, RECONSTRUCT, IDENTITY).to(torch.int8))
    assert output.loss_BL.dtype == dtype
    found, expected = step_of(model, output), direct(exact, expected)
    assert torch.allclose(found.loss.double(), expected.loss, rtol=1e-12 if dtype == torch.float64 else 1e-6)
    assert float((found.gradient - expected.gradient).norm() / expected.gradient.norm()) < 1e-6


def test_the_whole_table_is_never_there(random_dit, text, monkeypatch, largest):
    monkeypatch.setitem(head_loss.TABLE_BYTES, "cpu", 4 * 3 * 500)  # 3 positions
    model = random_dit(1, torch.float32, vocab_size=500)
    with largest() as seen:
        MDLM()(model, text, step=0, generator=stream(0)).loss_BL.sum().backward()
    assert seen.size == 500 * 8  # the head's matrix


@pytest.mark.parametrize("rows", [6, 12])
def test_every_step_comes_equally_often(random_dit, text, rows):
    model, batch = random_dit(1), replace(text, tokens_BL=torch.zeros(rows, 9, dtype=torch.int64), total=rows)
    for seed in range(10):
        _, z_BL = with_views(model, MDLM(plan="permutation", plan_steps=3), batch, seed)
        masked = (z_BL == model.mask_id).sum(1).tolist()
        assert sorted(masked) == sorted([9, 6, 3] * (rows // 3))


@pytest.mark.parametrize("objective", EXAMPLES, ids=lambda objective: str(describe(objective)))
def test_parts_of_a_batch_give_what_the_whole_gives(random_dit, text, direct, objective):
    model = random_dit(1)
    whole = objective(model, text, step=3, generator=stream(2))
    parts = [objective(model, text.part(*ends), step=3, generator=stream(2)) for ends in ((0, 1), (1, 4), (4, 6))]
    assert torch.allclose(torch.cat([part.loss_BL for part in parts]), whole.loss_BL, atol=1e-13)
    assert torch.equal(torch.cat([part.region_BL for part in parts]), whole.region_BL)
    gradient = sum(direct(model, part.loss_BL.sum()).gradient for part in parts)
    assert torch.allclose(gradient, direct(model, whole.loss_BL.sum()).gradient, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", [MDLM, AR])
def test_compiling_changes_neither_numbers_nor_the_record(random_dit, text, monkeypatch, kind):
    monkeypatch.setattr(head_loss, "compiled", partial(torch.compile, backend="aot_eager", dynamic=True))
    model, plain, objective = random_dit(1), kind(), kind()
    objective.compile()
    assert (objective, describe(objective)) == (plain, describe(plain))
    run = partial(kind.__call__, student=model, batch=text, step=0)
    assert torch.allclose(run(objective, generator=stream(1)).loss_BL, run(plain, generator=stream(1)).loss_BL)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"plan": "goldn"}, "did you mean 'golden'?"),
        ({"plan": "stride"}, "give plan_steps"),
        ({"plan": "golden", "plan_steps": 0}, "at least 1, not 0"),
    ],
)
def test_a_mistake_is_one_line(settings, line):
    with pytest.raises(UserError) as raised:
        MDLM(**settings)
    assert line in str(raised.value)
    assert "\n" not in str(raised.value)


def test_exact_counts_weigh_every_count_of_masks_alike(model, text):
    """One text, L rows: every k once, exactly k masked, and the row's loss is L/k times what the view's law says."""
    L = text.tokens_BL.shape[1]
    rows = replace(text, tokens_BL=text.tokens_BL[:1].expand(L, -1), total=L)
    output, z_LL = with_views(model, MDLM(exact_counts=True), rows)
    masked_LL = z_LL == model.mask_id
    assert sorted(masked_LL.sum(1).tolist()) == list(range(1, L + 1))
    with torch.no_grad():
        nll_LL = -log_probs(model.logits(model.features(z_LL)), model.mask_id).gather(-1, rows.tokens_BL[..., None])[
            ..., 0
        ]
    expected_L = (nll_LL * masked_LL).sum(1) * L / masked_LL.sum(1)
    assert torch.allclose(output.loss_BL.sum(1), expected_L, rtol=1e-5)


def test_exact_counts_go_with_random_order_only():
    with pytest.raises(UserError, match="exact_counts is for"):
        MDLM(exact_counts=True, plan="golden")
