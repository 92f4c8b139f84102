"""Copies of a network that hold given tensors: any module, tied weights and recurrent ones included."""

import pytest
import torch
from torch import nn

from unmask.models.family import trainable
from unmask.models.parameters import emptied, filled, tensors_of


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.body = nn.GRU(4, 4, num_layers=2, batch_first=True)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("table", torch.arange(4.0))

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.embedding(z))[0] + self.table)


@pytest.mark.filterwarnings("ignore:RNN module weights are not part of single contiguous chunk")
def test_a_copy_holds_the_given_tensors_and_keeps_ties():
    model = Tied()
    model.body.requires_grad_(False)
    assert trainable(model).keys() == {"embedding.weight"}
    empty = emptied(model)
    assert {parameter.device.type for parameter in empty.parameters()} == {"meta"}
    given = {name: value.detach() + 1 for name, value in trainable(model).items()}
    copy = filled(empty, {**dict(model.named_parameters()), **given})
    assert copy.head.weight is copy.embedding.weight
    assert copy.embedding.weight.data_ptr() == given["embedding.weight"].data_ptr()
    assert copy.body.weight_hh_l1.data_ptr() == model.body.weight_hh_l1.data_ptr()  # not trained: shared
    assert trainable(copy).keys() == trainable(model).keys()
    z = torch.tensor([[1, 2, 3]])
    expected = model(z)
    with torch.no_grad():
        model.embedding.weight += 1
    assert not torch.equal(copy(z), expected)
    assert torch.equal(copy(z), model(z))
    assert tensors_of(copy).keys() == dict(model.named_parameters()).keys() | {"table"}
    assert filled(empty, {**tensors_of(copy), "table": torch.ones(4)}).table.tolist() == [1] * 4
    assert emptied(copy).table.tolist() == [0, 1, 2, 3]
