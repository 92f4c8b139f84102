"""A tiny body and heads of random weights, in float64; and the loop that a chain's draw must equal."""

import torch

from unmask.inference import gumbel
from unmask.inference.chain import Chain
from unmask.inference.step_law import Step
from unmask.models.chain import ChainConfig, ChainHead
from unmask.models.dit import DiT

V, L = 12, 16


def random_weights(module: torch.nn.Module, seed: int, std: float) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator, dtype=torch.float64) * std)
    return module.double().eval()


def tiny_body() -> DiT:
    return random_weights(DiT.preset("tiny", vocab_size=V, length=L, hidden=16, cond=4, heads=2, blocks=2), 0, 0.5)


def head(order: str = "left_to_right", born: bool = False, blind: bool = False, places: bool = False) -> ChainHead:
    config = ChainConfig(V, V - 1, L, 16, 16, hidden=16, blocks=2, heads=2, order=order, blind=blind, places=places)
    return ChainHead(config).double() if born else random_weights(ChainHead(config), 1, 0.8)


def sequential(law: Chain, step: Step, uniform_M: torch.Tensor) -> torch.Tensor:
    """Slot after slot: the head over all slots once for each, of which only that slot's law is used."""
    slotted, key_M = law.beside(step), gumbel.keys_of(uniform_M)
    token_RS = torch.zeros_like(slotted.position_RS)
    for s in range(token_RS.shape[1]):
        wanted_RS = torch.zeros_like(slotted.slots.real_RS)
        wanted_RS[:, s] = slotted.slots.real_RS[:, s]
        at_N, which_N, given = slotted.given(wanted_RS, token_RS)
        log_p_NV = given.shaped(torch.arange(len(which_N))).log_softmax(-1)
        noise_NV = gumbel.gumbel(key_M[which_N], gumbel.offsets_of(log_p_NV.shape[1]))
        token_RS.view(-1)[at_N] = (log_p_NV + noise_NV).argmax(-1)
    return slotted.in_order(token_RS)
