"""`unmask report`: one page from the results of one evaluation or several."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path


def report(results: list[Path], /, *, out: Path = Path("report"), json: bool = False) -> None:
    """Merge results.json files into one report. The runs must share judge, protocol and held-out text.

    Args:
        results: results.json files, or folders that hold one
        out: the folder for report.html, report.md, results.json and figures/
        json: print the merged analysis as one JSON object instead of a table
    """
    from unmask.cli.evaluate import show
    from unmask.studies.analysis import analyse
    from unmask.studies.folder import MERGED, RESULTS, check_report_folder
    from unmask.studies.results import merge, read_results, write_results

    several = [read_results(path) for path in results]
    check_report_folder(out, results)
    merged = merge(several)
    provenance = {MERGED: [run.provenance for run in several], **merged.provenance}  # of one input too: a report's sign
    merged = analyse(replace(merged, provenance=provenance), seed=int(merged.settings["seed"]))
    write_results(merged, out / RESULTS)
    show(merged, out, json)
