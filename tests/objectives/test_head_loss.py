"""The vocabulary loss in pieces equals the loss of the whole table, and never holds that table."""

import pytest
import torch

from unmask.core.streams import stream
from unmask.models.denoiser import log_probs
from unmask.objectives.divergences import cross_entropy
from unmask.objectives.head_loss import even_sizes, head_loss


class OnlyLogits:
    """A Denoiser that offers no matrix, just logits."""

    def __init__(self, model):
        self.model, self.mask_id, self.vocab_size = model, model.mask_id, model.vocab_size

    def logits(self, h):
        return self.model.logits(h)


@pytest.fixture
def model(random_dit):
    return random_dit(1, vocab_size=40)


@pytest.fixture
def positions():
    """Features, tokens and weights of 30 positions."""
    h_ND = torch.randn(30, 8, generator=stream(2), dtype=torch.float64).requires_grad_()
    return h_ND, torch.arange(30), torch.rand(30, generator=stream(3)) + 0.5


@pytest.mark.parametrize("wrap", [lambda model: model, OnlyLogits], ids=["matrix", "logits"])
@pytest.mark.parametrize("sizes", [[30], [7, 7, 7, 7, 2], [1] * 30])
def test_pieces_give_the_loss_and_gradient_of_the_whole(model, positions, direct, wrap, sizes):
    h_ND, token_N, weight_N = positions
    whole_N = -log_probs(model.logits(h_ND), model.mask_id)[torch.arange(30), token_N]
    pull_h = torch.autograd.grad((whole_N * weight_N).sum(), h_ND, retain_graph=True)[0]
    expected = direct(model, (whole_N * weight_N).sum())

    def score(logits, part):
        return cross_entropy(logits, token_N[part])

    loss_N = head_loss(wrap(model), h_ND, sizes, score, weight_N)
    assert torch.allclose(loss_N, whole_N, atol=1e-12)
    total = 3 * (loss_N * weight_N).sum()  # any common factor will do
    found_h = torch.autograd.grad(total, h_ND, retain_graph=True)[0]
    assert torch.allclose(found_h, 3 * pull_h, atol=1e-12)
    assert torch.allclose(direct(model, total).gradient, 3 * expected.gradient, atol=1e-10)


def test_weights_other_than_those_announced_are_refused(model, positions):
    h_ND, token_N, weight_N = positions
    loss_N = head_loss(model, h_ND, [30], lambda logits, part: cross_entropy(logits, token_N[part]))
    with pytest.raises(RuntimeError, match="weights that head_loss was given"):
        (loss_N * weight_N).sum().backward()


def test_what_is_not_a_number_goes_on_into_the_gradient(model, positions, direct):
    """Training stops for it with a message; here it would be an assertion, on a GPU the end of the process."""
    h_ND, token_N, weight_N = positions
    loss_N = head_loss(model, h_ND, [30], lambda logits, part: cross_entropy(logits, token_N[part]), weight_N)
    assert bool(direct(model, (loss_N * weight_N * float("nan")).sum()).gradient.isnan().any())


def test_no_positions_at_all_are_no_trouble(model, direct):
    h_ND = torch.zeros(0, 8, dtype=torch.float64, requires_grad=True)
    found = direct(model, head_loss(model, h_ND, [], lambda logits, part: None).sum())
    assert float(found.loss) == 0
    assert not bool(found.gradient.any())


def test_the_whole_table_is_never_there(model, largest):
    h_ND = torch.zeros(500, 8, dtype=torch.float64, requires_grad=True)
    token_N = torch.zeros(500, dtype=torch.int64)
    with largest() as seen:
        loss_N = head_loss(model, h_ND, [50] * 10, lambda logits, part: cross_entropy(logits, token_N[part]))
        loss_N.sum().backward()
    assert seen.size == 500 * 8  # the features; a piece has 50 x 40 elements, the whole table 500 x 40


def test_sizes_cover_everything():
    assert even_sizes(10, 4) == [4, 3, 3]
    assert even_sizes(0, 4) == []


def test_a_frozen_head_gives_its_features_the_same_gradient(model, positions):
    h_ND, token_N, weight_N = positions
    found = []
    for trained in (True, False):
        model.requires_grad_(trained)
        loss_N = head_loss(model, h_ND, [20, 10], lambda logits, part: cross_entropy(logits, token_N[part]), weight_N)
        found.append(torch.autograd.grad((loss_N * weight_N).sum(), h_ND)[0])
    assert torch.equal(*found)
