"""Of every objective: ranks and micro-batches share one gradient. And the next-token loss against direct sums."""

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from unmask.checkpoint.io import Checkpoint
from unmask.core.streams import stream
from unmask.objectives.ar import AR
from unmask.objectives.distil.cd4lm import CD4LM
from unmask.objectives.distil.dcd import DCD
from unmask.objectives.distil.mcd import MCD
from unmask.objectives.distil.sdtt import SDTT
from unmask.objectives.duo import Duo, SoftStart
from unmask.objectives.elbo import MDLM
from unmask.processes import Masked, Uniform
from unmask.processes.schedule import Cosine

OBJECTIVES = [
    MDLM(), MDLM(Masked(Cosine()), "golden"), MDLM(plan="van_der_corput"), MDLM(plan="golden", plan_steps=3),
    MDLM(plan="stride", plan_steps=2), MDLM(plan_steps=20), AR(), partial(CD4LM), partial(SDTT, delta=0.5),
    *(partial(MCD, delta=0.3, reduction=name) for name in ("token_mean", "sum", "term_means")),
    partial(MCD, delta=0.3, plan="golden"), partial(DCD, delta=0.25),
    *(Duo(soft=SoftStart(soft_steps=10, soft_top=top)) for top in (4, 0)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("objective", "prompts"),
    [*((one, None) for one in OBJECTIVES), (MDLM(), torch.tensor([3, 0, 7, 1, 2, 5]))],
    ids=str,
)
def test_parts_of_a_batch_give_what_the_whole_gives(random_dit, text, direct, objective, prompts):
    """They draw the noise of the whole global batch and take their own rows."""
    kind = objective.func if isinstance(objective, partial) else type(objective)
    shape = {AR: {"causal": True}, DCD: {"vocab_size": 11, "time": True}, Duo: {"vocab_size": 11, "time": True}}
    student, teacher = (random_dit(seed, **shape.get(kind, {})) for seed in (1, 2))
    if isinstance(objective, partial):
        objective = objective(Checkpoint(teacher, Uniform()) if kind is DCD else teacher)
    batch = replace(text, prompts_T=prompts)
    parts = [batch, *(batch.part(*ends) for ends in ((0, 1), (1, 4), (4, 6)))]
    whole, *split = (objective(student, part, step=3, generator=stream(2)) for part in parts)
    for name in ("loss_BL", "weight_BL", "region_BL"):
        together = torch.cat([getattr(part, name) for part in split])
        assert torch.allclose(together, getattr(whole, name), rtol=1e-6, atol=1e-9), name
    of_whole, *of_parts = (direct(student, (one.loss_BL * one.weight_BL).sum()).gradient for one in (whole, *split))
    assert float((sum(of_parts) - of_whole).norm() / of_whole.norm()) < 1e-6


def test_ar_scores_every_token_but_the_first_from_those_before(random_dit, text):
    model = random_dit(1, causal=True)
    output = AR()(model, text, step=0, generator=stream(0))
    for b, row in enumerate(text.tokens_BL):
        for i in range(1, len(row)):
            logits_V = model(row[None, :i])[0, -1, :11]
            assert torch.allclose(output.loss_BL[b, i], F.cross_entropy(logits_V, row[i]), atol=1e-12)
    assert bool((output.weight_BL[:, 0] == 0).all() and (output.weight_BL[:, 1:] == 1).all())
