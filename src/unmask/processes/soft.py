"""The Gaussian latent w = alpha~ onehot(x) + sigma~ eps before its argmax is taken: softmax(w / tau), Duo's soft input.

At a low tau all but the largest few coordinates weigh nothing. `largest` draws these few and their names exactly, in a
few numbers a position: the K - 1 rivals' largest values fall like

    V_1 = U_1^(1/n), V_2 = V_1 U_2^(1/(n-1)), ..., n = K - 1,   eps = Phi^-1(V)

(the order statistics of n uniforms), their names are drawn without replacement, and the own token's w stands beside
them: it may be the largest, lie among them, or below them all.

Shapes: B sequences, L positions, k largest, r = min(k, K - 1) rivals, K states.
"""

from __future__ import annotations

import torch
from torch import Tensor


def signal_and_noise(noise_B: Tensor) -> tuple[Tensor, Tensor]:
    """alpha~ and sigma~ at noise n = log(sigma~^2 / alpha~^2), alpha~^2 + sigma~^2 = 1."""
    return torch.sigmoid(-noise_B).sqrt(), torch.sigmoid(noise_B).sqrt()


def uniforms_for(k: int, K: int) -> int:
    """How many uniform numbers `largest` takes a position."""
    return 1 + 2 * min(k, K - 1)


def largest(x0_BL: Tensor, noise_B: Tensor, uniform_BLn: Tensor, k: int, K: int) -> tuple[Tensor, Tensor]:
    """The k largest coordinates of w in falling order, float64, and which states they are: (B, L, k) twice."""
    r, (alpha_B, sigma_B) = min(k, K - 1), signal_and_noise(noise_B.double())
    own_BL1, size_BLr, name_BLr = uniform_BLn.double().clamp(min=2.0**-60).split([1, r, r], dim=-1)
    left_r = torch.arange(K - 1, K - 1 - r, -1, device=x0_BL.device)
    log_v_BLr = (size_BLr.log() / left_r).cumsum(-1)
    rival_BLr = -torch.special.ndtri(-log_v_BLr.expm1())  # from the upper tail: V is near 1
    own_BL1 = alpha_B[:, None, None] + sigma_B[:, None, None] * torch.special.ndtri(own_BL1)
    w = torch.cat([own_BL1, sigma_B[:, None, None] * rival_BLr], dim=-1)
    ids = torch.cat([x0_BL[..., None], _rivals(x0_BL, name_BLr, left_r)], dim=-1)
    found = w.topk(min(k, K), dim=-1)
    return found.values, ids.gather(-1, found.indices)


def _rivals(x0_BL: Tensor, uniform_BLr: Tensor, left_r: Tensor) -> Tensor:
    """Different states, none of them x_0, each even among those that are left."""
    number_BLr = torch.minimum((uniform_BLr * left_r).long(), left_r - 1)
    taken: list[Tensor] = []
    for number_BL in number_BLr.unbind(-1):  # the number counts those that are left: step over those that are not
        for before_BL in torch.stack(taken, -1).sort(-1).values.unbind(-1) if taken else ():
            number_BL = number_BL + (number_BL >= before_BL)
        taken.append(number_BL)
    return torch.stack([number_BL + (number_BL >= x0_BL) for number_BL in taken], dim=-1)


def law_of_all(x0_L: Tensor, noise: Tensor, eps_LK: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """softmax(w / tau) over all states of one text, (L, K), and argmax w; it takes the place of eps."""
    alpha, sigma = signal_and_noise(noise)
    w_LK = eps_LK.mul_(sigma)
    w_LK.scatter_add_(-1, x0_L[:, None], alpha.expand(x0_L.shape)[:, None].to(w_LK))
    return (w_LK / tau).softmax(-1), w_LK.argmax(-1)
