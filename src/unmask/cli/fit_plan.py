"""What `unmask fit-plan` shows: what the grid is worth beside others, and a picture of its steps."""

from __future__ import annotations

from functools import partial
from json import dumps
from pathlib import Path

from rich.console import Console

from unmask.cli.parser import Call
from unmask.core.progress import Progress
from unmask.core.ranks import is_first
from unmask.core.show import table
from unmask.studies.fit_plan import FittedPlan, Worth

_WIDTH = 64  # characters of a grid's picture


def present(call: Call, *, out: Path, json: bool = False) -> None:
    """Fit a plan and its grid, write them and show the table.

    Args:
        out: the .json file to write
        json: print what was written instead of a table
    """
    with Progress(shown=is_first(), transient=True) as bar:
        fitted = call(out=out, progress=partial(bar.show, "views"))
    if json and is_first():
        print(dumps(fitted.to_json(), indent=2))
    elif is_first():
        _print_table(fitted, out)


def _print_table(fitted: FittedPlan, out: Path) -> None:
    rows = []
    for name, worth in fitted.worth.items():
        nelbo, gain = worth.nelbo, worth.fitted_minus_this
        less = "" if name == "fitted" else f"{gain.value:+.4f} ± {gain.stderr:.4f}"
        rows.append([name, f"{nelbo.value:.4f} ± {nelbo.stderr:.4f}", less, f"{worth.nfe:.1f}"])
    unseen = f"on {fitted.record['texts']['measured_on']} texts that the grid was not fitted on"
    title = f"{fitted.plan}, {fitted.grid.steps} steps, {unseen}"
    console = Console(highlight=False)
    console.print(table(title, ["grid", "NELBO", "fitted - this", "NFE"], rows))
    console.print("nats per token ± standard error by documents; the difference is paired")
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
        return f"on unseen text it cannot be distinguished from `{rival}`; more --texts would say more"
    return f"on unseen text it is {'better' if gain.value < 0 else 'worse'} than `{rival}`"


def picture(worth: Worth) -> str:
    """A strip from the first token revealed to the last, one stripe a step."""
    total, before, strip = sum(worth.tokens_a_step), 0.0, ""
    for step, tokens in enumerate(worth.tokens_a_step):
        before += tokens
        strip += "█░"[step % 2] * (round(before / total * _WIDTH) - len(strip))
    return strip
