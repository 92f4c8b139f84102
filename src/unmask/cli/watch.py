"""`--watch`: half-written text as a person can read it, and the terminal on which it appears step by step.

A token's text is found by decoding it with its visible neighbours, so that characters spread over several tokens come
out whole. The show goes to stderr and is wiped at the end: what stdout gets is the finished text, whoever reads it.

Shapes: B samples of a batch, L positions.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from unmask.sampling.infill import TextCodec
from unmask.sampling.samples import StepView

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.text import Text

BLOCK = "░░░"  # stands for one hidden token and is about as wide, so that the text stays in place as it appears
NEW, GIVEN, HIDDEN = "bold black on yellow", "bold cyan", "dim"
LASTS = 4.0  # seconds: a first batch that is done sooner is slowed down to this, else there is nothing to watch
LONGEST_HOLD = 0.5

_LEGIBLE = {
    **{code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"},  # ESC is ␛: a terminal would obey it
    **dict.fromkeys(range(127, 160), 0x2426),
}


def legible(text: str) -> str:
    """A model may write anything, control characters too: they become pictures of themselves."""
    return text.translate(_LEGIBLE)


def token_texts(ids: Sequence[int], codec: TextCodec | None) -> list[str]:
    """What each token adds to the text, made legible; a character that several spell is added by the last of them."""
    if codec is None:
        return [f" {token}" for token in ids]
    texts: list[str] = []
    context, done = 0, 0  # ids[context:done] are decoded already; they go along for decoders that look to the left
    for k in range(len(ids)):
        before, now = codec.decode(list(ids[context:done])), codec.decode(list(ids[context : k + 1]))
        is_whole = not now.endswith("\ufffd") or k == len(ids) - 1
        texts.append(legible(now[len(before) :]) if is_whole else "")
        if is_whole:
            context, done = done, k + 1
    return texts


def visible_texts(ids: Sequence[int], mask_id: int, codec: TextCodec | None) -> list[str | None]:
    """The text of every visible token, None where hidden; tokens that stand together are decoded together."""
    texts: list[str | None] = []
    while len(texts) < len(ids):
        start = end = len(texts)
        while end < len(ids) and ids[end] != mask_id:
            end += 1
        texts += token_texts(ids[start:end], codec)
        if end < len(ids):
            texts.append(None)
    return texts


def render(now_L: Tensor, before_L: Tensor, given_L: Tensor, mask_id: int, codec: TextCodec | None) -> Text:
    """One sample for the terminal: what is new since `before_L` stands out, what is hidden is a dim block."""
    from rich.text import Text

    shown = Text()
    fresh, given = (now_L != before_L).tolist(), given_L.tolist()
    for i, text in enumerate(visible_texts(now_L.tolist(), mask_id, codec)):
        if text is None:
            shown.append(" " if shown.plain and not shown.plain[-1].isspace() else "")
            shown.append(BLOCK, HIDDEN)
            continue
        body = text.lstrip()
        shown.append(text[: len(text) - len(body)])  # a highlighted space would look like a word
        shown.append(body, GIVEN if given[i] else NEW if fresh[i] else "")
    return shown


class Watch:
    """A callback for `sample` that shows the batch under way, for as long as its `with` block lasts.

    Where stderr is not a terminal it shows nothing.
    """

    def __init__(self, codec: TextCodec | None, console: Console | None = None, lasts: float = LASTS) -> None:
        from rich.console import Console
        from rich.live import Live

        self.codec, self.lasts = codec, lasts
        self.console = console or Console(stderr=True, highlight=False)
        self._live = Live(console=self.console, transient=True, auto_refresh=False)
        self._batch: tuple[int, ...] = ()
        self._before_BL: Tensor | None = None
        self._is_first_batch = True

    def __enter__(self) -> Watch:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def __call__(self, view: StepView) -> None:
        if not self.console.is_terminal:
            return
        began = time.monotonic()
        if view.indices != self._batch:
            self._is_first_batch = not self._batch
            self._batch, self._before_BL = view.indices, None
        self._live.update(self._picture(view), refresh=True)
        self._before_BL = view.tokens_BL
        if self._is_first_batch:
            hold = min(LONGEST_HOLD, self.lasts / view.steps)
            time.sleep(max(0.0, began + hold - time.monotonic()))

    def _picture(self, view: StepView) -> Group:
        from rich.columns import Columns
        from rich.console import Group
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar

        before_BL = self._before_BL
        if before_BL is None:
            before_BL = view.tokens_BL.masked_fill(~view.given_BL, view.blank)
        left = self.console.height - 2
        panels = []
        for row, index in enumerate(view.indices):
            text = render(view.tokens_BL[row], before_BL[row], view.given_BL[row], view.blank, self.codec)
            panels.append(Panel(text, title=f"sample {index + 1}", title_align="left", border_style="dim"))
            left -= len(self.console.render_lines(panels[-1]))
            if left < 0 and len(panels) > 1:  # as many as the terminal holds; one at least, though it be cut
                panels.pop()
                break
        bar = ProgressBar(total=view.steps, completed=view.step, width=min(40, self.console.width // 2))
        return Group(*panels, Columns([f"step {view.step} of {view.steps}", bar], padding=(0, 2)))
