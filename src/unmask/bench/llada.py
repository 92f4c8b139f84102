"""`unmask bench llada`: our sampler on LLaDA's shape against its published `generate`, both on random weights.

A setting's forwards are all alike, so a few of each are timed, in turn with those they are compared with. "Plain" is
`generate` written plainly, on transformers' layers as they are or on the body that ours has; ours goes as it is, and as
`--compile` has it. What fails in one part is shown, and the next part goes on.

Shapes: B rows, L positions.
"""

from __future__ import annotations

import json as js
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from unmask.bench.plain_llada import plain_step
from unmask.bench.timing import Columns, Contender, Row, gib, in_turns, over
from unmask.checkpoint.io import Checkpoint
from unmask.core import provenance
from unmask.core.ranks import pick_device
from unmask.core.show import table
from unmask.inference.cache import Caching, Memory
from unmask.inference.categorical import Law
from unmask.inference.ready import Ready
from unmask.plans.grids import make_grid
from unmask.plans.plan import GOLDEN, Blocks, Confidence, Plan, make_plan
from unmask.sampling.drafts import How, new_table, start_draft, take_step

PROMPT, ANSWER, BLOCK = 128, 256, 32
L = PROMPT + ANSWER
A_TURN = (1, 4)  # forwards of a turn, of several rows and of one
BATCHES, TEMPERATURES, STEPS, TOKENS = (1, 8), (0.0, 1.0), (256, 64, 32), (2, 4, 8)


def llada(
    *, size: Literal["8b", "tiny"] = "8b", device: str = "auto", seconds: float = 240.0, out: Path | None = None
) -> dict[str, Any]:
    """Time LLaDA's published algorithm and ours, side by side, on random weights.

    Args:
        size: the model's shape
        device: where to run: auto, cpu, cuda or mps
        seconds: no further part and no further round begins after so many
        out: where to write everything as JSON, after every part
    """
    bench = Bench(pick_device(device), size, seconds, out)
    bench.run("cached block step", block_step)
    for B in BATCHES:  # the smaller one first: it would ride along in the larger one's graph
        for temperature in TEMPERATURES:
            bench.run(
                f"no cache, batch {B}, temperature {temperature:g}", partial(no_cache, B=B, temperature=temperature)
            )
    bench.run("LoRA distillation", distillation)
    for B in BATCHES:
        bench.run(f"cache, batch {B}", partial(with_cache, B=B))
    bench.run("company", company)
    aims(bench)
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

    def run(self, name: str, part: Callable[[Bench], None]) -> None:
        """One part; what it raises is shown and kept."""
        if self.late():
            self.result["errors"][name] = f"not begun: {self.spent():.0f} s had passed"
        else:
            try:
                part(self)
            except Exception:
                self.result["errors"][name] = traceback.format_exc()
                print(traceback.format_exc(), flush=True)
            if self.cuda:
                torch.cuda.empty_cache()
        if self.out is not None:
            self.out.write_text(js.dumps(self.result, indent=1))

    def spent(self) -> float:
        return time.perf_counter() - self.begun

    def late(self) -> bool:
        return self.spent() > self.seconds

    def compare(self, contenders: list[Contender], rounds: int = 5) -> list[Row]:
        rows = in_turns(contenders, self.place, rounds, self.late)
        self.result["lines"] += rows
        return rows

    def say(self, name: str, facts: Row) -> None:
        """One line of the result, printed at once."""
        self.result["lines"].append({"name": name, **facts})
        shown = ", ".join(f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
                          for key, value in facts.items() if value is not None)  # fmt: skip
        print(f"[{self.spent():5.1f} s] {name}: {shown}", flush=True)

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
    how = How(bench.checkpoint, plan, make_grid("rank", steps), Law(temperature), cache=cache)
    memory = None if cache is None else Memory(ready, cache, B, L)
    table = new_table(ready, B, L, memory)
    draft = start_draft(how, ready, table, list(range(B)), bench.given(B))
    for move in draft.moves(ready.device):
        take_step(ready, table, [(draft, move)])
        yield


def reading(bench: Bench) -> Contender:
    """All weights but the table of embeddings, read once, by the rate of a large copy: what it reads and what it
    writes."""
    skipped = bench.model.model.embed_tokens.weight
    weights = sum(value.nbytes for value in bench.model.parameters() if value is not skipped)
    size = 2**32 if bench.cuda else 2**24

    def copies() -> Iterator[None]:
        source = torch.empty(size, dtype=torch.uint8, device=bench.place).random_()
        target = torch.empty_like(source)
        while True:
            target.copy_(source)
            yield

    return Contender({"name": "weights read once", "gigabytes": weights / 1e9}, copies(), 2, 5, size=2 * size / weights)


def block_step(bench: Bench) -> None:
    """One step of the dual cache within a block: the body, a CUDA graph; then with head and draw of 4 tokens."""
    ready, caching, per_block = bench.compiled, Caching("dual"), BLOCK // 4

    def body() -> Iterator[None]:  # the first is the full forward of a block's first step
        memory = Memory(ready, caching, 1, L)
        z_BL = torch.where(bench.given(1) < 0, bench.model.mask_id, bench.given(1)).to(bench.place)
        while True:
            memory.features(z_BL, torch.tensor([[0, PROMPT + 4 * BLOCK, PROMPT + 5 * BLOCK]]))
            yield

    whole = stepped(bench, ready, Blocks(BLOCK, GOLDEN), ANSWER // 4, 1, 1.0, caching)
    read, *steps = bench.compare(
        [
            reading(bench),
            Contender({"name": "cached block step, body"}, body(), 5, 20),
            Contender({"name": "cached block step, head and draw of 4 tokens too"}, whole, per_block, per_block - 1, 1),
        ]
    )
    print(f"[{bench.spent():5.1f} s] weights read once: {read['ms_a_forward']:.3g} ms", flush=True)
    for row in steps:
        row["over_reading"] = over(row, read)
        print(f"{row['name']}: {row['ms_a_forward']:.3g} ms, {spread(row['over_reading'])} times that", flush=True)


def published(bench: Bench, batch: int, temperature: float, body: Any) -> Contender:
    """`generate` at one token a row and forward; on transformers' layers, or on another body."""
    z_BL = torch.where(bench.given(batch) < 0, bench.model.mask_id, bench.given(batch)).to(bench.place)

    def loop() -> Iterator[None]:
        while True:
            plain_step(body, bench.model, z_BL, PROMPT + BLOCK, torch.full((batch,), 1), temperature)
            yield

    name = "plain" if body is bench.model else "plain on our body"
    return Contender({"name": name, "batch": batch, "temperature": temperature}, loop(), 2, A_TURN[batch == 1])


def no_cache(bench: Bench, *, B: int, temperature: float) -> None:
    """Plain on both bodies; ours in both orders and at each number of steps, as it is and compiled."""
    setting = {"batch": B, "temperature": temperature}
    found = [published(bench, B, temperature, body) for body in (bench.model, bench.ready.body)]
    for name, ready in (("ours", bench.ready), ("ours, compiled", bench.compiled)):
        for order, plan in (("llada's order", make_plan("llada")), ("golden", GOLDEN)):
            for steps in STEPS:
                facts = {"name": f"{name}, {order}", **setting, "steps": steps, "tokens_a_forward": ANSWER // steps}
                loop = stepped(bench, ready, plan, steps, B, temperature)
                found.append(Contender(facts, loop, 2, A_TURN[B == 1]))
    rows = against_plain(bench, found, 5)
    show(rows, f"[{bench.spent():5.1f} s] no cache, batch {B}, temperature {temperature:g}")


def with_cache(bench: Bench, *, B: int) -> None:
    """Whole blocks, the full forward at a block's start included. A threshold's work at a fixed number of tokens a
    forward is that of `confidence` in blocks: head and confidence at every blank of the block, so many revealed. As
    `--compile` has it: steps are CUDA graphs."""
    plans = (("confidence", Confidence()), ("golden", GOLDEN))
    setting = {"batch": B, "temperature": 1.0}
    found = [published(bench, B, 1.0, bench.model)]
    for kind in ("dual", "prefix"):
        for label, inner in plans if kind == "dual" else plans[:1]:
            for tokens in TOKENS:
                facts = {"name": f"{kind} cache, {label}", **setting, "tokens_a_forward": tokens}
                loop = stepped(bench, bench.compiled, Blocks(BLOCK, inner), ANSWER // tokens, B, 1.0, Caching(kind))
                found.append(Contender(facts, loop, BLOCK // tokens, BLOCK // tokens))
    rows = against_plain(bench, found, 3)
    for row in rows[1:]:
        row["faster_a_token"] = [ratio * row["tokens_a_forward"] for ratio in row["faster"]]
    show(rows, f"[{bench.spent():5.1f} s] with a cache, batch {B}, temperature 1")


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
    how = How(bench.checkpoint, GOLDEN, make_grid("rank", 16), Law(temperature))
    length = max(map(len, given)) + 64
    table = new_table(bench.ready, len(given), length)
    templates = [torch.nn.functional.pad(one, (0, 64), value=-1)[None] for one in given]
    drafts = [start_draft(how, bench.ready, table, [i], one, at=row)
              for row, (i, one) in enumerate(zip(indices, templates, strict=True))]  # fmt: skip
    for moves in zip(*(draft.moves(bench.ready.device) for draft in drafts), strict=True):
        take_step(bench.ready, table, list(zip(drafts, moves, strict=True)))
    return [draft.state.z_BL[0, len(one) : len(one) + 64].tolist() for draft, one in zip(drafts, given, strict=True)]


def distillation(bench: Bench) -> None:
    """A step of MCD on a LoRA adapter, the teacher being the same weights with the adapter off."""
    from unmask.bench.lora import lora_step

    batch, length = (4, 1024) if bench.cuda else (1, 128)
    facts = lora_step(bench.model, bench.place, length=length, batch=batch)
    bench.say("a step of LoRA distillation (MCD)", facts)


# --- what it comes to -------------------------------------------------------------------------------------------------


def against_plain(bench: Bench, contenders: list[Contender], rounds: int) -> list[Row]:
    """How many times faster a forward is than the first one's."""
    plain, *others = rows = bench.compare(contenders, rounds)
    for row in others:
        row["faster"] = over(plain, row)
    for row in rows:
        row["ms_a_token"] = row["ms_a_forward"] / (row["batch"] * row.get("tokens_a_forward", 1))
    return rows


def aims(bench: Bench) -> None:
    rows = bench.result["lines"]
    for name in ("ours, llada's order", "ours, compiled, llada's order"):
        for temperature, aim in ((1.0, 1.3), (0.0, 1.0)):
            here = [row for row in rows if row["name"] == name and row["temperature"] == temperature]
            if here:
                what = f"{name}, no cache, temperature {temperature:g}, times as fast as plain: at least {aim:g}"
                print(f"aim: {what}; found {min(row['faster'][0] for row in here):.3g}", flush=True)
    for row in rows:
        if "over_reading" in row:
            print(f"aim: {row['name']}, times reading: at most 1.5; found {row['over_reading'][0]:.3g}", flush=True)
        if "LoRA" in row["name"] and row["peak_gib"] is not None:
            print(f"aim: {row['name']}, peak GiB: below 120; found {row['peak_gib']:.3g}", flush=True)


def show(rows: list[Row], title: str) -> None:
    from rich.console import Console

    columns: Columns = {
        "": lambda row: row["name"],
        "tokens a forward": lambda row: str(row.get("tokens_a_forward", 1)),
        "ms a forward": lambda row: f"{row['ms_a_forward']:.4g}",
        "ms a token": lambda row: f"{row['ms_a_token']:.4g}",
        "x faster": lambda row: spread(row.get("faster")),
        "x a token": lambda row: spread(row.get("faster_a_token")),
        "peak GiB": gib,
    }
    console = Console(highlight=False, width=120)
    console.print(table(title, list(columns), [[cell(row) for cell in columns.values()] for row in rows]))


def spread(ratio: list[float] | None) -> str:
    """The median, the least and the most."""
    return "" if ratio is None else "{:.3g} ({:.3g} to {:.3g})".format(*ratio)
