"""`unmask report`: one page from the results of one evaluation or several."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from unmask.cli.evaluate import show
from unmask.core.errors import UserError
from unmask.core.files import claim_folder
from unmask.studies.analysis import analyse
from unmask.studies.evaluate import RESULTS, WRITES
from unmask.studies.merge import merge
from unmask.studies.results import read_results, write_results


def report(results: list[Path], /, *, out: Path = Path("report"), json: bool = False) -> None:
    """Merge results.json files into one report. The runs must share judge, protocol and held-out text.

    Args:
        results: results.json files, or folders that hold one
        out: the folder for report.html, report.md, results.json and figures/
        json: print the merged analysis as one JSON object instead of a table
    """
    several = [read_results(path) for path in results]
    claim_folder(out, "results", writes=WRITES)
    target = out / RESULTS
    among = target.resolve() in [(path / RESULTS if path.is_dir() else path).resolve() for path in results]
    if target.is_file() and not among and "merged" not in read_results(target).provenance:  # a report may be replaced
        raise UserError(f"{out} holds the results of an evaluation that is not among those given: name another --out")
    merged = merge(several)
    provenance = {"merged": [run.provenance for run in several], **merged.provenance}  # of one input too: a report
    merged = analyse(replace(merged, provenance=provenance), seed=int(merged.settings["seed"]))
    write_results(merged, target)
    show(merged, out, json)
