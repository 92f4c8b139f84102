"""`unmask lm-eval`: EleutherAI's evaluation harness, run on a diffusion model.

What the harness asks for twice, it gets twice the same: noise is named by the request, not by its place in a batch.
A likelihood is a bound estimated from masked views (`likelihoods.json` has its standard error).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from unmask.checkpoint.io import Checkpoint, load
from unmask.core.errors import UserError
from unmask.core.files import write_json, write_text
from unmask.core.verbs import verb
from unmask.models.denoiser import check_denoiser


@verb
def lm_eval(
    model: Checkpoint | str | Path,
    tasks: Sequence[str],
    *,
    include: Path | None = None,
    fewshot: int | None = None,
    limit: int | None = None,
    chat: bool = False,
    max_new: int = 256,
    steps: int | None = None,
    plan: str = "confidence",
    block_size: int | None = None,
    threshold: float | None = None,
    temperature: float = 0.0,
    cache: Literal["none", "exact", "prefix", "dual"] | None = None,
    views: int = 128,
    seed: int = 0,
    batch: int | None = None,
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto",
    precision: Literal["auto", "bf16", "fp32"] = "auto",
    out: Path | None = None,
) -> dict[str, Any]:
    """Run tasks of lm_eval (EleutherAI's harness) on a model. Needs: pip install 'unmask[lm-eval]'.

    Args:
        model: a bundled model's name, a folder or a hub name; an adapter too
        tasks: names of tasks, or YAML files of your own
        include: a folder of task files to look in first
        fewshot: examples before each question (default: the task's)
        limit: only so many questions of each task
        chat: spell questions in the model's chat format
        out: a folder for results.json, samples.jsonl and likelihoods.json
    Answers:
        max_new: tokens of an answer at most, where the task does not say
        steps: steps of the sampler (default: one a token)
        plan: which positions a step reveals
        block_size: go from left to right in blocks of so many positions
        threshold: the probability at which a position is sure enough to be revealed
        temperature: 0 takes the likeliest token; a task that names its own has it
        cache: keep keys and values from step to step
    Likelihoods:
        views: masked views of each text, from which its bound is estimated
    Machine:
        seed: names the noise, together with the request
        batch: texts at a time; changes the speed, not the results
        device: where to run
        precision: of the network; auto is bf16 on CUDA, else fp32
    """
    try:
        from lm_eval import simple_evaluate
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise UserError("the harness is not installed: pip install 'unmask[lm-eval]'") from error
    from unmask.studies.harness_model import DiffusionLM

    if min(views, max_new, 1 if steps is None else steps) < 1:
        raise UserError("views, max_new and steps must be at least 1")
    checkpoint = model if isinstance(model, Checkpoint) else load(model)
    check_denoiser(checkpoint.model)
    how = {"plan": plan, "block_size": block_size, "threshold": threshold, "cache": cache, "batch": batch,
           "device": device, "precision": precision}  # fmt: skip
    reader = DiffusionLM(checkpoint, how, max_new=max_new, steps=steps, temperature=temperature, views=views, seed=seed)
    try:
        manager = TaskManager(include_path=None if include is None else str(include))
        evaluated = simple_evaluate(
            reader, tasks=list(tasks), num_fewshot=fewshot, limit=limit, task_manager=manager, bootstrap_iters=1000,
            apply_chat_template=chat, random_seed=seed, numpy_random_seed=seed, torch_random_seed=seed,
            fewshot_random_seed=seed,
        )  # fmt: skip
    except (KeyError, ValueError, OSError) as error:
        raise UserError(f"lm_eval could not run {', '.join(tasks)} ({type(error).__name__}: {error}): name its tasks, "
                        "or a YAML file; most tasks are downloaded when they are first run") from error  # fmt: skip
    assert evaluated is not None
    result = {"results": evaluated["results"], "likelihoods": reader.summary(), "settings": reader.settings()}
    if out is not None:
        dumps = partial(json.dumps, ensure_ascii=False, default=str)  # the harness's own results hold functions
        rows = [{"task": task, **row} for task, rows in evaluated["samples"].items() for row in rows]
        write_text(out / "results.json", dumps(result, indent=2) + "\n")
        write_json(out / "likelihoods.json", reader.bounds)
        write_text(out / "samples.jsonl", "".join(f"{dumps(row)}\n" for row in rows))
    return result
