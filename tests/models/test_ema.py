import torch
from torch import nn

from unmask.models.ema import EMA


def test_the_average_is_the_closed_form_and_stays_in_float32():
    """With weights w_n = n the average is a sum that can be written out, whatever the model's precision."""
    model = nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    nn.init.zeros_(model.weight)
    ema = EMA(model, decay=0.5)
    for n in range(1, 21):
        nn.init.constant_(model.weight, float(n))
        ema.update(model, n)
    decay = [min(0.5, (1 + n) / (10 + n)) for n in range(1, 21)]
    assert decay[0] == 2 / 11
    assert decay[-1] == 0.5
    expected = 0.0
    for n in range(1, 21):
        remaining = 1.0
        for d in decay[n:]:
            remaining *= d
        expected += n * (1 - decay[n - 1]) * remaining
    torch.testing.assert_close(ema.shadow["weight"], torch.tensor([[expected]]))
    ema.copy_to(model)
    assert torch.equal(model.weight, ema.shadow["weight"].to(torch.bfloat16))


def test_the_average_is_a_copy_of_its_own():
    model = nn.Linear(2, 2)
    ema = EMA(model, decay=0.9)
    before = ema.shadow["weight"].clone()
    nn.init.ones_(model.weight)
    assert torch.equal(ema.shadow["weight"], before)
