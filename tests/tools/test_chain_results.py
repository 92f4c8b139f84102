"""The tables of docs/chain.md, from bounds and a bench that were kept."""

import json
from pathlib import Path

import pytest
from tools.results.__main__ import main
from tools.results.chain import chain, chain_cost
from tools.results.runs import Run, Runs

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_a_head_has_its_row_once_it_was_measured():
    """Paired where one token a step was measured in the same run; on the same blocks, or not at all."""
    runs = Runs(DOCS / "results")
    kept = {name: runs[name] for name in runs if name not in ("chain", "cpu-chain")}
    level = kept["plans-prose"].bound("teacher", "permutation", 256)
    assert {row[0] for row in chain(kept).rows} == {"none"}
    bounds = [{"model": "comb", "plan": "comb", "steps": N, "n": level["n"], "per_token": [level["per_token"][0] + 0.1]}
              for N in (2, 4)]  # fmt: skip
    curve = {"score": "nelbo", "model": "comb", "plan": "comb", "reference": {"order": "random"},
             "curve": [{"steps": 4, "distance": [0.1, 0.08, 0.12]}]}  # fmt: skip
    said = {"models": {"comb": {"head_steps": 2500}}, "likelihood": bounds, "matches": [curve]}
    row = chain({**kept, "cpu-chain": Run("cpu-chain", said)}).rows[-1]
    assert row == ["2.0M, for `comb` alone, on a CPU", "2,500", "`comb`", "+0.100", "+0.100 ± 0.020", "", ""]
    bounds[0]["n"] = 3
    with pytest.raises(AssertionError, match="other texts"):
        chain({**kept, "cpu-chain": Run("cpu-chain", said)})


def test_a_bench_is_kept_and_shown(tmp_path):
    """Every ratio is of the bench's own lines."""
    (tmp_path / "results").mkdir()
    (tmp_path / "results/studies.yaml").write_text("chain: {runs: {cpu-chain-bench: bench.json}}")
    named = {"no head": 1.0, "head, gumbel": 1.5, "head, uniform": 9.0, "head, acceptance": 3.0}
    lines = [{"name": name, "batch": 1, "steps": 4, "seconds": s, "ms_per_text": 1e3 * s, "rounds": 2.0,
              "over_without": s} for name, s in named.items()]  # fmt: skip
    lines[1]["less_at_equal_seconds"] = [-0.05, -0.06, -0.04]
    lines.append({"name": "causal, cached", "batch": 1, "steps": 256, "seconds": 15.0})
    said = {"lines": lines, "matmul_tflops": 0.1, "record": {"device": "a CPU", "plan": "comb"}}
    (tmp_path / "bench.json").write_text(json.dumps(said))
    assert main(["--docs", str(tmp_path), "slim", "cpu-chain-bench", str(tmp_path / "bench.json")]) == 0
    (row,) = chain_cost(Runs(tmp_path / "results")).rows
    assert row == ["a CPU", "`comb`", "1", "4", "1,000", "1,500", "2.0", "1.50", "2.00", "10.0", "−0.050 ± 0.010"]
