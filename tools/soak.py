"""Kill a small training run at random moments, resume it, and compare its final weights with an undisturbed run.

Each of the N trials is a fresh run of one and the same command line in a process of its own. It is killed with SIGKILL,
or asked to leave with SIGTERM, at a moment drawn uniformly over the time an undisturbed run takes from opening its
folder to its end, then started again and left alone. Its weights (raw and averaged) must be bit-equal to the
undisturbed run's, and its metrics equal but for timings. Prints one line a trial and a summary; exits 1 if a single
trial differs.

    python tools/soak.py [--kills 100] [--workers 2] [--seed 0] [--folder DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

OPTIONS = (
    "--preset tiny --length 64 --steps 48 --batch 8 --micro_batch 4 --lr 2e-3 --warmup 10 --eval_every 16 "
    "--eval_batches 2 --save_every 4 --log_every 3 --keep 2 --device cpu --no-progress"
)
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
TIMINGS = ("tokens_per_s", "mfu", "seconds")


def unmask(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "unmask", *arguments]


def train(corpus: Path, out: Path) -> list[str]:
    return unmask("train", "--data", str(corpus), *OPTIONS.split(), "--out", str(out))


def result(out: Path) -> tuple[bytes, bytes, str]:
    """What must be equal: averaged weights, raw weights, metrics without timings."""
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    kept = [{key: value for key, value in record.items() if key not in TIMINGS} for record in records]
    files = [(out / "checkpoint" / name).read_bytes() for name in ("model.safetensors", "raw.safetensors")]
    return files[0], files[1], json.dumps(kept)


def run_until(command: list[str], out: Path, seconds: float | None, sent: int = signal.SIGKILL) -> tuple[bool, float]:
    """Run a command, end it `seconds` after its run folder is open: (did that end it, seconds from open to end)."""
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while process.poll() is None and not (out / "run.json").exists():
        time.sleep(0.002)
    opened = time.monotonic()
    try:
        _, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(sent)
        process.communicate()
        return True, time.monotonic() - opened
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed: {errors.decode()}")
    return False, time.monotonic() - opened


def trial(corpus: Path, out: Path, moments: random.Random, span: float) -> tuple[float, str]:
    """One run, killed once, resumed to the end: (when it was killed, what it was doing)."""
    while True:
        moment, sent = moments.uniform(0, span), moments.choice((signal.SIGKILL, signal.SIGTERM))
        was_killed, _ = run_until(train(corpus, out), out, moment, sent)
        if was_killed:
            break
        shutil.rmtree(out)  # it was faster than usual and had ended: draw another moment
    states = sorted(path.name for path in (out / "state").glob("step-*"))
    writing = list(out.glob(".*.new-*")) + list((out / "state").glob(".*.new-*"))
    doing = f"by {sent.name} after {states[-1] if states else 'no state'}"
    doing += f", writing {writing[0].name}" if writing else ""
    run_until(train(corpus, out), out, None)
    return moment, doing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=None, help="work here (default: a temporary folder)")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="soak-"))
    began, corpus = time.monotonic(), folder / "corpus"
    subprocess.run(unmask("prepare", "sample", "--out", str(corpus), "--vocab_size", "512"), check=True)
    _, span = run_until(train(corpus, folder / "undisturbed"), folder / "undisturbed", None)
    expected = result(folder / "undisturbed")
    print(f"undisturbed: {span:.1f} s from opening the folder to the end", flush=True)

    def one(number: int) -> bool:
        out = folder / f"trial-{number:03d}"
        moment, doing = trial(corpus, out, random.Random(f"{given.seed}/{number}"), span)
        same = result(out) == expected
        print(f"kill {number + 1:3d} at {moment:5.2f} s, {doing}: {'equal' if same else 'DIFFERENT'}", flush=True)
        if same:
            shutil.rmtree(out)
        return same

    with ThreadPoolExecutor(given.workers) as pool:
        equal = sum(pool.map(one, range(given.kills)))
    print(f"{equal} of {given.kills} equal, in {time.monotonic() - began:.0f} s")
    if equal == given.kills and given.folder is None:
        shutil.rmtree(folder)
    return 0 if equal == given.kills else 1


if __name__ == "__main__":
    sys.exit(main())
