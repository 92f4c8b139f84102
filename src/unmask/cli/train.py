"""`unmask train`: train a teacher, or a causal judge, on prepared text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from unmask.training.engine import Trainer

if TYPE_CHECKING:
    from unmask.data.shards import ShardSet
    from unmask.models.dit.network import DiT
    from unmask.processes.schedule import Schedule


def train(
    *,
    data: list[Path],
    weights: list[float] | None = None,
    preset: Literal["tiny", "mini", "pocket", "study", "small", "medium", "large"] | None = None,
    length: int | None = None,
    dropout: float | None = None,
    objective: Literal["mdlm", "ar"] = "mdlm",
    schedule: Literal["log_linear", "cosine"] | None = None,
    plan: str = "iid",
    plan_steps: int | None = None,
    wrap: bool = False,
    from_: str | None = None,
    trainer: Trainer,
) -> None:
    """Train a model on corpora made by `unmask prepare`. Run the same command again to continue a run that stopped.

    Many processes: `torchrun --nproc_per_node 8 -m unmask train ...`, nothing else changes. See docs/training.md.

    Args:
        data: folders made by `unmask prepare`
        weights: how often each of them is read relative to the others (default: every block equally often)
        preset: the model's shape (default: pocket)
        length: tokens in a sequence (default: the model's)
        dropout: share of features dropped in training (default: the model's)
        objective: mdlm is the ELBO of masked diffusion, ar is next-token prediction with a causal model
        schedule: how the share of masked tokens grows with time (default: that of --from, else log_linear)
        plan: where u comes from, that is how masked positions go together: iid, permutation, golden, van_der_corput,
            dilated or stride
        plan_steps: train on exactly the views that sampling meets in so many steps on this plan with the grid rank
            (default: views of all times, the usual ELBO)
        wrap: sequences as MDLM makes them: BOS, length - 2 tokens, EOS
        from_: start from the weights of this checkpoint instead of random ones
    """
    from unmask.core.errors import UserError
    from unmask.core.ranks import is_first
    from unmask.data.loader import Loader
    from unmask.data.shards import ShardSet
    from unmask.objectives.ar import AR
    from unmask.objectives.elbo import MDLM
    from unmask.processes import Masked
    from unmask.processes.schedule import schedule_named
    from unmask.training.evaluate import with_stderr

    if trainer.out is None:
        raise UserError("--out must be given: the folder that the run lives in")
    if objective == "ar" and (schedule, plan, plan_steps) != (None, "iid", None):
        raise UserError(
            "--schedule, --plan and --plan_steps are about masks, and --objective ar has none: leave them out"
        )
    corpora = [ShardSet.open(folder) for folder in data]
    if from_ is not None:
        if preset is not None or dropout is not None:
            raise UserError("--from brings the model with it: leave out --preset and --dropout (a recipe may set them)")
        model, noise, start = _started(from_, corpora, objective)
    else:
        noise, start = schedule_named("log_linear"), None
        shape = {"length": length, "dropout": dropout, "causal": objective == "ar"}
        model = _fresh(preset or "pocket", corpora, trainer.seed, **shape)
    length = model.length if length is None else length
    loader = Loader(corpora, length, weights=weights, seed=trainer.seed, wrap=wrap)
    if schedule is not None:
        noise = schedule_named(schedule)
    loss = AR() if objective == "ar" else MDLM(Masked(noise), plan, plan_steps)
    checkpoint = trainer.fit(model, loss, loader, facts={"from": start})
    if is_first():
        score = checkpoint.provenance["score"]
        number = with_stderr(score["nats"], score["stderr"]) if score else ""
        held_out = f", {number} nats/token on held-out text" if score else ""
        print(f"{trainer.out}: {checkpoint.provenance['step']} steps{held_out}")


def _fresh(preset: str, corpora: list[ShardSet], seed: int, **shape: Any) -> DiT:
    """A random model that fits the corpora's tokenizer; the same seed gives the same weights."""
    import torch

    from unmask.core.streams import seed_of
    from unmask.models.dit.network import DiT

    chosen = {name: value for name, value in shape.items() if value is not None}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(seed, "weights"))
        return DiT.preset(preset, vocab_size=corpora[0].tokenizer().size + 1, **chosen)


def _started(source: str, corpora: list[ShardSet], objective: str) -> tuple[DiT, Schedule, dict[str, Any]]:
    """The model and schedule of a checkpoint, if objective and corpora suit it, and what to remember of it."""
    from unmask.checkpoint.identity import weights_hash
    from unmask.checkpoint.io import load
    from unmask.core.errors import UserError
    from unmask.data.shards import check_tokenizer
    from unmask.models.denoiser import is_causal
    from unmask.models.family import as_student

    checkpoint = load(source)
    causal = is_causal(checkpoint.model)
    if causal and objective != "ar":
        raise UserError(f"{source} is a causal model: add --objective ar, or start from a masked one")
    if objective == "ar" and not causal:
        raise UserError(f"{source} is a masked model: leave out --objective ar, or start from a causal one")
    for corpus in corpora:
        if checkpoint.tokenizer is not None:
            check_tokenizer(corpus, checkpoint.tokenizer, owner=source)
    about = {"source": source, "weights": weights_hash(checkpoint.model), "step": checkpoint.provenance.get("step")}
    return as_student(checkpoint.model), checkpoint.process.schedule, about
