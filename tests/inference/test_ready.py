"""The body behind the sampler: which rows it computes, eager and compiled."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from unmask.checkpoint.io import Checkpoint
from unmask.inference.ready import make_ready
from unmask.models.dit.folded import FoldedDiT
from unmask.models.dit.network import DiT
from unmask.sampling.verbs import sample

L, BATCH, STEPS = 16, 8, 24
IID = {"plan": "iid", "grid": "uniform", "batch": BATCH, "device": "cpu"}  # in many steps most rows rest


@pytest.fixture
def model() -> DiT:
    torch.manual_seed(0)
    model = DiT(vocab_size=11, length=L, hidden=16, cond=8, blocks=1, heads=2).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.5)
        model.head.linear.weight.mul_(0.2)  # else it would write one word for ever, whatever was computed
        model.head.linear.bias.zero_()
    return model


@pytest.fixture
def compiled_for(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Shapes of ids that a stand-in for the compiler was given: each new one would be a compilation of the body."""
    shapes: list[tuple[int, int]] = []

    def compiler(function: Callable[..., object], dynamic: bool) -> Callable[..., object]:
        def called(z_RL: Tensor) -> object:
            shapes.append(tuple(z_RL.shape))
            return function(z_RL)

        return function if dynamic else called

    monkeypatch.setattr(torch, "compile", compiler)
    return shapes


def test_a_batch_is_compiled_for_its_rows_alone(model: DiT, compiled_for: list[tuple[int, int]]) -> None:
    """The last batch has 5 rows, in most steps some rows rest, and in many all but a few do."""
    plain = sample(Checkpoint(model), BATCH + 5, STEPS, **IID)
    assert not compiled_for
    compiled = sample(Checkpoint(model), BATCH + 5, STEPS, **IID, compile=True)
    assert len(plain.tokens.unique()) > 5
    assert set(compiled_for) == {(BATCH, L)}
    assert len(compiled_for) < plain.record["forwards"], "where far fewer rows are touched, they are computed alone"
    assert torch.equal(compiled.tokens, plain.tokens)
    assert torch.equal(compiled.nfe, plain.nfe)
    torch.testing.assert_close(compiled.log_q, plain.log_q, atol=1e-5, rtol=1e-5)


def test_fewer_texts_than_a_batch_holds_are_not_padded_to_it(model: DiT, compiled_for: list[tuple[int, int]]) -> None:
    sample(Checkpoint(model), 3, STEPS, **IID, compile=True)
    assert set(compiled_for) == {(3, L)}


def test_a_model_is_compiled_once_and_again_when_its_weights_change(
    model: DiT, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiling takes longer than most draws; what was compiled must never write for weights that are gone."""
    bodies: list[object] = []

    def compiler(function: Callable[..., object], dynamic: bool) -> Callable[..., object]:
        bodies.extend([] if dynamic else [function])
        return function

    monkeypatch.setattr(torch, "compile", compiler)

    def drawn(**how: object) -> Tensor:
        return sample(Checkpoint(model), BATCH, STEPS, **{**IID, **how}).tokens

    first = drawn(compile=True)
    assert torch.equal(drawn(compile=True), first)
    assert torch.equal(drawn(compile=True, seed=1), drawn(seed=1))
    assert len(bodies) == 1
    with torch.no_grad():
        model.head.linear.bias.add_(torch.linspace(-3, 3, 11))  # as a step of training would
    assert not torch.equal(drawn(compile=True), first)
    assert torch.equal(drawn(compile=True), drawn())
    assert len(bodies) == 2
    model.double()
    assert torch.equal(drawn(compile=True), drawn())
    assert len(bodies) == 3


def test_rows_that_ride_along_are_computed_as_alone(model: DiT, compiled_for: list[tuple[int, int]]) -> None:
    z_RL = torch.randint(11, (BATCH, L), generator=torch.Generator().manual_seed(0))
    body, expected = (
        make_ready(model, torch.device("cpu"), compile=True),
        FoldedDiT(model, torch.float32).features(z_RL),
    )
    body.expect(BATCH, L)
    with torch.inference_mode():
        for rows in (6, 8, 4, 7):  # what an earlier call left in the other rows does not matter
            torch.testing.assert_close(body.features(z_RL[-rows:]), expected[-rows:])
    assert set(compiled_for) == {(BATCH, L)}


def test_without_a_compiler_only_the_rows_of_a_step_are_computed(model: DiT, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    features = FoldedDiT.features

    def counted(self: FoldedDiT, z_RL: Tensor) -> Tensor:
        rows.append(len(z_RL))
        return features(self, z_RL)

    monkeypatch.setattr(FoldedDiT, "features", counted)
    drawn = sample(Checkpoint(model), BATCH, STEPS, **IID)
    assert sum(rows) == int(drawn.nfe.sum()) < BATCH * len(rows)


class _Noisy(torch.nn.Module):
    """A model of somebody else's, whose dropout drowns what it says."""

    vocab_size, mask_id, length = 4, 3, L

    def __init__(self) -> None:
        super().__init__()
        self.says, self.dropout = torch.nn.Parameter(torch.tensor([0.0, 9.0, 0.0, 0.0])), torch.nn.Dropout(0.9)

    def features(self, z: Tensor) -> Tensor:
        return self.dropout(self.says.expand(*z.shape, -1))

    def logits(self, h: Tensor) -> Tensor:
        return h


def test_a_model_still_in_training_is_sampled_without_its_dropout() -> None:
    still_training = _Noisy()
    drawn = sample(Checkpoint(still_training), BATCH, STEPS, **IID)
    assert (drawn.tokens == 1).double().mean() > 0.95
    assert still_training.training  # the caller's model keeps its mode


@pytest.mark.cuda
def test_a_replayed_graph_draws_what_the_eager_body_draws(model: DiT) -> None:
    on_gpu = {**IID, "device": "cuda", "precision": "fp32"}
    plain, compiled = (
        sample(Checkpoint(model), BATCH + 5, STEPS, **on_gpu, compile=compile) for compile in (False, True)
    )
    assert torch.equal(compiled.tokens, plain.tokens)
    assert torch.equal(compiled.nfe, plain.nfe)
    torch.testing.assert_close(compiled.log_q, plain.log_q, atol=1e-4, rtol=1e-4)
    again = sample(Checkpoint(model), BATCH + 5, STEPS, **on_gpu, compile=True)  # by the graph that is there
    assert torch.equal(again.tokens, plain.tokens)


def test_in_bf16_a_cpu_draws_nearly_the_same_law(model: DiT) -> None:
    """One step from nothing: each token's log-probability is that of float32, but for the rounding."""
    exact, half = (
        sample(Checkpoint(model), 64, 1, **IID | {"batch": 64}, precision=precision) for precision in ("fp32", "bf16")
    )
    same = exact.tokens == half.tokens
    assert same.double().mean() > 0.9
    assert not torch.equal(exact.log_q, half.log_q)
    torch.testing.assert_close(half.log_q[same], exact.log_q[same], atol=0.05, rtol=0)
