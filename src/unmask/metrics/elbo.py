"""The likelihood of held-out text, sequence by sequence, in nats per token.

For a masked model this is the ELBO in its order-agnostic form: draw k uniformly from 1..L, mask k positions of the
sequence at random, and take the mean of -log p(x_i | the rest) over them. Its mean over k is the continuous-time
NELBO / L of *every* schedule that runs from clean to all masked, with less noise; a true upper bound on the negative
log-likelihood. (MDLM's own estimate stops at mask probability 1 - eps = 0.999 and so lies up to 0.1% of the all-masked
loss lower.) For a causal model it is the exact -log p(x_i | x_<i), first token not scored.

Shapes: B sequences, L positions, N chosen positions, T all sequences, P views of each.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unmask.models.denoiser import Denoiser, features_of, states_of
from unmask.objectives.divergences import cross_entropy
from unmask.objectives.elbo import MDLM
from unmask.objectives.head_loss import even_sizes, head_loss, piece_size
from unmask.processes import Process, States
from unmask.processes.masked import mask_of
from unmask.processes.schedule import stratified


def order_agnostic_masks(
    total: int, length: int, generator: torch.Generator, views: int = 1, given_TL: Tensor | None = None
) -> Tensor:
    """masked_PTL, P views of each text with k positions masked at random places, k stratified over 1..L.

    Each text has its views in equal parts of 1..L, so that its own mean says little of which k it happened to get: all
    texts together would be as exact without that, but their spread would be mostly that of k, and intervals too wide.
    What is given of a text is never masked: L is then what is left of it.
    """
    part_P1 = torch.arange(views, dtype=torch.float64)[:, None]
    free_T = length if given_TL is None else (~given_TL).sum(1)
    k_PT = torch.ceil((part_P1 + stratified(total, generator)) / views * free_T)
    place_PTL = torch.rand(views, total, length, generator=generator, dtype=torch.float64)
    if given_TL is not None:
        return place_PTL.masked_fill(given_TL, 2.0).argsort(dim=2).argsort(dim=2) < k_PT[..., None]
    return place_PTL.argsort(dim=2) < k_PT[..., None]


def elbo_of(student: Denoiser, x0_BL: Tensor, masked_BL: Tensor) -> Tensor:
    """The order-agnostic ELBO term of each sequence, in nats per token: mean of -log p(x_i | z) over masked i."""
    chosen = masked_BL.flatten().nonzero()[:, 0].to(x0_BL.device)
    masked_BL = masked_BL.to(x0_BL.device)
    z_BL = torch.where(masked_BL, mask_of(states_of(student)), x0_BL)
    h_ND = features_of(student, z_BL, x0_BL).flatten(0, 1)[chosen]
    nll_N = _nll_at(student, h_ND, x0_BL.flatten()[chosen])
    nll_BL = nll_N.new_zeros(x0_BL.numel()).index_put((chosen,), nll_N).view_as(x0_BL)
    return nll_BL.sum(1) / masked_BL.sum(1)


def process_views(
    process: Process, states: States, total: int, length: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """(noise, time) of T texts for `process_elbo_of`, times stratified over the texts."""
    t_T = stratified(total, generator)
    u_TL = torch.rand(total, length, generator=generator, dtype=torch.float64)
    return process.noise(u_TL, states, generator), t_T


def process_elbo_of(student: Denoiser, process: Process, x0_BL: Tensor, noise_BL: Tensor, t_B: Tensor) -> Tensor:
    """The ELBO term of each sequence at its time under any process, in nats per token, with the prior's, so as a
    bound."""
    states = states_of(student)
    view = process.view(x0_BL, noise_BL, t_B, states)
    nats_B = MDLM(process).nats_of(student, x0_BL, view, t_B).sum(1) / x0_BL.shape[1]
    prior = getattr(process, "prior_nats", None)
    return nats_B + prior(states) if prior else nats_B


def nll_of(student: Denoiser, x0_BL: Tensor) -> Tensor:
    """The exact -log p(x_2..L | x_1) of each sequence under a causal model, per scored token."""
    h_ND = student.features(x0_BL)[:, :-1].flatten(0, 1)  # of whole texts, as in training: one shape to compile
    nll_N = _nll_at(student, h_ND, x0_BL[:, 1:].flatten())
    return nll_N.view(len(x0_BL), -1).mean(1)


def _nll_at(student: Denoiser, h_ND: Tensor, token_N: Tensor) -> Tensor:
    """-log p of tokens from features, the mask ruled out; by pieces, or it would need more memory than training."""
    sizes = even_sizes(len(token_N), piece_size(student, h_ND.device))
    return head_loss(student, h_ND, sizes, lambda logits_CW, part: cross_entropy(logits_CW, token_N[part]))
