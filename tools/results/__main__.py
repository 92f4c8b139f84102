"""`python -m tools.results run STUDY ...`, `slim [NAME [PATH ...]]` and `page`: from commands to results to the page.

Called from the root of the project; `run` wherever the corpora are.
"""

from __future__ import annotations

import argparse
import math
import shlex
import sys
from pathlib import Path

from tools.results.page import draw, fill
from tools.results.studies import Study, check_complete, read_studies

from unmask.core.errors import UserError, unknown

ROOT = Path(__file__).resolve().parents[2]


def pages(docs: Path) -> list[Path]:
    """What there is to fill in: the page of results, one for each study, and the README."""
    return [docs / "results.md", *sorted(docs.glob("studies/*.md")), docs.parent / "README.md"]


def slim_runs(studies: list[Study], results: Path, name: str | None, paths: list[Path]) -> None:
    """Slim one run, from where its command leaves it or from the paths given; without a name, all that is there."""
    from tools.results.slim import file_of, slim

    runs = {run.name: run for study in studies for run in study.runs}
    if name is not None and name not in runs:
        raise unknown("run in studies.yaml", name, runs)
    for run in [runs[name]] if name else runs.values():
        sources = paths or [Path(out) for out in run.out]
        absent = [source for source in sources if not file_of(source).is_file()]
        there = sources if name else [source for source in sources if source not in absent]
        if there:
            print(f"{run.name}: {slim(there, results / f'{run.name}.json'):,} bytes")
        if absent:
            print(f"{run.name}: not there yet: {', '.join(map(str, absent))}")


def run_studies(
    studies: list[Study], names: list[str], program: list[str], jobs: int, minutes: float, logs: Path
) -> bool:
    """Run what studies are made of; whether all of it is done."""
    from tools.results.run import Queue, jobs_of

    known = {study.name: study for study in studies}
    for name in names:
        if name not in known:
            raise unknown("study", name, known)
    commands = [command for name in names for command in known[name].commands]
    return Queue(jobs_of(commands), program, logs, jobs).go(minutes)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.results", description=__doc__)
    parser.add_argument(
        "--docs", type=Path, default=ROOT / "docs", help="the folder of results.md, studies/, results/ and figures/"
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    small = verbs.add_parser("slim", help="keep of results.json what the tables need, as docs/results/NAME.json")
    small.add_argument("name", nargs="?", help="a run of studies.yaml (default: every one that is there)")
    small.add_argument(
        "paths", nargs="*", type=Path, help="its results.json files, merged (default: where they are left)"
    )
    work = verbs.add_parser("run", help="run the commands of studies, those that were not finished yet")
    work.add_argument("studies", nargs="+", help="studies of studies.yaml")
    work.add_argument("--jobs", type=int, default=1, help="commands at a time")
    work.add_argument("--minutes", type=float, default=math.inf, help="stop after so long; the same call goes on")
    work.add_argument(
        "--logs", type=Path, default=Path("runs/logs"), help="their folder, and of the list of what is done"
    )
    work.add_argument(
        "--program", type=shlex.split, default=[sys.executable, "-m", "unmask"], help="how unmask is called"
    )
    page = verbs.add_parser("page", help="fill the marked parts of the pages and draw the figures")
    page.add_argument(
        "pages",
        nargs="*",
        type=Path,
        help="pages (default: docs/results.md, docs/studies/*.md and the README beside docs)",
    )
    given = parser.parse_args(words)
    results = given.docs / "results"
    try:
        studies = read_studies(results)
        if given.verb == "slim":
            slim_runs(studies, results, given.name, given.paths)
            return 0
        if given.verb == "run":
            done = run_studies(studies, given.studies, given.program, given.jobs, given.minutes, given.logs)
            return 0 if done else 1
        for study in studies:
            check_complete(study, results)
        pictures = draw(studies, given.docs / "figures")
        for path in given.pages or pages(given.docs):
            print(f"{path}: {'filled in' if fill(path, studies, pictures, results) else 'unchanged'}")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
