"""`python -m tools.results run STUDY ...`, `slim [RUN [PATH ...]]`, `check [RUN ...]`, `page`, `outcomes`.

From commands to pages. Called from the root of the project; `run` wherever the corpora are.
"""

from __future__ import annotations

import argparse
import math
import shlex
import sys
from pathlib import Path

from tools.results.figure import choosing, nelbo
from tools.results.page import fill
from tools.results.predictions import told
from tools.results.run import Queue, jobs_of
from tools.results.runs import Run, Runs, read_studies
from tools.results.tasks import tasks_figure

from unmask.core.errors import UserError, unknown
from unmask.core.files import read_json, write_bytes

ROOT = Path(__file__).resolve().parents[2]


def pages(docs: Path) -> list[Path]:
    """The pages that may have tables."""
    return [docs / "results.md", docs / "speed.md", docs / "chain.md", *sorted(docs.glob("studies/*.md"))]


def slim_runs(results: Path, name: str | None, paths: list[str]) -> None:
    """Slim one run, from what its command left by now or from the paths given; without a name, all that are there."""
    from tools.results.slim import named_source, slim

    runs = {run: outs for study in read_studies(results).values() for run, outs in study.runs.items()}
    if name is not None and name not in runs:
        raise unknown("run in studies.yaml", name, runs)
    for run in [name] if name else runs:
        sources = paths or runs[run]
        there = paths or [source for source in sources if named_source(source)[1].is_file()]
        if there or name:
            there = there or sources  # which says what is not there
            print(f"{run}: {slim(there, results / f'{run}.json'):,} bytes, {len(sources) - len(there)} files not there")


def run_studies(results: Path, given: argparse.Namespace) -> bool:
    """Run the commands of studies; whether all of them are done."""
    studies = read_studies(results)
    for name in given.studies:
        if name not in studies:
            raise unknown("study", name, studies)
    commands = [command for name in given.studies for command in studies[name].commands]
    return Queue(jobs_of(commands), given.program, given.logs, given.jobs).go(given.minutes)


def check_committed(results: Path, names: list[str]) -> int:
    from tools.results.check import check_runs

    there = Runs(results)
    for name in names:
        if name not in list(there):
            raise unknown("run in docs/results", name, list(there))
    chosen = {name: Run(name, read_json(results / f"{name}.json", "results")) for name in names or there}
    return check_runs(chosen, results)


def fill_pages(docs: Path, wanted: list[Path]) -> None:
    runs = Runs(docs / "results")
    for name, picture in (("nelbo", nelbo(runs)), ("choosing", choosing(runs)), ("tasks", tasks_figure(runs))):
        figure = docs / "figures" / f"{name}.svg"
        if not figure.is_file() or figure.read_bytes() != picture:
            write_bytes(figure, picture)
    for path in wanted or pages(docs):
        print(f"{path}: {'filled in' if fill(path, runs) else 'unchanged'}")


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.results", description=__doc__)
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="the folder of results.md and results/")
    verbs = parser.add_subparsers(dest="verb", required=True)
    small = verbs.add_parser("slim", help="keep of results.json what the tables need, as docs/results/RUN.json")
    small.add_argument("name", nargs="?", help="a run of studies.yaml (default: every one that is there)")
    small.add_argument("paths", nargs="*", help="its files, or NAME=FILE (default: where they are left)")
    work = verbs.add_parser("run", help="run the commands of studies, those that were not finished yet")
    work.add_argument("studies", nargs="+", help="studies of studies.yaml")
    work.add_argument("--jobs", type=int, default=1, help="commands at a time")
    work.add_argument("--minutes", type=float, default=math.inf, help="stop after so long; the same call goes on")
    logs, program = Path("runs/logs"), [sys.executable, "-m", "unmask"]
    work.add_argument("--logs", type=Path, default=logs, help="folder of the logs and the list of what is done")
    work.add_argument("--program", type=shlex.split, default=program, help="how to call unmask")
    page = verbs.add_parser("page", help="fill the marked parts of the pages and draw the figures")
    page.add_argument("pages", nargs="*", type=Path, help="pages (default: all that have tables)")
    verbs.add_parser("outcomes", help="print what the runs that are there say of registered predictions")
    again = verbs.add_parser("check", help="work out again what runs say, from what single texts gave")
    again.add_argument("runs", nargs="*", help="runs (default: all that have single texts)")
    given = parser.parse_args(words)
    try:
        if given.verb == "check":
            return check_committed(given.docs / "results", given.runs)
        if given.verb == "run":
            return 0 if run_studies(given.docs / "results", given) else 1
        if given.verb == "outcomes":
            print(*told(Runs(given.docs / "results")), sep="\n")
        elif given.verb == "slim":
            slim_runs(given.docs / "results", given.name, given.paths)
        else:
            fill_pages(given.docs, given.pages)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
