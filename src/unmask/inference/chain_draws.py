"""The draws of a chain: exact, and of all slots at once.

`fixed_point`: with the noise of every position and state fixed (Gumbel noise, computed from a key wherever it is
needed; a CPU keeps that of one piece of positions for all rounds), start from tokens drawn without the head, apply the
head to all of them at once, draw again with the same noise, and repeat until nothing changes. Slot i then holds what a
loop that draws slot after slot would have put there: by induction, slot i is right after i + 1 rounds at the latest.
What is known to be right is not computed again, and texts that are done leave. The last texts, whose rounds are small
and many, go by CUDA graphs where there are some (chain_round.py).

`by_acceptance` is speculative sampling: tokens drawn without the head are a draft. One pass of the head says the law q
of each slot given the draft before it, and from the left the draft's token is kept with probability min(1, q / p). The
first that is not is drawn from the rest, (q - p)+, and all slots behind it ask the head again.

Shapes: M positions drawn, R texts, G of them under way, S slots, N slots of interest, V states.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from unmask.inference import categorical, chain_round, gumbel
from unmask.inference.categorical import Draw
from unmask.inference.chain_step import Slotted
from unmask.inference.gumbel import keys_of, uniforms_of
from unmask.inference.step_law import Step

Noise = Literal["gumbel", "uniform", "acceptance"]


@dataclass(frozen=True)
class SlotValues:
    """What the slots hold so far; changed in place."""

    token_RS: Tensor
    log_q_RS: Tensor
    first_R: Tensor  # of each text the first slot that may still change
    rounds_R: Tensor

    def put(self, rows_G: Tensor, at_N: Tensor, drawn: Draw) -> Tensor:
        """New tokens at flat places of (G, S); which slots changed."""
        token_GS, log_q_GS = self.token_RS[rows_G], self.log_q_RS[rows_G]
        before_GS = token_GS.clone()
        token_GS.view(-1)[at_N] = drawn.token_M.to(token_GS.device)
        log_q_GS.view(-1)[at_N] = drawn.log_q_M.to(log_q_GS.device)
        self.token_RS[rows_G], self.log_q_RS[rows_G] = token_GS, log_q_GS
        self.rounds_R[rows_G] += 1
        return token_GS != before_GS

    def draw(self, slotted: Slotted, dtype: torch.dtype) -> Draw:
        token_M, log_q_M = slotted.in_order(self.token_RS), slotted.in_order(self.log_q_RS)
        return Draw(token_M, log_q_M, dtype, self.rounds_R)


def _first_draft(slotted: Slotted, drawn: Draw) -> SlotValues:
    which_RS = slotted.slots.which_RS
    token_RS, log_q_RS = drawn.token_M.to(which_RS.device)[which_RS], drawn.log_q_M[which_RS.to(drawn.log_q_M.device)]
    none_R = torch.zeros(len(which_RS), dtype=torch.int64, device=which_RS.device)
    return SlotValues(token_RS, log_q_RS, none_R, none_R.clone())


def fixed_point(slotted: Slotted, uniform_M: Tensor, noise: Noise = "gumbel") -> Draw:
    """All slots at once, again and again with the same noise, until nothing changes."""
    key_M = _noise_table(slotted.step, keys_of(uniform_M)) if noise == "gumbel" else uniform_M
    drawn = _draw_each(slotted.step, key_M, noise)
    found, real_RS = _first_draft(slotted, drawn), slotted.slots.real_RS
    count_R, slot_S = real_RS.sum(1), torch.arange(real_RS.shape[1], device=real_RS.device)
    going_G = torch.arange(len(count_R), device=real_RS.device)
    while len(going_G):
        if noise == "gumbel" and chain_round.fits(slotted, len(going_G)):
            chain_round.finish(slotted, key_M, found, going_G)
            break
        open_GS = real_RS[going_G] & (slot_S >= found.first_R[going_G, None])
        at_N, which_N, given = slotted.given(open_GS, found.token_RS[going_G], going_G)
        changed_GS = found.put(going_G, at_N, _draw_each(given, key_M[which_N.to(key_M.device)], noise))
        # a slot that follows no change was drawn given what is final: so is the first that changed
        found.first_R[going_G] = first_G = changed_GS.int().argmax(1) + 1
        going_G = going_G[changed_GS.any(1) & (first_G < count_R[going_G])]
    return found.draw(slotted, drawn.dtype)


def _noise_table(step: Step, key_M: Tensor) -> Tensor:
    """The noise itself, (M, V), where a step is one piece on a CPU, whose logarithms took a quarter of the time; else
    the keys, from which every round makes it anew."""
    if step.ready.device.type != "cpu" or step.ready.graphs or step.ready.compiled or len(key_M) > step.ready.chunk:
        return key_M
    return gumbel.gumbel(key_M, gumbel.offsets_of(step.logits(torch.arange(1)).shape[1]))


def _draw_each(step: Step, key_M: Tensor, noise: Noise) -> Draw:
    """Every position by itself, by its own noise."""
    run, drawn = step.ready.fused(gumbel.draw if noise == "gumbel" else categorical.draw), []
    for part in step.parts():
        if key_M.ndim == 2:
            drawn.append(gumbel.pick_with(step.own(part), key_M[part]))
            continue
        logits_CV, key_C = step.logits(part), key_M[part.to(key_M.device)]
        more = [gumbel.offsets_of(logits_CV.shape[1], step.ready.draw_device)] if noise == "gumbel" else []
        drawn.append(run(logits_CV, key_C, *more, step.ready.states.mask, step.law, step.heat(part)))
    return categorical.join(drawn)


def by_acceptance(slotted: Slotted, uniform_M: Tensor, noise: Noise = "acceptance") -> Draw:
    """A draft of all slots, kept from the left as far as chance says; then the next draft."""
    step, slots = slotted.step, slotted.slots
    draft_M, keep_M, rest_M = (uniforms_of(uniform_M, kind) for kind in range(3))
    drawn = _draw_each(step, draft_M, "uniform")
    found = _first_draft(slotted, replace(drawn, log_q_M=drawn.log_q_M.double()))
    slot_S = torch.arange(slots.real_RS.shape[1], device=slots.real_RS.device)
    going_G = torch.arange(len(slots.real_RS), device=slot_S.device)
    while len(going_G):
        open_GS = slots.real_RS[going_G] & (slot_S >= found.first_R[going_G, None])
        token_GS = found.token_RS[going_G]
        at_N, which_N, given = slotted.given(open_GS, token_GS, going_G)
        alone = step.chosen(which_N)
        log_q_N, log_p_N = (torch.cat([_log_prob_of(one, part, token_GS.flatten()[at_N]) for part in one.parts()])
                            for one in (given, alone))  # fmt: skip
        refused_N = keep_M[which_N.to(keep_M.device)].to(log_q_N).log() >= log_q_N - log_p_N
        refused_GS = torch.zeros_like(open_GS).masked_scatter(open_GS, refused_N.to(open_GS.device))
        found.put(going_G, at_N, Draw(token_GS.flatten()[at_N], log_q_N, drawn.dtype))
        first_G, some_G = refused_GS.int().argmax(1), refused_GS.any(1)
        # the first refused slot of each text is drawn from what q has more than p
        number_GS = (open_GS.flatten().cumsum(0) - 1).view_as(open_GS)
        here_F = number_GS[some_G].gather(1, first_G[some_G, None])[:, 0]
        token_F, log_q_F = _draw_remainder(given, alone, here_F, rest_M[which_N[here_F].to(rest_M.device)])
        rows_F, slot_F = going_G[some_G], first_G[some_G]
        found.token_RS[rows_F, slot_F] = token_F.to(slot_F.device)
        found.log_q_RS[rows_F, slot_F] = log_q_F.to(found.log_q_RS)
        found.first_R[rows_F] = slot_F + 1
        going_G = rows_F[slot_F + 1 < slots.real_RS.sum(1)[rows_F]]
    return found.draw(slotted, drawn.dtype)


def _log_prob_of(step: Step, part: Tensor, token_N: Tensor) -> Tensor:
    """The log-probability of tokens at some positions of a step."""
    log_p_CV = step.shaped(part).log_softmax(-1)
    return log_p_CV.gather(1, token_N[part].to(log_p_CV.device)[:, None])[:, 0]


def _draw_remainder(given: Step, alone: Step, here_F: Tensor, uniform_F: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens drawn in proportion to (q - p)+, and log q of each."""
    if not len(here_F):
        return here_F, uniform_F
    log_q_FV, log_p_FV = given.shaped(here_F).log_softmax(-1), alone.shaped(here_F).log_softmax(-1)
    rest_FV = (log_q_FV.exp() - log_p_FV.exp()).clamp(min=0)
    token_F = categorical.pick(rest_FV.log(), uniform_F).token_M
    return token_F, log_q_FV.gather(1, token_F[:, None])[:, 0]
