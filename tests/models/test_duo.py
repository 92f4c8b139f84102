"""Duo's DiT: published files give the reference's logits, are never taken for MDLM's, and go the whole way."""

from pathlib import Path

import pytest
import torch
from tests.small import reference_of

from unmask.checkpoint.convert import convert
from unmask.checkpoint.io import Checkpoint, load, save
from unmask.checkpoint.tensors import read_tensors, write_tensors
from unmask.core.errors import UserError
from unmask.core.files import read_json, write_json
from unmask.inference.ready import make_ready
from unmask.models.dit.network import DiT
from unmask.models.dit.timed import TimedDiT
from unmask.models.family import family_of
from unmask.processes import Masked, Uniform
from unmask.processes.schedule import Cosine

FOLDER = Path("tests/assets/published/duo")


@pytest.fixture(scope="module")
def reference():
    return reference_of(FOLDER)


@pytest.fixture(scope="module")
def published():
    return load(FOLDER)


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_a_published_duo_gives_the_references_logits(reference, published):
    """At two sets of sigma, one a row; then of laws and of weighted tokens in place of tokens."""
    assert published.process == Uniform()
    assert published.model.mask_id is None
    model, ids = published.model, reference["ids"]
    ready = make_ready(model, torch.device("cpu"))
    assert isinstance(ready.model, TimedDiT)
    for name in ("sigma0", "sigma1"):
        expected = reference[f"logits_{name}_fp32"]
        close(model(ids, reference[name]), expected)
        close(ready.logits(ready.features(ids, reference[name]))[..., :61], expected)
        alone = [ready.features(ids[row : row + 1], reference[name][row : row + 1]) for row in range(3)]
        close(ready.logits(torch.cat(alone))[..., :61], expected)
    sigma = reference["sigma0"][:2]
    close(model(model.embed(reference["soft_input"].softmax(-1)), sigma), reference["logits_soft_fp32"])
    close(model(model.embed(reference["topk_ids"], reference["topk_weights"]), sigma), reference["logits_topk_fp32"])


def test_the_twin_for_inference_is_the_same_function():
    torch.manual_seed(0)
    model = DiT.preset("tiny", vocab_size=300, length=40, time=True).double().eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    twin, z, sigma = (
        TimedDiT(model, torch.float64),
        torch.randint(300, (3, 33)),
        torch.tensor([0.01, 1.0, 6.9]).double(),
    )
    with torch.no_grad():
        padded = twin.padded_logits(twin.features(z, time=sigma))
        torch.testing.assert_close(padded[..., :300], model(z, sigma), rtol=1e-12, atol=1e-12)
    assert padded.shape[-1] == 512
    assert bool((padded[..., 300:] == -torch.inf).all())


def test_compiled_rows_of_different_times_are_each_as_alone(published, reference, monkeypatch):
    """The compiler is left out: what is tried is how ids and times reach what it compiled."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    ready = make_ready(published.model, torch.device("cpu"), compile=True)
    ready.expect(3, 24)
    for rows in (3, 2, 1):  # all of a batch; most of it; so few that they go by themselves
        found = ready.features(reference["ids"][:rows], reference["sigma0"][:rows])
        close(ready.logits(found)[..., :61], reference["logits_sigma0_fp32"][:rows])


def test_it_is_kept_converted_there_and_back_and_no_bit_changes(published, tmp_path):
    save(published, tmp_path / "ours")
    ours = load(tmp_path / "ours")
    assert ours.process == Uniform()
    assert ours.model.config == published.model.config
    convert(tmp_path / "ours", tmp_path / "theirs", format="duo")
    before, after = read_tensors(FOLDER / "model.safetensors"), read_tensors(tmp_path / "theirs/model.safetensors")
    for name in before:
        torch.testing.assert_close(after[name], before[name], rtol=1e-6 * ("inv_freq" in name), atol=0)
    said, theirs = read_json(tmp_path / "theirs/config.json", "config"), read_json(FOLDER / "config.json", "config")
    assert {name: theirs[name] for name in said} | {"model_type": "duo"} == said
    assert load(tmp_path / "theirs").process == Uniform()


def test_neither_is_taken_for_the_other(published, tmp_path):
    """The same tensors: only config.json tells, and one that tells both is refused."""
    tensors, said = read_tensors(FOLDER / "model.safetensors"), read_json(FOLDER / "config.json", "config")

    def folder(**facts):
        write_tensors(tmp_path / "model.safetensors", tensors)
        write_json(tmp_path / "config.json", {k: v for k, v in (said | facts).items() if v is not None})
        return load(tmp_path)

    assert folder(model_type="duo").model.mask_id is None
    assert folder(model_type=None, algo={"name": "distillation"}, diffusion="uniform").process == Uniform()
    masked = folder(model_type="mdlm", time_conditioning=False)
    assert masked.process == Masked()
    assert masked.model.mask_id == 60
    assert not masked.model.config.time
    for facts, message in (
        ({"algo": {"name": "mdlm"}}, "contradicts itself.*algo.name = 'mdlm'"),
        ({"diffusion": "absorbing_state"}, "contradicts itself.*diffusion"),
        ({"time_conditioning": False}, "contradicts itself.*time_conditioning = False"),
        ({"causal": True}, "autoregressive"),
        ({"n_blocks": 3}, "no whole Duo checkpoint: it lacks 'blocks.2"),
        ({"model_type": "mdlm", "time_conditioning": True}, "time-conditioned model, but not Duo's"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            folder(**facts)
        assert "\n" not in str(caught.value)
    write_json(tmp_path / "config.json", said | {"model_type": None})  # names no kind: not MDLM's either
    with pytest.raises(UserError, match="no family that is known"):
        load(tmp_path)


def test_what_it_cannot_do_is_said_in_one_line(published, tmp_path):
    model, family = published.model, family_of(published.model)
    ids = torch.zeros(1, 4, dtype=torch.long)
    with pytest.raises(UserError, match="is conditioned on time: give features"):
        model.features(ids)
    with pytest.raises(UserError, match="takes no time"):
        DiT.preset("tiny").features(ids, torch.ones(1))
    for what in (family.smaller, family.onnx):
        with pytest.raises(UserError, match="conditioned on time cannot be"):
            what(model)
    with pytest.raises(UserError, match="leave out time, or causal"):
        DiT.preset("tiny", time=True, causal=True)
    save(published, tmp_path / "ours")
    with pytest.raises(UserError, match="take --format duo"):
        convert(tmp_path / "ours", tmp_path / "out", format="mdlm")
    save(Checkpoint(model, Uniform(Cosine())), tmp_path / "cosine")
    with pytest.raises(UserError, match=r"'cosine'.*keep this checkpoint in our own format"):
        convert(tmp_path / "cosine", tmp_path / "out", format="duo")
