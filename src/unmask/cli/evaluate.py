"""`unmask evaluate`: the whole picture of one or several models, as a table, results.json and a report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from unmask.core.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

    from unmask.studies.report.tables import Table as Grid
    from unmask.studies.results import Results


def evaluate(
    *,
    models: list[str],
    steps: list[int] | None = None,
    plans: list[str] = ["iid", "golden"],  # noqa: B006 (never changed: shown in the help)
    temperatures: list[float] | None = None,
    n: int = 64,
    judge: str | None = None,
    judge_dtype: Literal["fp32", "bf16"] = "fp32",
    protocol: Literal["mdlm", "sdtt", "sedd", "bd3lm"] = "mdlm",
    data: str | None = None,
    split: Literal["validation", "test"] | None = None,
    wrap: bool = False,
    control_steps: list[int] | None = None,
    bracket: bool = True,
    mauve: bool = False,
    bounds: bool = True,
    only_bounds: bool = False,
    seed: int = 0,
    batch: int | None = None,
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto",
    precision: Literal["auto", "bf16", "fp32"] = "auto",
    compile: bool = False,
    out: Path = Path("evaluation"),
    cells: Path | None = None,
    json: bool = False,
) -> None:
    """Measure models at every plan, number of steps and temperature, and write a report. Run it again to continue.

    The entry named `teacher` is the control, else the teacher in the student's provenance; a causal model is the
    autoregressive control; an entry named `elbo` is the teacher trained on.

    Args:
        models: entries NAME=CHECKPOINT, such as teacher=runs/teacher student=runs/student
        steps: numbers of steps of every model (default: 4 8 16 32 64, as far as models and fitted grids go)
        plans: plans, each on its usual grid (iid on uniform, the others on rank), or PLAN@GRID: iid@cosine,
            golden@fitted.json with a file of `unmask fit-grid`
        temperatures: of every model; the highest is the headline's (default: 1.0 0.9 0.8 0.7)
        n: texts of each cell
        judge: a causal judge: smollm2, gemma3, gpt2-large, llama-3-8b, a hub name, a folder or a GGUF file; without one
            there are NELBO, entropy and diversity only
        judge_dtype: of the judge's matrices; bf16 is faster on a GPU, and its Gen PPL another number
        protocol: of Gen PPL
        data: held-out real text: a folder made by `unmask prepare`, a text file, or `sample`, which is what
            `unmask prepare sample` holds out
        split: which held-out part of a prepared folder or the sample (default: validation); a text file has none
        wrap: held-out texts as MDLM makes them: BOS, length - 2 tokens, EOS
        control_steps: further numbers of steps of the teacher (default: doublings from 4 to one a token)
        bracket: draw further temperatures until the teacher's entropies enclose every student's; without, only what is
            asked for
        mauve: MAUVE as well, at the headline's temperature; needs 2,048 texts on each side
        bounds: NELBO of every model, plan and number of steps on --data as well; it takes as many forwards as drawing
        only_bounds: NELBO of every model, plan and number of steps on --n texts of --data, and no samples at all
        seed: of everything
        batch: texts in a forward (default: by the size of the model on a GPU, else 8)
        device: where to run
        precision: of the models; the likelihood of a causal one is in float32 whatever it is
        compile: compile the masked models, on a GPU; it does not pay for small ones
        out: the folder that keeps finished cells, results.json, report.html, report.md and figures/
        cells: the folder of finished cells, if several evaluations are to share them: samples are then drawn once for
            all judges (default: cells in --out)
        json: print the analysis as one JSON object instead of a table
    """
    from unmask.core.files import check_folder
    from unmask.core.progress import Progress
    from unmask.core.ranks import is_first
    from unmask.studies import evaluate as library

    named = _named(models)
    if is_first():  # who writes has to be able to
        for folder in (out, cells or out):
            check_folder(folder)
    with Progress(shown=is_first(), transient=True) as bar:
        results = library.evaluate(
            named,
            steps,
            plans=plans,
            temperatures=temperatures,
            n=n,
            judge=judge,
            judge_dtype=judge_dtype,
            protocol=protocol,
            data=data,
            split=split,
            wrap=wrap,
            control_steps=control_steps,
            bracket=bracket,
            mauve=mauve,
            bounds=bounds,
            only_bounds=only_bounds,
            seed=seed,
            batch=batch,
            device=device,
            precision=precision,
            compile=compile,
            out=out,
            cells=cells,
            progress=bar,
        )
    if is_first():
        show(results, out, json)


def show(results: Results, out: Path, as_json: bool) -> None:
    """Write the report, print what a person or a program wants to know."""
    from unmask.studies.report import write_report

    write_report(results, out)
    if as_json:
        from json import dumps

        said = results.to_json()
        print(dumps({name: said[name] for name in ("settings", "judge", "analysis", "notes", "provenance")}, indent=2))
        return
    from rich.console import Console

    from unmask.studies.report.tables import likelihood, main_table
    from unmask.studies.report.words import meaning

    console = Console(highlight=False)
    if results.cells:
        console.print(_rich(main_table(results)))
    else:
        console.print(_rich(likelihood(results)))
        if results.analysis["plan_likelihood"]:  # none where there is one plan
            console.print(_rich(_against_first_plan(results)))
    for sentence in meaning(results):
        console.print(f"- {sentence}", soft_wrap=True, markup=False)
    console.print(f"report: {out / 'report.html'}", soft_wrap=True, markup=False)


def _rich(grid: Grid) -> Table:
    """A table of the report for a terminal. Names of models and plans may look like rich's markup, and are not."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(grid.title), title_justify="left")
    for i, name in enumerate(grid.head):
        table.add_column(escape(name), justify="right" if i else "left")
    for row in grid.rows:
        table.add_row(*(escape(cell.replace("\n", " / ")) for cell in row))
    return table


def _against_first_plan(results: Results) -> Grid:
    """Every plan's NELBO less that of the first one."""
    from unmask.studies.report.tables import Table as Grid
    from unmask.studies.report.tables import interval

    less = {(one["model"], one["plan"], one["steps"]): one for one in results.analysis["plan_likelihood"]}
    rows = [
        [f"{model}\n{plan}", *(interval(less.get((model, plan, steps)), signed=True) for steps in results.steps)]
        for model, plan in dict.fromkeys((model, plan) for model, plan, _ in less)
    ]
    title = f"NELBO less that of {next(iter(results.plans), None)}, nats/token, paired over texts"
    return Grid(title, ["", *(f"{steps} steps" for steps in results.steps)], rows)


def _named(models: list[str]) -> dict[str, str]:
    named: dict[str, str] = {}
    for entry in models:
        name, sign, path = entry.partition("=")
        if not (name and sign and path):
            such = f"student={entry.strip('=') or 'pocket'}"  # nothing twice: =pocket, pocket=
            raise UserError(f"--models takes NAME=CHECKPOINT, such as {such}; {entry!r} is not of that form")
        if name in named:
            raise UserError(f"two models are named {name!r}: give each a name of its own")
        named[name] = path
    return named
