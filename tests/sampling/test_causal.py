"""The causal control: a cache changes nothing, bf16 little, and samples know their own likelihood."""

from __future__ import annotations

import copy

import pytest
import torch

from unmask.checkpoint.io import Checkpoint
from unmask.core.streams import stream
from unmask.models.denoiser import log_probs
from unmask.models.dit.cached import Cached, narrowed
from unmask.models.dit.network import DiT
from unmask.sampling.causal import sample_causal

SIZE, LENGTH = 20, 32

CPU = torch.device("cpu")


@pytest.fixture
def ar(letters) -> Checkpoint:
    torch.manual_seed(2)
    model = DiT(SIZE + 1, LENGTH, hidden=16, cond=8, blocks=2, heads=2, dropout=0.0, causal=True).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return Checkpoint(model, tokenizer=letters(SIZE))


@pytest.mark.parametrize("graph", [None, lambda work: work])
def test_cached_reading_equals_reading_everything(ar: Checkpoint, graph, monkeypatch) -> None:
    """Also in the form of fixed shapes that a GPU replays, and once more after other texts."""
    monkeypatch.setattr("unmask.models.dit.cached.REACH", 12)
    model = ar.model.double()
    tokens_BL = torch.randint(SIZE, (3, LENGTH), generator=stream(1, "read"))
    with torch.inference_mode():
        reader = Cached(model, 3, graph)
        for place in range(20):
            reader(tokens_BL[:, LENGTH - 1 - place])
        reader.restart()
        step_by_step = torch.stack([reader(tokens_BL[:, place]) for place in range(LENGTH)], dim=1)
        torch.testing.assert_close(step_by_step, model(tokens_BL))


# oneDNN's bfloat16 kernels want instructions that some virtual machines announce but do not run
@pytest.mark.filterwarnings("ignore:TF32")
def test_products_in_bf16_leave_the_residual_stream_in_float32() -> None:
    """As in a folded model: nearer to the exact logits than a network that is in bf16 throughout."""
    torch.manual_seed(0)
    model = DiT(40, 24, hidden=64, cond=8, blocks=8, heads=4, causal=True).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
    tokens_BL = torch.randint(39, (8, 24), generator=stream(1, "read"))

    def read(network: DiT) -> torch.Tensor:
        reader = Cached(network, 8)
        return torch.stack([reader(tokens_BL[:, place]) for place in range(24)], dim=1).double()

    with torch.inference_mode(), torch.backends.mkldnn.flags(enabled=False):
        exact = copy.deepcopy(model).double()(tokens_BL)
        whole, narrow = copy.deepcopy(model).bfloat16(), narrowed(model, torch.bfloat16, CPU)
        error, error_of_whole = ((read(network) - exact).square().mean().sqrt() for network in (narrow, whole))
        torch.testing.assert_close(read(narrowed(model, torch.float32, CPU)), exact, atol=1e-3, rtol=1e-3)
    assert 0 < error < 0.7 * error_of_whole


def test_causal_samples_know_their_own_likelihood(ar: Checkpoint) -> None:
    samples = sample_causal(ar, 5, temperature=0.7, seed=3, batch=2, device="cpu")
    start_n1 = torch.full((5, 1), ar.tokenizer.eos_id)
    with torch.inference_mode():
        logits_nLV = ar.model(torch.cat([start_n1, samples.tokens[:, :-1]], dim=1))
    expected = log_probs(logits_nLV / 0.7, ar.model.mask_id).gather(-1, samples.tokens[..., None])[..., 0]
    torch.testing.assert_close(samples.log_q, expected.double(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(samples.tokens, sample_causal(ar, 5, temperature=0.7, seed=3, device="cpu").tokens)
