"""ONNX graphs of a DiT: onnxruntime computes what torch computes, whatever the shape."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.small import shaken

from unmask.checkpoint.export import export
from unmask.checkpoint.io import Checkpoint, load
from unmask.cli.main import main
from unmask.core.errors import UserError
from unmask.models.dit import DiT

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'unmask[export]'")
pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install 'unmask[export]'")
CLOSE = 1e-4  # largest difference of a logit

SHAPES = {
    "one block": {"vocab_size": 11, "length": 8, "hidden": 8, "cond": 4, "blocks": 1, "heads": 2},
    "causal, two blocks": {
        "vocab_size": 17,
        "length": 40,
        "hidden": 16,
        "cond": 3,
        "blocks": 2,
        "heads": 4,
        "causal": True,
    },
    "one position": {"vocab_size": 9, "length": 1, "hidden": 8, "cond": 2, "blocks": 1, "heads": 2},
}


def random_dit(**shape: Any) -> DiT:
    """No weight is zero, so that a gate or shift that is lost shows."""
    return shaken(DiT(**shape)).eval()


def run(folder: Path, tokens_RL: torch.Tensor) -> np.ndarray:
    """Logits at every position, by onnxruntime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    body, head = (onnxruntime.InferenceSession(folder / f"{part}.onnx", options) for part in ("body", "head"))
    (features,) = body.run(None, {"tokens": tokens_RL.numpy()})
    (logits,) = head.run(None, {"features": features.reshape(-1, features.shape[-1])})
    return logits.reshape(*tokens_RL.shape, -1)


@torch.no_grad()
def furthest(model: DiT, folder: Path, *sizes: tuple[int, int]) -> float:
    """The largest difference of a logit on random tokens, for several (rows, length)."""
    found = 0.0
    for rows, length in sizes:
        tokens = torch.randint(model.vocab_size, (rows, length), generator=torch.Generator().manual_seed(rows))
        expected = model.float().logits(model.features(tokens)).numpy()
        assert np.ptp(expected) > 0.5
        found = max(found, float(np.abs(run(folder, tokens) - expected).max()))
    return found


@pytest.mark.parametrize("name", SHAPES)
def test_onnxruntime_computes_what_torch_computes(name: str, tmp_path: Path) -> None:
    model = random_dit(**SHAPES[name])
    export(Checkpoint(model), onnx=tmp_path / "out")
    lengths = {1, model.length, (model.length + 1) // 2}
    assert furthest(model, tmp_path / "out", *[(rows, length) for rows in (1, 3) for length in lengths]) < CLOSE


def test_the_bundled_model_in_half_the_space(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its bf16 numbers are fp16 numbers too, but for the smallest."""
    folder = tmp_path / "pocket"
    assert main(["export", "pocket", "--onnx", str(folder), "--storage", "fp16"]) == 0
    assert "stored in fp16" in capsys.readouterr().out
    assert furthest(load("pocket").model, folder, (1, 256), (2, 100)) < CLOSE  # type: ignore[arg-type]
    about = json.loads((folder / "model.json").read_text())
    assert (about["length"], about["vocab_size"], about["mask_id"]) == (256, 8193, 8192)
    assert (folder / "tokenizer.json").read_text() == load("pocket").tokenizer.to_json()  # type: ignore[union-attr]
    size = sum((folder / f"{part}.onnx").stat().st_size for part in ("body", "head"))
    assert size < 2.1 * about["parameters"]
    assert b".py" not in (folder / "body.onnx").read_bytes()  # no path of this machine


def test_what_cannot_be_exported_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(UserError, match="exists: name another folder"):
        export("pocket", onnx=tmp_path / "mine")

    class Other(torch.nn.Linear):
        vocab_size, mask_id, length = 5, 4, 8

    with pytest.raises(UserError, match="cannot be exported to ONNX"):
        export(Checkpoint(Other(2, 2)), onnx=tmp_path / "other")  # type: ignore[arg-type]
    assert not (tmp_path / "other").exists()


def test_a_number_too_large_for_fp16_stays_in_fp32(tmp_path: Path) -> None:
    model = random_dit(**SHAPES["one position"])
    tokens = torch.arange(9)[:, None]
    with torch.no_grad():
        model.head.linear.weight[0, 0] = 1e6
        expected = model.logits(model.features(tokens)).numpy()
    export(Checkpoint(model), onnx=tmp_path / "out", storage="fp16")
    assert np.allclose(run(tmp_path / "out", tokens), expected, rtol=1e-2, atol=1e-2)
