"""`unmask fit-grid`: the best step grid of a plan for a model, found on held-out text."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from unmask.checkpoint.io import Checkpoint
    from unmask.metrics.texts import Texts
    from unmask.studies.fit_grid import FittedGrid, Worth

_WIDTH = 64  # characters of a grid's picture


def fit_grid(
    *,
    model: str,
    data: list[str],
    out: Path,
    steps: int = 8,
    plan: str = "golden",
    texts: int = 64,
    split: Literal["validation", "test"] | None = None,
    wrap: bool = False,
    levels: int | None = None,
    seed: int = 0,
    batch: int | None = None,
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto",
    precision: Literal["auto", "bf16", "fp32"] = "auto",
    overwrite: bool = False,
    json: bool = False,
) -> None:
    """Find the best grid of N steps for a model and a locked plan, and say what it is worth.

    Fits on the first half of the texts by dynamic programming, compares with the grids `rank` and `cosine` on the
    second half, and writes a file for `unmask sample --grid FILE`.

    Args:
        model: a checkpoint's folder or name
        data: held-out text: folders made by `unmask prepare` with the model's tokenizer, a text file, or `sample`,
            which is what `unmask prepare sample` holds out
        out: the .json file to write
        steps: N, the number of steps
        plan: the plan that says which positions are revealed together
        texts: how many held-out texts to take, evenly spaced
        split: which held-out part of prepared folders or the sample (default: validation); a text file has none
        wrap: texts as MDLM makes them: BOS, length - 2 tokens, EOS
        levels: places where a step may end (default: 4 for each step, at least 32); the work grows with them
        seed: names the draws of the plan
        batch: texts in a forward
        device: where to run
        precision: of the network; auto is bf16 on CUDA, else fp32
        overwrite: replace a file that is already there
        json: print what was written instead of a table
    """
    from unmask.checkpoint.io import load
    from unmask.core.files import check_writable, write_json
    from unmask.core.progress import Progress
    from unmask.core.ranks import is_first
    from unmask.studies import fit_grid as library

    _check_target(out, overwrite)
    if is_first():  # who writes has to be able to
        check_writable(out)
    checkpoint = load(model)
    read = _held_out(checkpoint, model, data, texts, split, wrap)
    facts = {"data": data, "split": read.record["split"], "wrap": wrap}
    with Progress(shown=is_first(), transient=True) as bar:
        fitted = library.fit_grid(
            checkpoint, read.tokens_TL, steps, document_T=read.document_T, plan=plan, levels=levels, seed=seed,
            batch=batch, device=device, precision=precision, progress=partial(bar.show, "views"), facts=facts,
        )  # fmt: skip
    if not is_first():
        return
    write_json(out, fitted.to_json())
    if json:
        from json import dumps

        print(dumps(fitted.to_json(), indent=2))
    else:
        _print_table(fitted, out)


def _check_target(out: Path, overwrite: bool) -> None:
    from unmask.core.errors import UserError

    if out.suffix != ".json":
        raise UserError(f"--out is a .json file, which `unmask sample --grid` knows by its ending, not {out}")
    if out.exists() and not overwrite:
        raise UserError(f"{out} exists: name another file, or say --overwrite")


def _held_out(checkpoint: Checkpoint, name: str, data: list[str], texts: int, split: str | None, wrap: bool) -> Texts:
    """Blocks of the model's length, evenly spaced over the held-out text."""
    from unmask.core.errors import UserError
    from unmask.data.shards import INDEX
    from unmask.metrics.texts import held_out, prepared
    from unmask.studies.fit_grid import LEAST_TEXTS

    if texts < LEAST_TEXTS:
        raise UserError(f"--texts must be at least {LEAST_TEXTS}: half to fit on, half to measure on")
    if len(data) > 1 or (Path(data[0]) / INDEX).is_file():
        tokenizer, length = checkpoint.tokenizer, checkpoint.model.length
        read = prepared(data, tokenizer, length, count=texts, split=split, wrap=wrap, owner=name)
        size, most = read.tokenizer.size, checkpoint.model.vocab_size - 1
        if size > most:
            raise UserError(f"the data has {size} tokens, {name} only {most}")
        where = f"the {read.record['split']} split"
    else:
        if checkpoint.tokenizer is None:
            raise UserError(f"{name} has no tokenizer to read text with: give folders made by `unmask prepare`")
        read = held_out(data[0], checkpoint.tokenizer, checkpoint.model.length, count=texts, split=split, wrap=wrap)
        where = data[0]
    if len(read) < LEAST_TEXTS:
        raise UserError(f"{where} has {len(read)} texts of {checkpoint.model.length} tokens, and fitting needs "
                        f"{LEAST_TEXTS}: give more text, or hold out more of it")  # fmt: skip
    return read


def _print_table(fitted: FittedGrid, out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=f"{fitted.plan}, {fitted.grid.steps} steps, on {fitted.record['texts']['measured_on']} texts that the "
        "grid was not fitted on",
        caption="nats per token ± standard error by documents; the difference is paired",
    )
    for name in ("grid", "NELBO", "fitted - this", "NFE"):
        table.add_column(name, justify="left" if name == "grid" else "right")
    for name, worth in fitted.worth.items():
        gain = worth.fitted_minus_this
        table.add_row(
            name,
            f"{worth.nelbo.value:.4f} ± {worth.nelbo.stderr:.4f}",
            "" if name == "fitted" else f"{gain.value:+.4f} ± {gain.stderr:.4f}",
            f"{worth.nfe:.1f}",
        )
    console = Console(highlight=False)
    console.print(table)
    console.print("one stripe a step, as wide as its share of the tokens:")
    for name, worth in fitted.worth.items():
        console.print(f"  {name:<7} {picture(worth)}")
    console.print(f"tokens a step: {' '.join(f'{count:.0f}' for count in fitted.worth['fitted'].tokens_a_step)}")
    console.print(verdict(fitted.worth))
    console.print(f"{out}: use it with --plan {fitted.plan} --grid {out}", soft_wrap=True, markup=False)


def verdict(worth: dict[str, Worth]) -> str:
    """In words, against the best rival: a difference counts where its interval leaves out 0."""
    rival, best = min(((name, worth[name]) for name in worth if name != "fitted"), key=lambda one: one[1].nelbo.value)
    gain = best.fitted_minus_this
    if gain.low <= 0 <= gain.high:
        return f"on unseen text it cannot be told from `{rival}`; more --texts would tell more"
    return f"on unseen text it is {'better' if gain.value < 0 else 'worse'} than `{rival}`"


def picture(worth: Worth) -> str:
    """A strip from the first token revealed to the last, one stripe a step."""
    total, before, strip = sum(worth.tokens_a_step), 0.0, ""
    for step, tokens in enumerate(worth.tokens_a_step):
        before += tokens
        strip += "█░"[step % 2] * (round(before / total * _WIDTH) - len(strip))
    return strip
