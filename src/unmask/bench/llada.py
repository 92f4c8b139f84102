"""`unmask bench llada`: our sampler on LLaDA's shape against its published `generate`, both on random weights.

A setting's forwards are all alike, so a few of each are timed. "Plain" is `generate` written plainly, on transformers'
layers as they are or on the body that ours has; ours goes as it is, and as `--compile` has it. What fails in one part
is shown, and the next part goes on.

Shapes: B rows, L positions.
"""

from __future__ import annotations

import json as js
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from unmask.bench.plain_llada import plain_step
from unmask.bench.timing import Row, measure
from unmask.checkpoint.io import Checkpoint
from unmask.core import provenance
from unmask.core.ranks import pick_device
from unmask.inference.cache import Caching, Memory
from unmask.inference.categorical import Law
from unmask.inference.ready import Ready
from unmask.plans.grids import make_grid
from unmask.plans.plan import GOLDEN, Blocks, Confidence, Plan, make_plan
from unmask.sampling.drafts import How, new_table, start_draft, take_step
from unmask.training.speed import wait

PROMPT, ANSWER, BLOCK = 128, 256, 32
L = PROMPT + ANSWER
BATCHES, TEMPERATURES, STEPS, TOKENS = (1, 8), (0.0, 1.0), (256, 64, 32), (2, 4, 8)


def llada(
    *, size: Literal["8b", "tiny"] = "8b", device: str = "auto", seconds: float = 100.0, out: Path | None = None
) -> dict[str, Any]:
    """Time LLaDA's published algorithm and ours, side by side, on random weights.

    Args:
        size: the model's shape
        device: where to run: auto, cpu, cuda or mps
        seconds: no further part begins after so many
        out: where to write everything as JSON, after every part
    """
    bench = Bench(pick_device(device), size, seconds, out)
    for part in (reading, block_step, no_cache, with_compile, with_cache, company, distillation):
        bench.run(part)
    bench.run(ratios)
    return bench.result


@dataclass
class Bench:
    """The model, and what was found."""

    place: torch.device
    size: str
    seconds: float
    out: Path | None
    begun: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self.result: dict[str, Any] = {"lines": [], "errors": {}, "record": provenance.record(self.place)}
        self.model = random_llada(self.size, self.place)
        self.checkpoint = Checkpoint(self.model)
        self.ready, self.compiled = (Ready(self.model, self.place, compile) for compile in (False, True))
        self.say("model made", {"parameters": sum(value.numel() for value in self.model.parameters())})

    @property
    def cuda(self) -> bool:
        return self.place.type == "cuda"

    def run(self, part: Callable[[Bench], None]) -> None:
        """One part; what it raises is shown and kept."""
        spent = time.perf_counter() - self.begun
        if spent > self.seconds and part is not ratios:
            self.result["errors"][part.__name__] = f"not begun: {spent:.0f} s had passed"
        else:
            try:
                part(self)
            except Exception:
                self.result["errors"][part.__name__] = traceback.format_exc()
                print(traceback.format_exc(), flush=True)
            if self.cuda:
                torch.cuda.empty_cache()
        if self.out is not None:
            self.out.write_text(js.dumps(self.result, indent=1))

    def say(self, name: str, facts: Row) -> None:
        """One line of the result, printed at once."""
        self.result["lines"].append({"name": name, **facts})
        at = time.perf_counter() - self.begun
        shown = ", ".join(f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
                          for key, value in facts.items() if value is not None)  # fmt: skip
        print(f"[{at:5.1f} s] {name}: {shown}", flush=True)

    def given(self, B: int) -> Tensor:
        """Prompts and blank answers."""
        prompt_BL = torch.randint(self.model.vocab_size - 200, (B, PROMPT), generator=torch.Generator().manual_seed(B))
        return torch.nn.functional.pad(prompt_BL, (0, ANSWER), value=-1)


def random_llada(size: str, place: torch.device) -> Any:
    """LLaDA of random weights, made where it will be; bf16 on a GPU."""
    from unmask.models.llada import PRESETS, LLaDA

    with torch.device("meta"):
        model = LLaDA(PRESETS["8b" if size == "8b" else "tiny"])
    if size == "tiny":  # 128 positions are too few
        with torch.device("meta"):
            model = LLaDA(type(model.config)(**{**vars(model.config), "length": L}))
    model = model.to(torch.bfloat16 if place.type == "cuda" else torch.float32).to_empty(device=place)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(std=0.02)
            else:
                weight.fill_(1.0)
    return model.eval().requires_grad_(False)


# --- what is timed ----------------------------------------------------------------------------------------------------


def stepped(
    bench: Bench, ready: Ready, plan: Plan, steps: int, B: int, temperature: float, cache: Caching | None = None
) -> Iterator[None]:
    """The sampler's own loop, a step at a time."""
    how = How(bench.checkpoint, plan, make_grid("rank", steps), None, Law(temperature), False, 0,
              bench.checkpoint.step_law, None, cache=cache)  # fmt: skip
    memory = None if cache is None else Memory(ready, cache, B, L)
    table = new_table(ready, B, L, memory)
    draft = start_draft(how, ready, table, list(range(B)), bench.given(B))
    for move in draft.moves(ready.device):
        take_step(ready, table, [(draft, move)])
        yield


@torch.inference_mode()
def timed(bench: Bench, loop: Iterator[None], skip: int, count: int) -> tuple[float, float | None]:
    """Mean seconds of `count` steps after `skip`, and the peak memory in GiB."""
    for _ in range(skip):
        next(loop)
    wait(bench.place)
    if bench.cuda:
        torch.cuda.reset_peak_memory_stats(bench.place)
    begun = time.perf_counter()
    for _ in range(count):
        next(loop)
    wait(bench.place)
    spent = (time.perf_counter() - begun) / count
    return spent, torch.cuda.max_memory_allocated(bench.place) / 2**30 if bench.cuda else None


def reading(bench: Bench) -> None:
    """The time to read once what a step multiplies with: all weights but the table of embeddings, of which it takes a
    row a token. By a sum over each, and by the rate of a large copy; the shorter one counts."""
    skipped = bench.model.model.embed_tokens.weight
    weights = [value for value in bench.model.parameters() if value is not skipped]
    size = sum(value.numel() * value.element_size() for value in weights)
    by_sum = measure(lambda: [value.view(-1).amax() for value in weights], bench.place, repeats=5).seconds
    source = torch.empty(2**32 if bench.cuda else 2**24, dtype=torch.uint8, device=bench.place).random_()
    target = torch.empty_like(source)
    by_copy = measure(lambda: target.copy_(source), bench.place, repeats=7, warmup=2).seconds
    rate = 2 * source.numel() / by_copy
    facts = {"gigabytes": size / 1e9, "ms": min(by_sum, size / rate) * 1e3, "ms_by_reduction": by_sum * 1e3,
             "ms_by_rate_of_a_copy": size / rate * 1e3, "copy_terabytes_a_second": rate / 1e12}  # fmt: skip
    bench.say("weights read once", facts)


def block_step(bench: Bench) -> None:
    """One step of the dual cache within a block: the body, a CUDA graph; then with head and draw of 4 tokens."""
    ready = bench.compiled
    memory = Memory(ready, Caching("dual"), 1, L)
    z_BL = torch.where(bench.given(1) < 0, bench.model.mask_id, bench.given(1)).to(bench.place)
    span_R3 = torch.tensor([[0, PROMPT + 4 * BLOCK, PROMPT + 5 * BLOCK]])

    @torch.inference_mode()
    def body() -> None:
        memory.features(z_BL, span_R3)

    body()  # the full forward of a block's first step
    once = measure(body, bench.place, repeats=20, warmup=5)
    bench.say("cached block step, body", {"ms": once.seconds * 1e3, "peak_gib": once.peak_gib})
    plan = Blocks(BLOCK, GOLDEN)
    loop = stepped(bench, ready, plan, ANSWER // 4, 1, 1.0, Caching("dual"))
    per_block = BLOCK // 4
    with torch.inference_mode():
        for _ in range(per_block):  # one block, its graphs captured
            next(loop)
        spent = []
        for _ in range(3):
            next(loop)  # a block's first step, the full forward
            spent.append(timed(bench, loop, 0, per_block - 1)[0])
    bench.say("cached block step, head and draw of 4 tokens too", {"ms": statistics.median(spent) * 1e3})


def no_cache(bench: Bench) -> None:
    """Every batch and temperature: the plain step, on both bodies; then ours, at each number of steps."""
    for B in BATCHES:
        x_BL = torch.where(bench.given(B) < 0, bench.model.mask_id, bench.given(B)).to(bench.place)
        for temperature in TEMPERATURES:
            setting = {"batch": B, "temperature": temperature}
            for name, body in (("plain", bench.model), ("plain on our body", bench.ready.body)):
                quota_B = torch.full((B,), 1)
                once = measure(
                    lambda body=body, t=temperature, q=quota_B, x=x_BL: plain_step(  # type: ignore[misc]
                        body, bench.model, x, PROMPT + BLOCK, q, t
                    ),
                    bench.place, repeats=9 if B == 1 else 5, warmup=2,
                )  # fmt: skip
                bench.say(name, {**setting, "ms_a_forward": once.seconds * 1e3, "peak_gib": once.peak_gib})
    _both_orders(bench, bench.ready, "ours")


def with_compile(bench: Bench) -> None:
    """Ours without a cache, as `--compile` has it."""
    _both_orders(bench, bench.compiled, "ours, compiled")


def _both_orders(bench: Bench, ready: Ready, name: str) -> None:
    for B in BATCHES:
        for temperature in TEMPERATURES:
            for steps in STEPS:
                for label, plan in (("llada's order", make_plan("llada")), ("golden", GOLDEN)):
                    _ours(bench, ready, f"{name}, {label}", plan, steps, B, temperature)


def _ours(bench: Bench, ready: Ready, label: str, plan: Plan, steps: int, B: int, temperature: float) -> None:
    loop = stepped(bench, ready, plan, steps, B, temperature)
    seconds, peak = timed(bench, loop, 2, 12 if B == 1 else 6)
    facts = {"batch": B, "temperature": temperature, "steps": steps, "ms_a_forward": seconds * 1e3,
             "ms_a_token": seconds * 1e3 * steps / (ANSWER * B), "peak_gib": peak}  # fmt: skip
    bench.say(label, facts)


def company(bench: Bench) -> None:
    """Answers to eight prompts of different length, written together and each by itself: how many are equal."""
    generator = torch.Generator().manual_seed(0)
    lengths = [17, 33, 50, 64, 90, 101, 120, 128]
    given = [torch.randint(bench.model.vocab_size - 200, (one,), generator=generator) for one in lengths]
    for temperature in TEMPERATURES:
        together = _answers(bench, given, list(range(8)), temperature)
        alone = [_answers(bench, [one], [i], temperature)[0] for i, one in enumerate(given)]
        same = [mine == other for mine, other in zip(together, alone, strict=True)]
        tokens = [a == b for mine, other in zip(together, alone, strict=True) for a, b in zip(mine, other, strict=True)]
        facts = {"texts": len(same), "temperature": temperature, "equal_texts": sum(same) / len(same),
                 "equal_tokens": sum(tokens) / len(tokens)}  # fmt: skip
        bench.say("answers of 64 tokens in 16 steps, eight together against each alone", facts)


@torch.inference_mode()
def _answers(bench: Bench, given: list[Tensor], indices: list[int], temperature: float) -> list[list[int]]:
    """64 tokens after each prompt, all in one forward a step."""
    how = How(bench.checkpoint, GOLDEN, make_grid("rank", 16), None, Law(temperature), False, 0,
              bench.checkpoint.step_law, None)  # fmt: skip
    length = max(map(len, given)) + 64
    table = new_table(bench.ready, len(given), length)
    templates = [torch.nn.functional.pad(one, (0, 64), value=-1)[None] for one in given]
    drafts = [start_draft(how, bench.ready, table, [i], one, at=row)
              for row, (i, one) in enumerate(zip(indices, templates, strict=True))]  # fmt: skip
    for moves in zip(*(draft.moves(bench.ready.device) for draft in drafts), strict=True):
        take_step(bench.ready, table, list(zip(drafts, moves, strict=True)))
    return [draft.state.z_BL[0, len(one) : len(one) + 64].tolist() for draft, one in zip(drafts, given, strict=True)]


def with_cache(bench: Bench) -> None:
    """Whole blocks, the full forward at a block's start included. A threshold's work at a fixed number of tokens a
    forward is that of `confidence` in blocks: head and confidence at every blank of the block, so many revealed. As
    `--compile` has it: steps are CUDA graphs."""
    plans = (("confidence in blocks", Confidence()), ("golden in blocks", GOLDEN))
    for kind in ("dual", "prefix"):
        for B in BATCHES:
            for tokens in TOKENS:
                for label, inner in plans if kind == "dual" else plans[:1]:
                    loop = stepped(
                        bench, bench.compiled, Blocks(BLOCK, inner), ANSWER // tokens, B, 1.0, Caching(kind)
                    )  # fmt: skip
                    a_block = BLOCK // tokens
                    seconds, peak = timed(bench, loop, a_block, a_block * (2 if B == 1 else 1))
                    facts = {"batch": B, "temperature": 1.0, "tokens_a_forward": tokens,
                             "ms_a_forward": seconds * 1e3, "ms_a_token": seconds * 1e3 / (tokens * B),
                             "peak_gib": peak}  # fmt: skip
                    bench.say(f"{kind} cache, {label}", facts)


def distillation(bench: Bench) -> None:
    """A step of MCD on a LoRA adapter, the teacher being the same weights with the adapter off."""
    from unmask.bench.lora import lora_step

    batch, length = (4, 1024) if bench.cuda else (1, 128)
    facts = lora_step(bench.model, bench.place, length=length, batch=batch)
    bench.say("a step of LoRA distillation (MCD)", facts)


# --- what it comes to -------------------------------------------------------------------------------------------------


def ratios(bench: Bench) -> None:
    """How many times faster than plain, at equal batch and temperature."""
    lines = bench.result["lines"]
    plain = {(row["name"], row["batch"], row["temperature"]): row["ms_a_forward"]
             for row in lines if row["name"].startswith("plain")}  # fmt: skip
    bench.result["ratios"] = found = []
    for row in lines:
        if not row["name"].startswith(("ours", "dual", "prefix")):
            continue
        B, temperature, name = row["batch"], row["temperature"], row["name"]
        facts = {"name": name, "batch": B, "temperature": temperature, "steps": row.get("steps")}
        for base in ("plain", "plain on our body"):
            if (base, B, temperature) in plain:
                facts[f"faster a forward than {base}"] = plain[base, B, temperature] / row["ms_a_forward"]
        if row.get("tokens_a_forward") and ("plain", B, temperature) in plain:
            tokens = row["tokens_a_forward"]
            a_token = plain["plain", B, temperature] / B
            facts |= {"tokens_a_forward": tokens, "faster a token than plain at 1 token a forward":
                      a_token / row["ms_a_token"]}  # fmt: skip
        found.append(facts)
        shown = ", ".join(f"{key} {value:.2f}" if isinstance(value, float) else f"{key} {value}"
                          for key, value in facts.items() if value is not None)  # fmt: skip
        print(shown, flush=True)
    read = next((row["ms"] for row in lines if row["name"] == "weights read once"), None)
    for row in lines:
        if read and row["name"].startswith("cached block step"):
            bench.result.setdefault("over_reading", {})[row["name"]] = row["ms"] / read
            print(f"{row['name']}: {row['ms'] / read:.2f}x the time to read the weights once", flush=True)
