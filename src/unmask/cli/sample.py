"""`unmask sample`: write text, watch it appear, save that as an animation.

Text goes to stdout and one line about the run to stderr, so that `unmask sample > story.txt` holds only text, in UTF-8.

`--json` prints JSON lines. The first is the run: {"kind": "run", ...} with everything that was really used (versions,
device, model, plan, grid, NFE, dtype of the draw, seed). `plan` is the plan with its settings:
    {"name": "golden"}, and so on for every plan without settings
    {"name": "confidence", "score": "probability", "threshold": null, "ties": "chance"}
    {"name": "blocks", "size": 32, "inner": {the plan within a block}}
Under a threshold `steps` and `grid` are null: they were not used. Then one line a sample, in order:
    kind     "sample"
    index    its number, from 0: with the same seed, sample i is the same whatever n, batch or number of processes
    text     null if the model has no tokenizer
    tokens   token ids
    given    true for each token that was given (prompt, suffix, fixed words)
    nfe      forwards this sample took part in
    log_q    log-probability of all drawn tokens, in nats, each under the law it was drawn from
    token_log_q   the same for each token, 0 where given
Both log_q are null under legacy_fp32, whose race has no law to record.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from unmask.core.errors import UserError

if TYPE_CHECKING:
    from unmask.checkpoint.io import Checkpoint
    from unmask.plans.grids import Grid
    from unmask.plans.plan import Plan
    from unmask.plans.remask import Remask
    from unmask.sampling.samples import Samples, StepView

DEFAULT = "pocket"
MOST_STEPS = 10_000  # more than anybody published: a slip of the finger, and minutes of steps that reveal nothing


def sample(
    pattern: str | None = None,
    /,
    *,
    model: str = DEFAULT,
    n: int | None = None,
    steps: int | None = None,
    length: list[int] | None = None,
    prompt: list[str] | None = None,
    suffix: list[str] | None = None,
    plan: str = "golden",
    block_size: int | None = None,
    threshold: float | None = None,
    grid: list[str] | None = None,
    remask: Literal["cap", "rescale", "confidence"] | None = None,
    eta: float | None = None,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int | None = None,
    draw: Literal["float64", "fp32", "legacy_fp32"] = "float64",
    seed: int = 0,
    batch: int | None = None,
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto",
    precision: Literal["auto", "bf16", "fp32"] = "auto",
    compile: bool = False,
    weights: Literal["ema", "raw"] = "ema",
    out: Path | None = None,
    json: bool = False,
    watch: bool = False,
    gif: Path | None = None,
    html: Path | None = None,
) -> None:
    """Write text, from nothing, from a prompt, or around words that stand: unmask sample "Once upon a ____ there ____"

    Many processes: `torchrun --nproc_per_node 8 -m -- unmask sample ...` gives the same samples (without -- torchrun
    takes --n for its own).

    Args:
        pattern: text with blanks to fill: a blank is three underscores or more, one a token
        model: a bundled model's name, a folder, a file or a hub name
        n: how many samples (default: one for each prompt)
        steps: steps of the sampler (default: 32)
        length: tokens in a sample, one value or one for each sample (default: the model's)
        prompt: text to begin with, one or one for each sample
        suffix: text to end with, one or one for each sample
        plan: which positions a step reveals: iid, permutation, golden, van_der_corput, stride, dilated,
            left_to_right, confidence, entropy, or blocks (from left to right, golden inside each)
        block_size: positions in a block of --plan blocks (default: 32)
        threshold: with --plan confidence or blocks the probability, with entropy the nats, at which a position is
            sure enough to be revealed; this sets the number of steps, and puts confidence inside blocks
        grid: how far each step goes: rank, uniform, cosine, mdlm, a list of times between 1 and 0, or the .json of
            `unmask fit-grid`, with --steps its best grid of that many steps (default: rank)
        remask: let early mistakes be mended, by this rule of ReMDM; needs --plan iid and a grid of times
        eta: how much is masked again (default: the rule's usual value)
        temperature: below 1 the likelier tokens gain
        top_p: draw from the fewest likeliest tokens that have this probability together
        top_k: draw from this many likeliest tokens
        draw: precision of the draw; legacy_fp32 is the published algorithm with its bias, for --plan iid --grid mdlm
        seed: names the noise
        batch: samples at a time (default: 8 on a CPU, on a GPU what fills it); changes the speed, not the samples
        device: where to run
        precision: of the network; auto is bf16 on CUDA, else fp32
        compile: compile the network: pays for many samples on a GPU
        weights: the averaged weights or the raw ones, where the checkpoint has both
        out: write to this file instead of stdout
        json: print JSON lines: the run, then one line a sample
        watch: show the text appear, step by step
        gif: save how the first sample appeared as a .gif
        html: the same as a page to play in a browser
    """
    from unmask.cli.animation import check_name
    from unmask.core.files import check_writable
    from unmask.core.ranks import is_first
    from unmask.plans.plan import choose_grid
    from unmask.sampling import sample as library

    check_name(gif, ".gif")
    check_name(html, ".html")
    if out is not None and out.absolute() in [film.absolute() for film in (gif, html) if film is not None]:
        raise UserError(f"{out} cannot hold both the texts and a film of them: give --out another name")
    for target in (out, gif, html) if is_first() else ():  # who writes has to be able to
        check_writable(target)
    chosen, wanted = _choose_plan(plan, block_size, threshold), _times(grid) if grid else None
    times = choose_grid(chosen, wanted, steps)  # before any work
    checkpoint = _load(model, weights)
    check_steps("steps", times.steps, checkpoint.model.length)
    if n is None:
        n = max((len(values) for values in (prompt, suffix, length) if values), default=1)
    audience = _Audience(checkpoint, n, watch, film=bool(gif or html), prints=out is None and not json)
    with audience:
        samples = library.sample(
            checkpoint, n, steps, plan=chosen, grid=wanted,
            remask=_choose_remask(remask, eta), length=_one_or_each(length), prompt=_one_or_each(prompt),
            suffix=_one_or_each(suffix), infill=pattern, temperature=temperature, top_p=top_p, top_k=top_k, draw=draw,
            seed=seed, batch=batch, device=device, precision=precision, compile=compile, callback=audience.callback,
            finished=audience.finished,
        )  # fmt: skip
    if is_first():
        _note(times, plan, grid)
        audience.print_rest(samples)
        _write(samples, out, json)
        audience.save(samples, Path(model).name, gif, html)
        print(_summary(samples, audience.seconds), file=sys.stderr)


def check_steps(name: str, steps: int, length: int) -> None:
    """More steps than tokens are a law of their own on iid and cost no forwards, but there is an end to it."""
    most = max(MOST_STEPS, length)
    if steps > most:
        raise UserError(f"{name} must be at most {most:,}, not {steps:,}: {length}, one a token, is enough for most")


def _load(model: str, weights: Literal["ema", "raw"]) -> Checkpoint:
    from unmask.checkpoint.io import load
    from unmask.checkpoint.locate import bundled

    if model == DEFAULT and not Path(model).exists() and model not in bundled():
        raise UserError(f"no model {DEFAULT!r} comes with this installation: say with --model which folder, file or "
                        "hub name to use")  # fmt: skip
    return load(model, weights=weights)


def _choose_plan(name: str, block_size: int | None, threshold: float | None) -> Plan:
    """The plan of a name, with its own settings."""
    from unmask.plans.plan import Blocks, Confidence, make_plan

    plan = make_plan(name)
    if block_size is not None:
        if not isinstance(plan, Blocks):
            raise UserError(f"--block_size is for --plan blocks, not {name}")
        plan = replace(plan, size=block_size)
    if threshold is None:
        return plan
    if isinstance(plan, Blocks):
        return replace(plan, inner=Confidence(threshold=threshold))
    if isinstance(plan, Confidence):
        return replace(plan, threshold=threshold)
    raise UserError(f"--threshold is for --plan confidence, entropy or blocks, not {name}")


def _note(times: Grid, plan: str, grid: list[str] | None) -> None:
    """Say on stderr if the grid was fitted for another plan."""
    from unmask.plans.grids import fitted_for_another

    sentence = fitted_for_another(times, plan, f"{plan}@{' '.join(grid or [])}")
    if sentence:
        print(sentence, file=sys.stderr)


def _times(words: list[str]) -> str | list[float]:
    try:
        return [float(word) for word in words]
    except ValueError:
        if len(words) == 1:
            return words[0]
        raise UserError(f"--grid takes one name, one .json file, or times such as 0.8 0.5 0.2, not "
                        f"{' '.join(words)!r}") from None  # fmt: skip


def _choose_remask(rule: Literal["cap", "rescale", "confidence"] | None, eta: float | None) -> Remask | None:
    from unmask.plans.remask import Remask

    if rule is None and eta is not None:
        raise UserError("--eta belongs to --remask: say which rule, cap, rescale or confidence")
    return None if rule is None else Remask(rule, eta)


def _one_or_each(values: list[Any] | None) -> Any:
    """A single value is for every sample."""
    return values[0] if values and len(values) == 1 else values


class _Audience:
    """Everybody who looks on while samples are made, and how long it took without them. Only the first process has one.

    Texts are printed as they come, but under --watch, which has the terminal to itself, at the end.
    """

    def __init__(self, checkpoint: Checkpoint, n: int, watch: bool, *, film: bool, prints: bool) -> None:
        from unmask.cli.animation import Camera
        from unmask.cli.stream import Printer, StepBar
        from unmask.cli.watch import Watch
        from unmask.core.ranks import is_first

        here = is_first()
        self.codec, self.n = checkpoint.tokenizer, n
        self.camera = Camera() if film and here else None
        self.watch = Watch(self.codec) if watch and here else None
        self.bar = StepBar(n) if here and not watch else None
        self.printer = Printer(n) if prints and here else None
        self.seconds = 0.0
        self._stack = ExitStack()

    @property
    def callback(self) -> Callable[[StepView], None] | None:
        return self._show if self.camera or self.watch or (self.bar and self.bar.shown) else None

    def _show(self, view: StepView) -> None:
        began = time.perf_counter()
        for onlooker in (self.camera, self.watch, self.bar):
            if onlooker is not None:
                onlooker(view)
        self.seconds -= time.perf_counter() - began

    @property
    def finished(self) -> Callable[[Samples, list[int]], None] | None:
        return self._take if self.printer or (self.bar and self.bar.shown) else None

    def _take(self, samples: Samples, indices: list[int]) -> None:
        """A batch is done."""
        began = time.perf_counter()
        if self.bar is not None:
            self.bar.done += len(indices)
            self.bar.wipe()
        if self.printer is not None:
            self.printer.take(samples, indices)
            if self.watch is None:
                self.printer.print_ready()
        self.seconds -= time.perf_counter() - began

    def print_rest(self, samples: Samples) -> None:
        """What is not printed yet: other processes' texts, and all of them after --watch."""
        if self.printer is not None:
            self.printer.take(samples, [*range(len(samples))])
            self.printer.print_all()

    def __enter__(self) -> _Audience:
        if self.watch:
            self._stack.enter_context(self.watch)
        self.seconds -= time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.seconds += time.perf_counter()
        self._stack.close()
        if self.bar is not None:
            self.bar.wipe()
        if kind is not None and issubclass(kind, KeyboardInterrupt):  # Ctrl-C, or SIGTERM
            count = self.printer.print_all() if self.printer else 0
            raise kind(f"{count} of {self.n} texts were printed" if count else "nothing was written")

    def save(self, samples: Samples, model: str, gif: Path | None, html: Path | None) -> None:
        """The animations that were asked for."""
        from unmask.cli.animation import save_gif, save_html
        from unmask.cli.stream import counted

        if self.camera is None:
            return
        forwards = counted(int(samples.nfe[0]), "forward")
        said = [model, samples.record["plan"]["name"], forwards]
        if samples.record["temperature"] != 1:
            said.append(f"T = {samples.record['temperature']:g}")
        film = self.camera.film(self.codec, " · ".join(said))
        if gif is not None:
            save_gif(film, gif)
        if html is not None:
            save_html(film, html)


# --- what is printed --------------------------------------------------------------------------------------------------


def _write(samples: Samples, out: Path | None, json: bool) -> None:
    """JSON, and the file, which is written whole or not at all; plain text on stdout came as it was made."""
    from unmask.cli.stream import plain_lines
    from unmask.core.files import write_text

    if json:
        lines = [*json_lines(samples)]
    else:
        n = len(samples)
        texts = ("\n".join(plain_lines(samples, i, i, n, is_terminal=False)) for i in range(n))
        lines = ["\n\n".join(texts)]
    if out is not None:
        write_text(out, "".join(f"{line}\n" for line in lines))
    elif json:
        for line in lines:
            print(line)
        sys.stdout.flush()


def json_lines(samples: Samples) -> Iterator[str]:
    """The run, then the samples; see the top of this file."""
    from json import dumps

    yield dumps({"kind": "run", **samples.record}, ensure_ascii=False, allow_nan=False)
    for index in range(len(samples)):
        is_real = samples.tokens[index] >= 0  # shorter samples are padded
        log_q = samples.log_q[index][is_real]
        has_law = not bool(log_q.isnan().any())
        yield dumps({
            "kind": "sample",
            "index": index,
            "text": samples.text[index] if samples.text else None,
            "tokens": samples.tokens[index][is_real].tolist(),
            "given": samples.given[index][is_real].tolist(),
            "nfe": int(samples.nfe[index]),
            "log_q": float(log_q.sum()) if has_law else None,
            "token_log_q": log_q.tolist() if has_law else None,
        }, ensure_ascii=False, allow_nan=False)  # fmt: skip


def _summary(samples: Samples, seconds: float) -> str:
    """One line about the run."""
    from unmask.cli.stream import counted, nats

    n, drawn, record = len(samples), int((~samples.given).sum()), samples.record
    many = f"{n} texts, " if n > 1 else ""
    return (
        f"{many}{counted(drawn, 'token')} in {seconds:.2f} s ({drawn / seconds:,.0f} tokens/s) · "
        f"{counted(record['nfe'], 'forward')}{nats(samples, [*range(n)])} · "
        f"{record['plan']['name']}, drawn in {record['draw']} · {record['device']}"
    )
