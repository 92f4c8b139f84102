"""`unmask bench sampler` tells a model that it cannot time, before it times anything; the benches know every preset."""

import pytest

from unmask.base.errors import UserError
from unmask.bench.distill import distill
from unmask.bench.sampler import sampler
from unmask.checkpoint.io import Checkpoint, save
from unmask.cli.main import run
from unmask.cli.parser import options_of
from unmask.models.dit import PRESETS, DiT


def test_a_causal_model_is_refused_in_one_line(tmp_path):
    save(Checkpoint(DiT(7, length=4, hidden=8, cond=4, blocks=1, heads=1, causal=True)), tmp_path / "judge")
    with pytest.raises(UserError, match=r"this model has no mask state .* give a masked-diffusion model"):
        run(["bench", "sampler", "--model", str(tmp_path / "judge"), "--device", "cpu"])


@pytest.mark.parametrize("bench", [sampler, distill])
def test_every_preset_can_be_timed(bench):
    (preset,) = [option for option in options_of(bench) if option.name == "preset"]
    assert set(preset.choices) == set(PRESETS)
