"""What somebody else might add: a process, two networks, a step law, a plan and a metric. Nothing of it is in src.

`unmask ... --plugin tests/extending/plugin.py`, an entry point, or an import makes all of it known.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

import unmask
from unmask.inference.categorical import join, log_prob, pick
from unmask.inference.step_law import Step
from unmask.models.family import Family
from unmask.processes import Pair, States, View
from unmask.processes.schedule import LogLinear, Schedule

# --- a process: every token may become any other ------------------------------------------------------------------


@unmask.register_process
@dataclass(frozen=True)
class AnyToken:
    """Uniform-state diffusion over a small alphabet, trained on its bound in `bins` steps. There is no mask.

    q(z_t = v | x_0) = gamma_t [v = x_0] + (1 - gamma_t) / V.
    """

    schedule: Schedule = field(default_factory=LogLinear)
    bins: int = 16

    name: ClassVar[str] = "any_token"
    by_plan: ClassVar[bool] = False

    def condition(self, t: Tensor) -> Tensor:
        return t.float()

    def prior(self, length: int, states: States, generator: torch.Generator) -> Tensor:
        return torch.randint(states.size, (length,), generator=generator)

    def noise(self, u_BL: Tensor, states: States, generator: torch.Generator) -> Tensor:
        """u says when a token is lost, and a second uniform what it becomes."""
        return torch.stack([u_BL, torch.rand(u_BL.shape, generator=generator, dtype=u_BL.dtype)], dim=-1)

    def corrupt(self, x0_BL: Tensor, noise_BL: Tensor, t_B: Tensor, states: States) -> Tensor:
        kept_BL = noise_BL[..., 0] < self.schedule.gamma(t_B)[:, None]
        other_BL = (noise_BL[..., 1] * states.size).long()
        return torch.where(kept_BL.to(x0_BL.device), x0_BL, other_BL.to(x0_BL.device))

    def couple(self, x0_BL: Tensor, noise_BL: Tensor, s_B: Tensor, t_B: Tensor, states: States) -> Pair:
        """Every position is distilled: z_t never says which tokens are the text's own."""
        z_t, z_s = (self.corrupt(x0_BL, noise_BL, time, states) for time in (t_B, s_B))
        everywhere = torch.ones(x0_BL.shape, dtype=torch.bool)
        return Pair(z_t, z_s, everywhere, ~everywhere, s_B, t_B)

    def view(self, x0_BL: Tensor, noise_BL: Tensor, t_B: Tensor, states: States) -> View:
        """bins · KL(q(z_s | z_t, x_0) || q(z_s | z_t)) at s = t - 1/bins, or 0 where t is in the first bin."""

        def loss(logits_CV: Tensor, x0_C: Tensor, z_C: Tensor, t_C: Tensor) -> Tensor:
            s_C = (t_C - 1 / self.bins).clamp(min=0)
            sure_CV = torch.nn.functional.one_hot(x0_C, states.size).double().log()
            exact_CV = self.posterior(sure_CV, z_C, s_C, t_C, states)
            law_CV = self.posterior(logits_CV[:, : states.size].double().log_softmax(-1), z_C, s_C, t_C, states)
            return torch.where(exact_CV > -40, exact_CV.exp() * (exact_CV - law_CV), 0.0).sum(-1)

        weight_B = torch.full_like(t_B, self.bins)
        scored_BL = torch.ones(x0_BL.shape, dtype=torch.bool)
        return View(self.corrupt(x0_BL, noise_BL, t_B, states), scored_BL, weight_B, loss)

    def posterior(self, log_p_MV: Tensor, z_M: Tensor, s: Tensor, t: Tensor, states: States) -> Tensor:
        """Bayes' rule, summed over x_0: (r [v = z] + (1 - r)/V) (a w(v) + (1 - a)/V sum w), w = p / q(z_t | x_0)."""
        V = states.size
        a, b = (self.schedule.gamma(time).to(log_p_MV).expand(len(z_M))[:, None] for time in (s, t))
        at_z_MV = torch.nn.functional.one_hot(z_M, V).to(log_p_MV)
        w_MV = log_p_MV.exp() / (b * at_z_MV + (1 - b) / V)
        back_MV = (b / a) * at_z_MV + (1 - b / a) / V
        law_MV = back_MV * (a * w_MV + (1 - a) / V * w_MV.sum(-1, keepdim=True))
        return (law_MV / law_MV.sum(-1, keepdim=True)).clamp(min=1e-30).log()


# --- two networks that are no DiT; their mask is one of the tokenizer's own tokens, in the middle of the vocabulary --


@dataclass(frozen=True)
class SmallConfig:
    vocab_size: int = 8
    length: int = 16
    hidden: int = 16
    mask: int | None = None  # None: no mask, for a process that needs none


class Small(nn.Module):
    """What both networks say of themselves."""

    def __init__(self, config: SmallConfig) -> None:
        super().__init__()
        self.config = config
        self.vocab_size, self.length, self.mask_id = config.vocab_size, config.length, config.mask
        self.table = nn.Embedding(config.vocab_size, config.hidden)
        self.head = nn.Linear(config.hidden, config.vocab_size)

    def logits(self, h: Tensor) -> Tensor:
        return self.head(h)


class GRUNet(Small):
    """Two layers, both directions; it takes the time as one more feature, where there is one."""

    def __init__(self, config: SmallConfig) -> None:
        super().__init__(config)
        self.body = nn.GRU(config.hidden + 1, config.hidden // 2, 2, batch_first=True, bidirectional=True)

    def features(self, z: Tensor, time: Tensor | None = None) -> Tensor:
        h_BLD = self.table(z)
        time_B = h_BLD.new_zeros(len(z)) if time is None else time.to(h_BLD)
        return self.body(torch.cat([h_BLD, time_B[:, None, None].expand(*z.shape, 1)], dim=-1))[0]


class BertNet(Small):
    """A small BERT of the transformers library."""

    def __init__(self, config: SmallConfig) -> None:
        super().__init__(config)
        from transformers import BertConfig, BertModel

        shape = BertConfig(
            vocab_size=config.vocab_size, hidden_size=config.hidden, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=32, max_position_embeddings=config.length, attn_implementation="eager",
        )  # fmt: skip
        self.body = BertModel(shape, add_pooling_layer=False)

    def features(self, z: Tensor) -> Tensor:
        return self.body(z).last_hidden_state


class _SmallFamily(Family):
    config = SmallConfig
    presets = {"small": SmallConfig()}  # noqa: RUF012

    def for_tokens(self, config: SmallConfig, tokens: int) -> SmallConfig:
        return SmallConfig(tokens, config.length, config.hidden, config.mask)


@unmask.register_family
class GRUFamily(_SmallFamily):
    name, network = "gru", GRUNet


@unmask.register_family
class BertFamily(_SmallFamily):
    name, network = "bert", BertNet

    def settle(self, model: nn.Module) -> None:
        """BERT keeps the numbers of its positions in buffers that no checkpoint holds."""
        length = model.config.length
        model.body.embeddings.position_ids = torch.arange(length)[None]
        model.body.embeddings.token_type_ids = torch.zeros(1, length, dtype=torch.int64)


# --- a step law that is not factorised ------------------------------------------------------------------------------


@unmask.register_step_law
@dataclass(frozen=True)
class Sticky:
    """A Markov chain over the positions that a step draws, from left to right: each token depends on the one before.

    q(x_i | x_j) = p_i(x_i) exp(stay [x_i = x_j]) / Z, j the position of the step before i in the same text.
    """

    stay: float = 1.0
    name: ClassVar[str] = "sticky"

    def draw(self, step: Step, uniform_M: Tensor):
        drawn, token_M = [], torch.full((len(uniform_M),), -1)
        for place, before in self._in_order(step):
            drawn.append(pick(self._law(step, place, token_M, before), uniform_M[place : place + 1]))
            token_M[place] = drawn[-1].token_M
        return join(drawn)

    def log_prob(self, step: Step, token_M: Tensor) -> Tensor:
        parts = [
            log_prob(self._law(step, place, token_M, before), token_M[place : place + 1])
            for place, before in self._in_order(step)
        ]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    def _in_order(self, step: Step) -> list[tuple[int, int | None]]:
        """(a position of the step, the one before it in the same text), in the order in which they are given."""
        rows = step.row_M.tolist()
        return [(i, i - 1 if i and rows[i - 1] == rows[i] else None) for i in range(len(rows))]

    def _law(self, step: Step, place: int, token_M: Tensor, before: int | None) -> Tensor:
        shaped_1V = step.shaped(torch.tensor([place])).clone()
        if before is not None:
            shaped_1V[0, int(token_M[before])] += self.stay
        return shaped_1V


# --- a plan and a metric --------------------------------------------------------------------------------------------


def silver(B: int, L: int, generator: torch.Generator, steps: int | None) -> Tensor:
    """A rotation by the silver ratio."""
    shift_B1 = torch.rand(B, 1, generator=generator, dtype=torch.float64)
    return (shift_B1 + torch.arange(L, dtype=torch.float64) * (2**0.5 - 1)).frac()


unmask.register_plan("silver", silver)


# --- a metric -------------------------------------------------------------------------------------------------------


@unmask.register_metric("vowels", unit="share")
def vowels(texts):
    return [sum(letter in "aeiou" for letter in text) / len(text) for text in texts.strings]
