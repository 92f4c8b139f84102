"""Where a prompt is given: it is never masked, and the loss is the one that LLaDA publishes for fine-tuning."""

import pytest
import torch

from unmask.core.errors import UserError
from unmask.core.streams import stream
from unmask.data.loader import Batch
from unmask.metrics.elbo import order_agnostic_masks
from unmask.models.dit.network import DiT
from unmask.objectives.distil.cd4lm import CD4LM
from unmask.objectives.distil.mcd import MCD
from unmask.objectives.distil.sdtt import SDTT
from unmask.objectives.elbo import MDLM
from unmask.plans.plan import draw_u
from unmask.processes import Masked
from unmask.processes.schedule import stratified

V, L, T = 9, 12, 6
PROMPTS = torch.tensor([3, 0, 7, 1, 11, 5])


class Seen(DiT):
    """Remembers what it was shown."""

    def features(self, z, time=None):
        self.shown = [*getattr(self, "shown", []), z]
        return super().features(z, time)


@pytest.fixture
def student():
    torch.manual_seed(0)
    model = Seen(V, L, hidden=16, cond=8, blocks=1, heads=2, dropout=0.0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


@pytest.fixture
def batch():
    return Batch(torch.randint(V - 1, (T, L), generator=stream(1)), 0, T, PROMPTS)


def total(output):
    return (output.loss_BL * output.weight_BL).sum() / output.weight_BL.sum()


@torch.no_grad()
def test_the_loss_is_the_published_one(student, batch):
    """mean over rows of 1 / (answer's length) · sum over masked tokens of the answer of cross-entropy / p_mask."""
    output = MDLM()(student, batch, step=0, generator=stream(5))
    noise = stream(5)
    t_T = stratified(T, noise)
    u_TL = draw_u((T, L), "iid", generator=noise)
    schedule, expected = Masked().schedule, 0.0
    for row in range(T):
        p = 1 - schedule.gamma(t_T[row : row + 1])
        masked_L = (u_TL[row] >= 1 - p) & (torch.arange(L) >= PROMPTS[row])
        z = batch.tokens_BL[row].masked_fill(masked_L, V - 1)
        logits = student(z[None])[0]
        logits[:, V - 1] = -1e6
        ce = torch.nn.functional.cross_entropy(logits, batch.tokens_BL[row], reduction="none")
        weight = schedule.elbo_weight(t_T[row : row + 1])
        expected += float((ce[masked_L] * weight).sum()) / (L - int(PROMPTS[row]))
    assert float(total(output)) == pytest.approx(expected / T, rel=1e-5)


def test_halves_of_a_batch_add_up_to_it_and_gradients_flow(student, batch):
    whole = MDLM()(student, batch, step=0, generator=stream(5))
    total(whole).backward()
    gradient = student.head.linear.weight.grad.clone()
    assert gradient.abs().sum() > 0
    parts = [
        MDLM()(student, Batch(batch.tokens_BL[i : i + 3], i, T, PROMPTS), step=0, generator=stream(5)) for i in (0, 3)
    ]
    loss = torch.cat([(part.loss_BL * part.weight_BL).detach() for part in parts])
    assert torch.allclose(loss, (whole.loss_BL * whole.weight_BL).detach(), atol=1e-6)


@pytest.mark.parametrize("method", [MCD, SDTT, CD4LM])
def test_no_method_of_distillation_hides_or_scores_a_prompt(method, student, batch):
    settings = {"delta": 0.3} if method is not CD4LM else {}
    output = method(student, **settings)(student, batch, step=0, generator=stream(2))
    given_TL = torch.arange(L) < PROMPTS[:, None]
    for z in student.shown:
        assert torch.equal(z[given_TL], batch.tokens_BL[given_TL])
    assert any(bool((z == V - 1).any()) for z in student.shown)
    assert not bool((output.weight_BL * output.loss_BL)[given_TL].any())
    assert bool((output.weight_BL * output.loss_BL)[~given_TL].any())


def test_evaluation_masks_k_of_the_answer_k_even_over_its_length():
    n, views = 64, 50
    given_TL = torch.arange(10) < torch.full((n, 1), 6)
    masked_PTL = order_agnostic_masks(n, 10, stream(0), views=views, given_TL=given_TL)
    assert not bool(masked_PTL[:, given_TL].any())
    counts = masked_PTL.sum(2).flatten().bincount(minlength=5)
    assert counts.tolist() == [0, *[n * views // 4] * 4]


def test_what_counts_whole_texts_is_refused(student, batch):
    for objective in (MDLM(exact_counts=True), MDLM(plan_steps=4)):
        with pytest.raises(UserError, match="whole texts"):
            objective(student, batch, step=0, generator=stream(0))
