"""Sampling a causal DiT with a cache of keys and values: the autoregressive control, as fast as it honestly gets.

Each token costs one position's work in every layer instead of the whole sequence's. The text starts from the
end-of-document token, which is not part of it; log q of every token is recorded as in the masked sampler. As there
(models/folded.py) only the matrix products are in bf16 on a GPU: the residual stream and the norms stay in float32.

Refuses to know scores. Shapes: B texts, L tokens, D features, H heads, E features of a head.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.checkpoint.io import Checkpoint, dit_of
from unmask.core import provenance
from unmask.core.errors import UserError
from unmask.core.ranks import joined
from unmask.core.streams import stream
from unmask.inference.ready import Precision, draw_device, is_half, usual_batch
from unmask.models.dit.layers import Block
from unmask.models.dit.network import DiT
from unmask.sampling import categorical
from unmask.sampling.categorical import Law
from unmask.sampling.samples import Samples


class Cached:
    """A causal DiT that reads one token a call and remembers the keys and values of those before."""

    def __init__(self, model: DiT, rows: int) -> None:
        self.model, self.place = model, 0
        config, weight = model.config, model.head.linear.weight
        shape = (config.blocks, 2, rows, config.heads, config.length, config.hidden // config.heads)
        self.memory = torch.zeros(shape, dtype=weight.dtype, device=weight.device)
        self.condition_C = model._condition()

    def logits(self, token_B: Tensor) -> Tensor:
        """logits_BV of what follows."""
        h_B1D = self.model.embedding(token_B[:, None])
        for block, memory in zip(self.model.blocks, self.memory, strict=True):
            assert isinstance(block, Block)
            h_B1D = self._through(block, h_B1D, memory)
        self.place += 1
        return self.model.logits(h_B1D, _product)[:, 0]

    def _through(self, block: Block, x_B1D: Tensor, memory_2BHLE: Tensor) -> Tensor:
        shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = block.modulation(self.condition_C).chunk(6)
        narrow = block.qkv.weight.dtype
        qkv_B1D = block.qkv(block.attention_norm(x_B1D, shift_1, scale_1).to(narrow))
        q_BH1E, k_BH1E, v_BH1E = qkv_B1D.unflatten(-1, (3, block.heads, -1)).permute(2, 0, 3, 1, 4)
        memory_2BHLE[0, :, :, self.place] = self._turned(k_BH1E)[:, :, 0]
        memory_2BHLE[1, :, :, self.place] = v_BH1E[:, :, 0]
        seen_2BHTE = memory_2BHLE[:, :, :, : self.place + 1]
        mixed_BH1E = F.scaled_dot_product_attention(self._turned(q_BH1E), *seen_2BHTE)
        x_B1D = x_B1D + gate_1 * block.attention_out(mixed_BH1E.transpose(1, 2).flatten(2))
        return x_B1D + gate_2 * block._mlp(block.mlp_norm(x_B1D, shift_2, scale_2).to(narrow))

    def _turned(self, x_BH1E: Tensor) -> Tensor:
        """Rotary positions at this place alone."""
        rotary = self.model.rotary
        first, second = x_BH1E.chunk(2, dim=-1)
        turned = torch.cat([-second, first], dim=-1)
        return (x_BH1E * rotary.cos_LE[self.place] + turned * rotary.sin_LE[self.place]).to(x_BH1E.dtype)


def _product(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.linear(x.to(weight.dtype), weight, bias)


def narrowed(model: DiT, dtype: torch.dtype) -> DiT:
    """The same model with the matrices of its products in `dtype`, and everything else as it was."""
    for block in model.blocks:
        assert isinstance(block, Block)
        for linear in (block.qkv, block.attention_out, block.mlp_in, block.mlp_out):
            linear.to(dtype)
    model.head.linear.to(dtype)
    return model


@torch.inference_mode()
def sample_causal(
    checkpoint: Checkpoint,
    n: int,
    *,
    temperature: float = 1.0,
    seed: int = 0,
    batch: int | None = None,
    device: str = "auto",
    precision: Precision = "auto",
) -> Samples:
    """Write n texts from left to right, each as long as the model; sample i draws the same noise whatever the batch."""
    model, tokenizer, law = dit_of(checkpoint), checkpoint.tokenizer, Law(temperature)
    if not model.config.causal:
        raise UserError("this model is not causal: draw from it with `unmask sample`")
    if tokenizer is None:
        raise UserError("this model has no tokenizer, so that it has no token to start a text from")
    if batch is not None and batch < 1:
        raise UserError(f"batch must be at least 1, not {batch}")
    with joined(device) as ranks:
        dtype = torch.bfloat16 if is_half(precision, ranks.device) else torch.float32
        network = narrowed(copy.deepcopy(model).to(ranks.device, torch.float32).eval(), dtype)
        size = batch or usual_batch(model, ranks.device)
        shares = [list(range(start, min(start + size, n))) for start in range(0, n, size)]
        mine = [_draw(network, tokenizer.eos_id, part, law, seed) for part in shares[ranks.rank :: ranks.world]]
        said = ranks.gather([[tokens.tolist(), log_q.tolist()] for tokens, log_q in mine])
    parts = [said[i % len(said)][i // len(said)] for i in range(len(shares))]
    tokens_nL = torch.tensor([row for tokens, _ in parts for row in tokens])
    log_q_nL = torch.tensor([row for _, log_q in parts for row in log_q], dtype=torch.float64)
    record = provenance.record(
        ranks.device,
        model=dict(checkpoint.provenance),
        plan={"name": "causal"},
        steps=model.length,
        nfe=float(model.length),
        temperature=temperature,
        draw=law.dtype,
        precision=str(dtype).removeprefix("torch."),
        seed=seed,
        n=n,
        cache="keys and values",
    )
    text = [tokenizer.decode(row) for row in tokens_nL.tolist()]
    nfe_n = torch.full((n,), model.length)
    return Samples(tokens_nL, torch.zeros_like(tokens_nL, dtype=torch.bool), log_q_nL, nfe_n, text, record)


def _draw(model: DiT, start: int, indices: list[int], law: Law, seed: int) -> tuple[Tensor, Tensor]:
    """A batch of texts and the log q of their tokens."""
    length, device = model.length, model.head.linear.weight.device
    noise = [torch.rand(length, generator=stream(seed, "draw", i), dtype=torch.float64) for i in indices]
    uniform_BL = torch.stack(noise).to(draw_device(device))
    reader, token_B = Cached(model, len(indices)), torch.full((len(indices),), start, device=device)
    tokens, log_q = [], []
    for place in range(length):
        drawn = categorical.draw(reader.logits(token_B), uniform_BL[:, place], model.mask_id, law)
        token_B = drawn.token_M.to(device)
        tokens.append(token_B)
        log_q.append(drawn.log_q_M.double())
    return torch.stack(tokens, dim=1).cpu(), torch.stack(log_q, dim=1).cpu()
