"""The N-step bound of a process that draws every position at every step.

-log p(x) <= KL(q(z_1 | x) || prior) + sum over steps from t to s of E KL(q(z_s | z_t, x) || p(z_s | z_t))

The steps are the sampler's own, on its times and with its law (p of x_0 at a temperature, the posterior or the Psi law:
with x_0 known that law is q). A KL is a sum over positions, and the last one, where s = 0, is the reconstruction
-log p(x | z_t). Each text has one noise for all its times, by its number: an unbiased estimate of each sum. The whole
is the discrete bound of DDPM and D3PM, and of N steps, not of continuous time.

Shapes: T texts, L positions, W views (a text at a step), R views in a forward, N their positions, C of them in a piece,
V states.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.core.devices import to_device
from unmask.core.streams import stream, uniforms
from unmask.inference.categorical import Law
from unmask.inference.ready import Ready
from unmask.inference.step_law import Step
from unmask.plans.every import EveryPosition
from unmask.plans.grids import Grid
from unmask.processes.process import Process, condition_at


@torch.inference_mode()
def path_bound(
    ready: Ready, x_TL: Tensor, plan: EveryPosition, grid: Grid, process: Process, *, law: Law | None = None,
    seed: int = 0, indices: Sequence[int] | None = None, rows: int = 8,
) -> Tensor:  # fmt: skip
    """Nats of each text, (T,) float64, without the prior's term, which is the same for all (`prior_nats`)."""
    T, L = x_TL.shape
    law, states = law or Law(), ready.states
    generators = [stream(seed, "path", i) for i in (range(T) if indices is None else indices)]
    u_TL = uniforms(generators, L)
    noise_TL = torch.cat([process.noise(u_TL[i : i + 1], states, g) for i, g in enumerate(generators)])
    edges_K2 = torch.tensor(list(pairwise(plan.times(grid))), dtype=torch.float64)
    nats_T = torch.zeros(T, dtype=torch.float64)
    for view_R in torch.arange(T * len(edges_K2)).split(rows):
        text_R = view_R // len(edges_K2)
        t_R, s_R = edges_K2[view_R % len(edges_K2)].T
        x_RL = x_TL[text_R]
        z_RL = to_device(process.corrupt(x_RL, noise_TL[text_R], t_R, states), ready.device)
        h_RLD = ready.features(z_RL, condition_at(process, t_R, ready.device))
        at_N = torch.arange(z_RL.numel(), device=ready.device)
        step = Step(ready, h_RLD.flatten(0, 1), at_N, at_N, L, law)
        nats_N = torch.cat([_kl(step, part, plan, process, x_RL, z_RL, s_R, t_R) for part in step.parts()])
        nats_T.index_add_(0, text_R, nats_N.view(len(text_R), L).sum(1))
    return nats_T


def _kl(
    step: Step, part: Tensor, plan: EveryPosition, process: Process, x_RL: Tensor, z_RL: Tensor, s_R: Tensor,
    t_R: Tensor,
) -> Tensor:  # fmt: skip
    """KL(q(z_s | z_t, x) || p(z_s | z_t)) of some positions, on the CPU."""
    states, place_C = step.ready.states, part.cpu()
    shaped_CV = step.shaped(part)
    row_C, device = place_C // x_RL.shape[1], shaped_CV.device
    x_C, z_C = x_RL.flatten()[place_C].to(device), z_RL.flatten()[part].to(device)
    s_C, t_C = (to_device(time_R[row_C], device) for time_R in (s_R, t_R))
    q_CV = F.one_hot(x_C, states.size).to(shaped_CV)
    log_q_CV, log_p_CV = (
        plan.law(process, law_CV, z_C, s_C, t_C, states)
        for law_CV in (q_CV.log(), shaped_CV.log_softmax(-1)[:, : states.size])
    )
    return torch.where(log_q_CV > -torch.inf, log_q_CV.exp() * (log_q_CV - log_p_CV), 0.0).sum(-1).cpu().double()
