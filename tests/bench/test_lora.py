"""The measured step of LoRA distillation is a real one: the adapter moves, the base does not."""

import torch
from tests.small import shaken

from unmask.bench.lora import lora_step
from unmask.models.decoder import DecoderConfig
from unmask.models.llada import LLaDA


def test_it_measures_real_steps_and_leaves_the_base_alone(monkeypatch):
    model = LLaDA(DecoderConfig(vocab_size=40, length=32, hidden=16, blocks=2, heads=2, kv_heads=2, mlp=32, mask=7))
    shaken(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    students = []
    from unmask.bench import lora

    class Kept(lora.Student):
        def __init__(self, *given):
            super().__init__(*given)
            students.append(self)

    monkeypatch.setattr(lora, "Student", Kept)
    for recompute in (False, True):
        torch.manual_seed(0)  # of dropout
        row = lora_step(model.eval(), torch.device("cpu"), length=32, batch=2, recompute=recompute, repeats=2, rank=4)
        assert row["tokens_per_second"] > 0
        assert row["trained_parameters"] == 2 * 4 * (4 * (16 + 16) + 3 * (16 + 32))
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    kept, again = ({name: value for name, value in one.ema.shadow.items() if "lora_B" in name} for one in students)
    assert any(bool(value.any()) for value in kept.values())
    assert all(torch.equal(value, again[name]) for name, value in kept.items())
