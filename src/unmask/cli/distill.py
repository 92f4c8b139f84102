"""What `unmask distill` prints: the table of rounds."""

from __future__ import annotations

import json as json_module
from pathlib import Path

from rich.console import Console

from unmask.cli.parser import Call
from unmask.cli.train import check_out
from unmask.core.ranks import is_first
from unmask.core.show import table as shown
from unmask.training.evaluate import with_stderr


def present(call: Call, *, json: bool = False) -> None:
    """Distil, then print what each round came to.

    Args:
        json: print the table of rounds as JSON
    """
    out = Path(check_out(call))
    call()
    if not is_first():
        return
    text = (out / "rounds.json").read_text(encoding="utf-8")
    if json:
        print(text, end="")
        return
    table = json_module.loads(text)
    plan = f" on the plan {table['plan']}" if "plan" in table else ""
    title = f"{table['samples']} samples in {table['steps']} steps{plan}; ± is a standard error"
    if judge := table["judge"]:
        title += f"; judge {judge['name']}"
    names = ["model", "delta", "tau", "NFE", *(["Gen PPL"] if judge else []), "entropy", "ELBO/token"]
    rows = []
    for row in table["rows"]:
        about, entropy, elbo, judged = row["round"] or {}, row["entropy"], row["elbo"], row["gen_ppl"]
        name = row["name"] if row["temperature"] == 1 else f"{row['name']}, T={row['temperature']:.3f}"
        cells = [name, *(f"{about[key]:.4g}" if key in about else "" for key in ("delta", "tau")), f"{row['nfe']:.1f}"]
        cells += [f"{judged['value']:.1f} ± {judged['stderr']:.1f}"] if judged else []
        cells += [f"{entropy['value']:.3f} ± {entropy['stderr']:.3f}"]
        rows.append([*cells, with_stderr(elbo["nats"], elbo["stderr"], digits=3) if elbo else ""])
    Console(highlight=False).print(shown(title, names, rows))
    print(f"student: {out} (of each round: {out / 'rounds'}/N); these numbers: {out / 'rounds.json'}")
    print(f"student: {out} (of each round: {out / 'rounds'}/N); these numbers: {out / 'rounds.json'}")
