"""The verb `sample`, in Python and on the command line: names become the nouns that the loop takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from torch import Tensor

from unmask.checkpoint.io import Checkpoint, load
from unmask.checkpoint.step_laws import chosen_step_law
from unmask.core.errors import UserError
from unmask.core.ranks import joined
from unmask.core.verbs import verb
from unmask.inference.cache import Caching, block_of
from unmask.inference.categorical import Law
from unmask.inference.ready import make_ready
from unmask.inference.step_law import StepLaw
from unmask.models.denoiser import check_denoiser
from unmask.plans.every import EveryPosition, any_plan, check_times, plan_of
from unmask.plans.grids import Grid, make_grid
from unmask.plans.plan import USUAL, Blocks, Confidence, LeftToRight, Locked, Plan, choose_grid
from unmask.plans.published import LLaDAOrder
from unmask.plans.remask import Remask
from unmask.processes import Process
from unmask.sampling.drafts import LEGACY, Callback, How
from unmask.sampling.infill import templates
from unmask.sampling.sample import Finished, Row, Run, collect
from unmask.sampling.samples import Samples

INSIDE = (Locked, LeftToRight, Confidence)  # plans that go inside blocks


@verb
def sample(
    model: Checkpoint | str | Path = "pocket",
    n: int | None = None,
    steps: int | None = None,
    *,
    prompt: str | Sequence[str] | None = None,
    chat: str | Sequence[str] | None = None,
    suffix: str | Sequence[str] | None = None,
    infill: str | Sequence[str] | Tensor | None = None,
    length: int | Sequence[int] | None = None,
    max_new: int | None = None,
    seed: int = 0,
    numbers: Sequence[int] | None = None,
    plan: str | Plan | None = None,
    block_size: int | None = None,
    threshold: float | None = None,
    grid: str | Path | Sequence[float] | Grid | None = None,
    step_law: str | Path | StepLaw | None = None,
    remask: Literal["cap", "rescale", "confidence"] | Remask | None = None,
    eta: float | None = None,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int | None = None,
    guidance: float = 0.0,
    draw: Literal["float64", "fp32", "legacy_fp32"] = "float64",
    cache: Literal["none", "exact", "prefix", "dual"] | None = None,
    refresh: int | None = None,
    batch: int | None = None,
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto",
    device_map: str | None = None,
    precision: Literal["auto", "bf16", "fp32"] = "auto",
    compile: bool = False,
    callback: Callback | None = None,
    finished: Finished | None = None,
) -> Samples:
    """Write text, from nothing, from a prompt, or around words that stand:

      unmask sample "Once upon a ____ there ____"

    Many processes: `torchrun --nproc_per_node 8 -m -- unmask sample ...` gives the same samples (without -- torchrun
    takes --n for its own).

    Args:
        model: a bundled model's name, a folder, a file or a hub name
        n: how many samples (default: one for each prompt)
        steps: steps of the sampler (default: 32)
        prompt: text to begin with, one or one for each sample
        chat: a message to answer, one or one for each sample, in the model's chat format; the text is the answer
        suffix: text to end with, one or one for each sample
        infill: text with blanks to fill: a blank is three underscores or more, one a token
        length: tokens in a sample, one value or one for each sample (default: the model's, at most 1024)
        max_new: write at most so many tokens after the prompt or the chat (default for chat: 128); the text ends where
            the model ends it, and the record keeps all tokens
        seed: names the noise: with the same seed, sample i is the same whatever n or batch
        numbers: which samples to write, such as 7 for the eighth alone (default: 0, 1, 2, ...)
    Plan:
        plan: which positions a step reveals: iid, permutation, golden, comb, rotation, van_der_corput, stride, dilated,
            left_to_right, confidence, entropy, entropy_bounded, or blocks (of 32 positions from left to right, golden
            inside each); llada, llada_random, dream, dream_entropy, dream_margin (these with :alg_temp=0.1, say) are
            the published samplers' own; default: comb. Of the process uniform, which draws every position at every
            step: ancestral (default), greedy_tail (one forward more, for the likeliest tokens), psi:share=0.02 (so much
            is noise again at each step)
        block_size: go from left to right in blocks of so many positions, the plan inside each (default: for sdar the
            model's own blocks, else none)
        threshold: with --plan confidence or blocks the probability, with entropy the nats, at which a position is
            sure enough to be revealed, with entropy_bounded the bound on a step's summed entropy (0.1); this sets the
            number of steps, and puts confidence inside blocks
        grid: how far each step goes: rank, uniform, cosine, mdlm, a list of times between 1 and 0, or the .json of
            `unmask fit-plan`, with --steps its best grid of that many steps (default: rank)
        step_law: the joint law of the tokens of one step: factorised, or the folder of a chain that was trained for
            this model (docs/chain.md); default: the checkpoint's, mostly factorised
        remask: let early mistakes be mended, by this rule of ReMDM; needs --plan iid and a grid of times
        eta: how much is masked again (default: the rule's usual value)
    Draw:
        temperature: below 1 the likelier tokens gain; 0 takes the likeliest
        top_p: draw from the fewest likeliest tokens that have this probability together
        top_k: draw from this many likeliest tokens
        guidance: above 0, follow the prompt more closely: what it changes in the logits counts this much more often
            (LLaDA's cfg_scale); a step then runs the network twice, with the prompt and without
        draw: precision of the draw; legacy_fp32 is the published algorithm with its bias, for --plan iid --grid mdlm
    Machine:
        cache: keep keys and values from step to step: exact where a network is block-causal (sdar, and its default);
            prefix or dual where it is not (llada, dream): approximate, and the faster the smaller the blocks
        refresh: with the cache prefix or dual, compute everything anew after so many steps in a block; 1 is exact
            (default: only where a block begins)
        batch: samples at a time (default: 8 on a CPU, on a GPU what fills it); changes the speed, not the samples
        device: where to run
        device_map: spread a large model: accelerate's auto, balanced or sequential, or which part goes where, as JSON
        precision: of the network; auto is bf16 on CUDA, else fp32
        compile: compile the network: pays for many samples on a GPU
    In Python:
        callback: called after every step with what stands (a StepView)
        finished: called with each batch of this process that is done, and the numbers of its samples
    """
    if device_map is not None and isinstance(model, Checkpoint):
        raise UserError("device_map is for a model that sample loads: give it to load")
    checkpoint = model if isinstance(model, Checkpoint) else load(model, device_map=device_map)
    check_denoiser(checkpoint.model)
    if remask is None and eta is not None:
        raise UserError("eta belongs to remask: say which rule, cap, rescale or confidence")
    if batch is not None and batch < 1:
        raise UserError(f"batch must be at least 1, not {batch}")
    law = Law(temperature, top_p, top_k, "fp32" if draw == LEGACY else draw)
    remask = Remask(remask, eta) if isinstance(remask, str) else remask
    blocks = None if remask is not None or draw == LEGACY else block_of(checkpoint.model)  # these go over whole texts
    chosen = chosen_plan(plan, block_size, threshold, blocks)
    chosen, made = plan_and_grid(checkpoint.process, chosen, grid, steps)
    checkpoint = replace(checkpoint, step_law=chosen_step_law(checkpoint, step_law))
    how = How(
        checkpoint, chosen, made, law, seed=seed, remask=remask, legacy=draw == LEGACY, callback=callback,
        spell="answer" if chat is not None else "to_end" if max_new is not None else "all",
        cache=_caching(cache, refresh, own=blocks is not None and not guidance), guidance=guidance,
    )  # fmt: skip
    how.check()
    n = how_many(n, prompt, chat, suffix, length, infill, numbers)
    with joined(device) as ranks:
        run = Run(how, make_ready(checkpoint.model, ranks.device, precision, compile))
        wanted = templates(
            n, longest=checkpoint.model.length, states=run.ready.states, tokenizer=checkpoint.tokenizer, length=length,
            prompt=prompt, suffix=suffix, infill=infill, chat=chat, max_new=max_new,
        )  # fmt: skip
        if guidance and not any(bool((template_L >= 0).any()) for template_L in wanted):
            raise UserError("guidance follows what is given, and nothing is: give a prompt, a chat or infill")

        def report(rows: list[Row]) -> None:
            if finished is not None:
                indices = [row.index for row in rows]
                finished(collect(rows, [wanted[i] for i in indices], run.ready.forwards, run), indices)

        if numbers is not None and len(numbers) != n:
            raise UserError(f"{len(numbers)} numbers for {n} samples: give one for each")
        rows = run.all(wanted, batch, ranks, report, numbers)
        forwards = sum(ranks.gather(run.ready.forwards))
    samples = collect(rows, wanted, forwards, run)
    for warning in filter(None, [_padding_drawn(checkpoint, samples), how.warning()]):
        from unmask.core.progress import note  # its library is not for a first text to wait for

        note(warning, shown=ranks.first)
    return samples


def _padding_drawn(checkpoint: Checkpoint, samples: Samples) -> str | None:
    """A published vocabulary may have more states than the tokenizer has tokens; one that is drawn spells nothing."""
    size = checkpoint.model.vocab_size if checkpoint.tokenizer is None else checkpoint.tokenizer.size
    if not (count := int((samples.tokens[~samples.given] >= size).sum())):
        return None
    return (f"{count} drawn tokens spell nothing: the model has {checkpoint.model.vocab_size:,} states, its tokenizer "
            f"{size:,} tokens, and the rest is padding; a top_p below 1 draws fewer of them")  # fmt: skip


def plan_and_grid(
    process: Process, plan: Plan | None, grid: str | Path | Sequence[float] | Grid | None, steps: int | None
) -> tuple[Plan, Grid]:
    """A plan and its grid; of times, where every position is drawn at every step."""
    chosen = plan_of(process, plan, USUAL)
    if not isinstance(chosen, EveryPosition):
        return chosen, choose_grid(chosen, grid, steps)
    return chosen, check_times(chosen, make_grid(grid or "uniform", steps))


def _caching(cache: str | None, refresh: int | None, own: bool) -> Caching | None:
    """A cache by its name; a block-causal network has its own where nobody says."""
    if cache is None and own:
        cache = "exact"
    if cache in (None, "none"):
        if refresh is not None:
            raise UserError("refresh belongs to a cache: say which, prefix or dual")
        return None
    return Caching(cache, refresh)  # type: ignore[arg-type]


def how_many(n: int | None, *each: object) -> int:
    """The number of samples: one for each of several prompts where nobody says."""
    counts = [len(ids) for ids in each if isinstance(ids, Tensor) and ids.ndim > 1]  # ids of one text are no texts
    counts += [len(values) for values in each if isinstance(values, Sequence) and not isinstance(values, str)]
    return max(counts, default=1) if n is None else n


def chosen_plan(
    plan: str | Plan | None, block_size: int | None = None, threshold: float | None = None, own: int | None = None
) -> Plan | None:
    """A plan with its own settings, inside blocks; None: the process's own plan.

    `own` are the blocks of a block-causal network, in which a plan that is named goes if it can and has no others.
    """
    if plan is None and block_size is None and threshold is None and own is None:
        return None
    chosen = any_plan(plan or USUAL)
    if threshold is not None and isinstance(chosen, Blocks):
        chosen = replace(chosen, inner=replace(chosen.rule or Confidence(), threshold=threshold))
    elif threshold is not None and isinstance(chosen, Confidence):
        chosen = replace(chosen, threshold=threshold)
    elif threshold is not None:
        names = "confidence, entropy, entropy_bounded and blocks"
        raise UserError(f"threshold is for the plans {names}, not {chosen.name}")
    if block_size is None:
        named = plan is None or isinstance(plan, str)
        return Blocks(own, chosen) if own is not None and named and isinstance(chosen, INSIDE) else chosen
    if isinstance(chosen, (Blocks, LLaDAOrder)):
        return replace(chosen, size=block_size)
    if not isinstance(chosen, INSIDE):
        raise UserError(f"the plan {chosen.name} does not go inside blocks: leave out block_size")
    return Blocks(block_size, chosen)
