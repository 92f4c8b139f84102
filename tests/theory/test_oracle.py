"""Oracles against closed forms, brute force, and each other."""

import itertools

import pytest
import torch

from unmask.core.errors import UserError
from unmask.core.streams import stream
from unmask.models.denoiser import Denoiser
from unmask.theory.oracle import SOURCES, Enumerated, copy_at_lag, sticky
from unmask.theory.trigram import ALPHABET, TrigramMixture, encode


def decode(tokens):
    """Text of one line; a mask shows as '_'."""
    return "".join((ALPHABET + "_")[token] for token in tokens.tolist())


def random_views(n, length, mask_id, seed):
    """Lines with a random share masked, from nothing visible to everything."""
    generator = stream(seed, "views")
    x = torch.randint(mask_id, (n, length), generator=generator)
    share = torch.linspace(0, 1, n, dtype=torch.float64)[:, None]
    return torch.where(torch.rand(n, length, generator=generator, dtype=torch.float64) < share, mask_id, x)


@pytest.mark.parametrize("name", SOURCES)
def test_the_posterior_is_bayes_rule_over_every_line(name):
    """p(x_i = v | visible) = sum of p over lines that agree, one line at a time."""
    L, V = 5, 3
    p = SOURCES[name](length=L, tokens=V) if name != "copy" else copy_at_lag(L, V, lag=2)
    oracle = Enumerated(p)
    assert isinstance(oracle, Denoiser)
    z_BL = random_views(12, L, V, seed=0)
    found_BLK = oracle.logits(oracle.features(z_BL)).exp()
    for z, found in zip(z_BL.tolist(), found_BLK, strict=True):
        weight = torch.zeros(L, V, dtype=torch.float64)
        for line in itertools.product(range(V), repeat=L):
            if all(seen in (V, token) for seen, token in zip(z, line, strict=True)):
                weight[torch.arange(L), list(line)] += p[line]
        assert torch.allclose(found[:, :V], weight / weight.sum(-1, keepdim=True), atol=1e-12)
        assert bool((found[:, V] == 0).all())


def test_sticky_chain_bridges_between_its_visible_neighbours():
    """p(x_i = v | x_a, x_b) is proportional to T^(i-a)[x_a, v] T^(b-i)[v, x_b], whatever lies beyond a and b."""
    T = 0.8 * torch.eye(3, dtype=torch.float64) + 0.2 / 3
    z = torch.tensor([[2, 0, 3, 3, 3, 1, 3, 2]])
    posterior = Enumerated(sticky()).features(z).exp()[0, :, :3]
    for i in (2, 3, 4):
        bridge = torch.matrix_power(T, i - 1)[0] * torch.matrix_power(T, 5 - i)[:, 1]
        assert torch.allclose(posterior[i], bridge / bridge.sum(), atol=1e-12)


def test_copy_sees_only_its_own_lag():
    z = torch.tensor([[0, 3, 2, 3, 3, 3, 3, 1]])
    posterior = Enumerated(copy_at_lag()).features(z).exp()[0, :, :3]
    kernel = 0.9 * torch.eye(3, dtype=torch.float64) + 0.1 / 3
    uniform = torch.full((3,), 1 / 3, dtype=torch.float64)
    assert torch.allclose(posterior[4], kernel[0], atol=1e-12)
    assert torch.allclose(posterior[6], kernel[2], atol=1e-12)
    assert torch.allclose(posterior[3], kernel[1], atol=1e-12)
    assert torch.allclose(posterior[1], uniform, atol=1e-12)
    assert torch.allclose(posterior[5], uniform, atol=1e-12)


def test_topic_is_exchangeable_and_order2_is_not():
    topic, order2 = SOURCES["topic"](length=4), SOURCES["order2"](length=4)
    assert torch.allclose(topic, topic.permute(2, 0, 3, 1), atol=1e-15)
    assert not torch.allclose(order2, order2.permute(2, 0, 3, 1), atol=1e-3)


def test_draws_follow_the_law():
    oracle = Enumerated(sticky(length=3))
    x = oracle.draw(20_000, stream(0, "draws"))
    expected = oracle.log_prob(torch.cartesian_prod(*[torch.arange(3)] * 3)).exp() * len(x)
    seen = torch.bincount(x @ torch.tensor([9, 3, 1]), minlength=27)
    assert float(((seen - expected) ** 2 / expected).sum()) < 54  # chi-square, 26 degrees of freedom: p = 0.001


def test_a_source_must_be_small():
    with pytest.raises(UserError, match="too many"):
        Enumerated(torch.zeros((2,) * 16))


def small_mixture(length):
    """Two components over three characters, nothing in common."""
    generator = stream(0, "mixture")
    pair = torch.rand(2, 9, generator=generator, dtype=torch.float64) ** 3
    following = torch.rand(2, 3, 3, 3, generator=generator, dtype=torch.float64) ** 3
    return TrigramMixture(
        torch.tensor([0.3, 0.7], dtype=torch.float64),
        (pair / pair.sum(1, keepdim=True)).view(2, 3, 3),
        following / following.sum(-1, keepdim=True),
        length,
    )


def test_forward_backward_equals_enumeration():
    mixture = small_mixture(6)
    every = torch.cartesian_prod(*[torch.arange(3)] * 6)
    p = torch.zeros((3,) * 6, dtype=torch.float64)
    for m in range(2):
        one = mixture.pair_MVV[m][every[:, 0], every[:, 1]]
        for i in range(2, 6):
            one = one * mixture.next_MVVV[m][every[:, i - 2], every[:, i - 1], every[:, i]]
        p += mixture.weight_M[m] * one.view((3,) * 6)
    oracle = Enumerated(p)
    z_BL = random_views(40, 6, 3, seed=1)
    assert torch.allclose(mixture.features(z_BL).exp(), oracle.features(z_BL).exp(), atol=1e-12)
    assert torch.allclose(mixture.log_prob(every), oracle.log_prob(every), atol=1e-12)


TEXTS = [
    "The rain in Spain stays mainly in the plain; the brain of a crane is vainly in pain. " * 20,
    "How much wood would a woodchuck chuck if a woodchuck could chuck wood? Much would he! " * 20,
]


def test_the_chain_rule_holds_in_any_order_on_long_lines():
    """Exact posteriors multiply to log p(x) whatever order the positions are revealed in; in text of 80 characters."""
    mixture = TrigramMixture.fit(TEXTS, length=80)
    x_BL = mixture.draw(3, stream(0, "x"))
    log_q_B = torch.zeros(3, dtype=torch.float64)
    z_BL = torch.full_like(x_BL, mixture.mask_id)
    for i in torch.randperm(80, generator=stream(0, "order")).tolist():
        log_q_B += mixture.features(z_BL)[:, i].gather(1, x_BL[:, i, None])[:, 0]
        z_BL[:, i] = x_BL[:, i]
    assert torch.allclose(log_q_B, mixture.log_prob(x_BL), atol=1e-9)
    fast = TrigramMixture.fit(TEXTS, length=80, dtype=torch.float32)
    assert torch.allclose(fast.log_prob(x_BL), mixture.log_prob(x_BL), rtol=1e-5)
    z_BL[:, ::3] = mixture.mask_id
    assert torch.allclose(fast.features(z_BL).exp().double(), mixture.features(z_BL).exp(), atol=1e-5)


def test_a_fitted_mixture_knows_its_books():
    mixture = TrigramMixture.fit(TEXTS)
    shown = "a woodchuck could chuck wood much would he how much"
    view = encode(shown)
    view[8:10] = mixture.mask_id
    assert decode(view) == shown[:8] + "__" + shown[10:]
    best = mixture.features(view[None])[0].argmax(-1)
    assert decode(best) == shown  # "woodch__k": only one trigram chain fits
    own = mixture.log_prob(encode("woodchuck")[None])
    other = mixture.log_prob(encode("xqzjvkqxz")[None])
    assert float(own - other) > 20
    mixed = mixture.log_prob(encode("rain chuck")[None])  # one book a line: crossing books costs
    assert float(mixed) < float(mixture.log_prob(encode("rain crane")[None]))
