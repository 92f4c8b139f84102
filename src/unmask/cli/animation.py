"""`--gif` and `--html`: one sample from blank to text, saved as an animation, each token coloured by its step.

The end is known when it is saved, so every token has its place from the start and hidden ones are blocks of their own
width: the text appears, it does not move. Only a token that remasking takes back may have had another width.

Shapes: T frames, the first before any step; L positions.
"""

from __future__ import annotations

import colorsys
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.cli.watch import token_texts
from unmask.core.errors import UserError
from unmask.core.files import write_bytes, write_text
from unmask.sampling.infill import TextCodec
from unmask.sampling.samples import StepView

if TYPE_CHECKING:
    from PIL.Image import Image

HUES = 45, 265  # degrees, from the first step to the last: yellow, green, blue


@dataclass(frozen=True)
class Film:
    """What is shown: the text of every token in every frame, None where it is hidden."""

    texts_TL: list[list[str | None]]
    final_L: list[str]
    given_L: list[bool]
    caption: str

    @property
    def steps(self) -> int:
        return len(self.texts_TL) - 1

    @cached_property
    def since_TL(self) -> list[list[int]]:
        """The step at which what stands there appeared."""
        since_TL = [[0] * len(self.final_L)]
        for step in range(1, len(self.texts_TL)):
            same_L = (now == before for now, before in zip(*self.texts_TL[step - 1 : step + 1], strict=True))
            since_TL.append([since if same else step for since, same in zip(since_TL[-1], same_L, strict=True)])
        return since_TL


class Camera:
    """A callback for `sample` that keeps every step of its first sample."""

    def __init__(self) -> None:
        self._ids_TL: list[list[int]] = []
        self._given_L: list[bool] = []
        self._mask_id = -1

    def __call__(self, view: StepView) -> None:
        if 0 not in view.indices:
            return
        row = view.indices.index(0)
        if not self._ids_TL:
            self._given_L, self._mask_id = view.given_BL[row].tolist(), view.blank
            self._ids_TL.append(view.tokens_BL[row].masked_fill(~view.given_BL[row], view.blank).tolist())
        self._ids_TL.append(view.tokens_BL[row].tolist())

    def film(self, codec: TextCodec | None, caption: str) -> Film:
        """What was seen, decoded."""
        assert self._ids_TL, "nothing was sampled under this camera"
        final_ids = self._ids_TL[-1]
        final_L = token_texts(final_ids, codec)

        def text(i: int, token: int) -> str | None:
            if token == self._mask_id:
                return None
            return final_L[i] if token == final_ids[i] else token_texts([token], codec)[0]

        texts_TL = [[text(i, token) for i, token in enumerate(ids_L)] for ids_L in self._ids_TL]
        return Film(texts_TL, final_L, self._given_L, caption)


def check_name(path: Path | None, suffix: str) -> None:
    """Refuse a misleading name before any work is done."""
    if path is not None and path.suffix.lower() != suffix:
        raise UserError(f"--{suffix[1:]} writes a {suffix} file: {str(path)!r} must end in {suffix}")


def save_html(film: Film, path: Path) -> None:
    """A page that needs nothing else: the tokens, and for each of them the steps at which it changes."""
    from jinja2 import Environment, FileSystemLoader

    changes_L = [
        [[step, texts_L[i]] for step, texts_L in enumerate(film.texts_TL) if film.since_TL[step][i] == step]
        for i in range(len(film.final_L))
    ]
    data = {"final": film.final_L, "given": film.given_L, "changes": changes_L, "steps": film.steps}
    page = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True).get_template(
        "animation.html.j2"
    )
    write_text(path, page.render(film=film, data=data, hues=HUES))


# --- gif --------------------------------------------------------------------------------------------------------------

FINE = 2  # drawn so many times larger and scaled down: smooth letters and corners
WIDTH, MARGIN, SIZE, LINE, SMALL = 880, 44, 21, 36, 15  # pixels of the finished picture
PAPER, INK, FAINT, BLANK, GIVEN = "#fbfaf6", "#22252a", "#8a8b86", "#e4e2da", "#1a5fb4"
MOST_FRAMES = 160
FIRST, LAST = 900, 4000  # milliseconds; the frames between share SPAN
SPAN, SHORTEST, LONGEST = 7000, 50, 500


@dataclass(frozen=True)
class Piece:
    """A part of a token's text at its place."""

    token: int
    text: str
    x: float
    line: int
    width: float


def lay_out(texts_L: list[str], width: float, measure: Callable[[str], float]) -> list[Piece]:
    """Words from left to right, broken at spaces and newlines, and inside a word only if it is wider than a line."""
    pieces: list[Piece] = []
    x, line = 0.0, 0
    for word in _words(texts_L):
        if word[0][1].isspace():
            for _, space in word:
                if "\n" in space:
                    x, line = 0.0, line + space.count("\n")
                elif x > 0:
                    x += measure(" ") * len(space)
            continue
        sizes = [measure(text) for _, text in word]
        if x > 0 and x + sum(sizes) > width:
            x, line = 0.0, line + 1
        for (token, text), size in zip(word, sizes, strict=True):
            parts = [(text, size)] if size <= width else [(letter, measure(letter)) for letter in text]
            for part, part_size in parts:
                if x > 0 and x + part_size > width:
                    x, line = 0.0, line + 1
                pieces.append(Piece(token, part, x, line, part_size))
                x += part_size
    return pieces


def _words(texts_L: list[str]) -> Iterator[list[tuple[int, str]]]:
    """Runs of (token, text) that belong together: all of a word, or all of a space."""
    word: list[tuple[int, str]] = []
    for token, text in enumerate(texts_L):
        for part in re.findall(r"\n|[^\S\n]+|\S+", text):
            if word and (part.isspace() or word[-1][1].isspace()):
                yield word
                word = []
            word.append((token, part))
    if word:
        yield word


class _Painter:
    """Draws frames; all of them have one size."""

    def __init__(self, film: Film) -> None:
        self.film = film
        self.font, self.small = _font(SIZE * FINE), _font(SMALL * FINE)
        measure = lru_cache(maxsize=None)(self.font.getlength)
        across = (WIDTH - 2 * MARGIN) * FINE
        full_TL = (
            [final if text is None else text for text, final in zip(texts_L, film.final_L, strict=True)]
            for texts_L in film.texts_TL
        )
        self.pieces_T = [lay_out(texts_L, across, measure) for texts_L in full_TL]
        lines = 1 + max((piece.line for pieces in self.pieces_T for piece in pieces), default=0)
        self.caption = film.caption
        while self.small.getlength(self.caption) > 0.7 * across:
            self.caption = self.caption[:-2] + "…"
        self.size = WIDTH * FINE, (2 * MARGIN + lines * LINE + 2 * SMALL) * FINE

    def paint(self, frame: int, before: int) -> Image:
        """One frame; tokens that appeared after the frame `before` stand out."""
        from PIL import Image, ImageDraw

        film, steps = self.film, self.film.steps
        image = Image.new("RGB", self.size, PAPER)
        draw = ImageDraw.Draw(image)
        for piece in self.pieces_T[frame]:
            since, given = film.since_TL[frame][piece.token], film.given_L[piece.token]
            left, top = MARGIN * FINE + piece.x, (MARGIN + piece.line * LINE) * FINE
            is_hidden = film.texts_TL[frame][piece.token] is None
            gap = FINE if is_hidden else 0  # blocks stand apart
            box = left + gap, top, left + piece.width - gap, top + (LINE - 6) * FINE
            if not given and box[0] < box[2]:
                colour = BLANK if is_hidden else _colour(since / max(1, steps), is_new=since > before)
                draw.rounded_rectangle(box, radius=4 * FINE, fill=colour)
            if not is_hidden:
                middle = top + (LINE - 6) * FINE / 2
                draw.text((left, middle), piece.text, GIVEN if given else INK, self.font, anchor="lm")
        width, height = self.size
        foot = height - MARGIN * FINE
        draw.text((MARGIN * FINE, foot), f"step {frame} of {steps}", INK, self.small, anchor="lm")
        draw.text((width - MARGIN * FINE, foot), self.caption, FAINT, self.small, anchor="rm")
        for step in range(1, frame + 1):
            ends = width * (step - 1) / steps, width * step / steps
            draw.rectangle((ends[0], height - 6 * FINE, ends[1], height), fill=_colour(step / steps, is_new=True))
        return image.reduce(FINE)


def _colour(share: float, is_new: bool) -> tuple[int, int, int]:
    """Of a step, 0 the first and 1 the last; strong where a token is new, pale afterwards."""
    hue = (HUES[0] + (HUES[1] - HUES[0]) * share) / 360
    red, green, blue = colorsys.hls_to_rgb(hue, 0.72 if is_new else 0.88, 0.9)
    return round(255 * red), round(255 * green), round(255 * blue)


def _font(size: int) -> Any:
    from matplotlib import get_data_path
    from PIL import ImageFont

    return ImageFont.truetype(str(Path(get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"), size)


def save_gif(film: Film, path: Path) -> None:
    """Very many steps are thinned out: a frame then shows several steps' tokens as new."""
    from PIL import Image

    most = min(film.steps, MOST_FRAMES)
    kept = [round(k * film.steps / most) for k in range(most + 1)]
    shots = [*zip(kept, [0, *kept], strict=False), (film.steps, film.steps)]  # (frame, the one before); at last none
    painter = _Painter(film)
    palette = _palette([painter.paint(*shot) for shot in (*shots[:: 1 + len(shots) // 8], shots[-1])])
    images = (painter.paint(*shot).quantize(palette=palette, dither=Image.Dither.NONE) for shot in shots)
    between = max(SHORTEST, min(LONGEST, SPAN // most))
    durations = [FIRST, *[between] * most, LAST]
    buffer = io.BytesIO()
    next(images).save(buffer, "GIF", save_all=True, append_images=images, duration=durations, loop=0)
    write_bytes(path, buffer.getvalue())


def _palette(images: list[Image]) -> Image:
    """One palette for all frames: a GIF with a palette a frame flickers and is larger."""
    from PIL import Image

    sheet = Image.new("RGB", (images[0].width, sum(image.height for image in images)))
    for k, image in enumerate(images):
        sheet.paste(image, (0, k * image.height))
    return sheet.quantize(128)
