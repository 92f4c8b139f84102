"""How much longer `unmask.sample` takes than its network alone, in few steps: the second call, with everything in it.

    python -m tools.call_overhead [PRESET] [BATCH]

Prints one JSON line a plan and number of steps. A ratio measured in one run; worth running on a GPU only.
"""

import json
import statistics
import sys
import time

import torch

import unmask
from unmask.bench.sampler import random_model
from unmask.checkpoint.io import Checkpoint
from unmask.data.tokenizer import Tokenizer
from unmask.inference.ready import make_ready

REPEATS = 7


def seconds(work) -> float:
    """The median of several calls, the device's queue empty before and after."""
    found = []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def main(preset: str = "small", batch: int = 32) -> None:
    checkpoint = Checkpoint(random_model(preset), tokenizer=Tokenizer.load("gpt2") if preset == "small" else None)
    place, states, L = torch.device("cuda", 0), checkpoint.model.vocab_size, checkpoint.model.length
    z_BL = torch.randint(states - 1, (batch, L), device=place)
    for plan, grid in (("golden", "rank"), ("iid", "mdlm")):
        for steps in (8, 16, 32):

            def call(plan: str = plan, grid: str = grid, steps: int = steps):
                return unmask.sample(checkpoint, n=batch, steps=steps, plan=plan, grid=grid, batch=batch, compile=True)

            samples = call()  # the first call compiles
            torch.cuda.reset_peak_memory_stats()
            whole = seconds(call)
            peak = torch.cuda.max_memory_allocated() / 2**30
            ready = make_ready(checkpoint.model, place, "auto", compile=True)
            with torch.inference_mode():
                ready.features(z_BL)
                body = seconds(lambda ready=ready: ready.features(z_BL))
            nfe = samples.record["nfe"]
            line = {"plan": plan, "grid": grid, "steps": steps, "nfe": nfe, "call_ms": whole * 1e3,
                    "body_ms": body * 1e3, "ratio": whole / (nfe * body), "peak_gib": peak,
                    "ms_per_sequence_step": whole * 1e3 / (nfe * batch)}  # fmt: skip
            print(json.dumps({key: round(v, 4) if isinstance(v, float) else v for key, v in line.items()}), flush=True)


if __name__ == "__main__":
    main(*(kind(word) for kind, word in zip((str, int), sys.argv[1:], strict=False)))
