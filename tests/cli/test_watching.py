"""What `unmask sample` shows of a text that is half written: on the screen, in a page, in a picture."""

import io
import json
import re

import pytest
import torch
from PIL import Image
from rich.console import Console

from unmask.cli.animation import Camera, Film, _colour, lay_out, save_html
from unmask.cli.watch import BLOCK, Watch, legible, token_texts, visible_texts
from unmask.data.tokenizer import Tokenizer
from unmask.sampling.samples import StepView
from unmask.sampling.verbs import sample

TEXT = "once upon a time there lived a wolf. naïve café, 日本語 🙂! "

# --- half-written text ------------------------------------------------------------------------------------------------


def test_characters_spread_over_tokens_come_out_whole(random_checkpoint):
    tokenizer = random_checkpoint().tokenizer
    ids = Tokenizer.train([], 257).encode("naïve café, 日本語 🙂!")  # a token is a byte
    for codec, tokens in ((tokenizer, tokenizer.encode(TEXT)), (Tokenizer.train([], 257), ids)):
        texts = token_texts(tokens, codec)
        assert "".join(texts) == codec.decode(tokens)
        assert "\ufffd" not in "".join(texts)
    assert texts.count("") > 10  # the bytes before the last of a character
    broken = ids[:3]  # ends within ï
    assert "".join(token_texts(broken, codec)) == codec.decode(broken) == "na\ufffd"
    assert token_texts(codec.encode("a\x1b[2Jb\r\n"), codec) == ["a", "␛", "[", "2", "J", "b", "␍", "\n"]
    assert token_texts([7, 8], None) == [" 7", " 8"]  # a model without text


def test_hidden_tokens_leave_gaps(random_checkpoint):
    tokenizer = random_checkpoint().tokenizer
    ids = tokenizer.encode("once upon a time")
    hidden = [*ids[:1], -5, *ids[2:], -5, -5]
    texts = visible_texts(hidden, -5, tokenizer)
    assert [text is None for text in texts] == [token == -5 for token in hidden]
    assert "".join(text or "" for text in texts) == tokenizer.decode(ids[:1]) + tokenizer.decode(ids[2:])


def views_of(checkpoint, **settings):
    views = []
    made = sample(checkpoint, callback=views.append, device="cpu", **settings)
    return made, views


def test_watching_shows_blocks_that_turn_into_text(random_checkpoint):
    checkpoint = random_checkpoint()
    made, views = views_of(checkpoint, n=2, steps=6, prompt="once upon", seed=4)
    screen = Console(file=io.StringIO(), force_terminal=True, width=500, height=40, color_system="truecolor")
    with Watch(checkpoint.tokenizer, screen, lasts=0) as watch:
        for view in views:
            start = screen.file.tell()
            watch(view)
            coloured = screen.file.getvalue()[start:]
            plain = re.sub(r"\x1b\[[\d;]*m", "", coloured)
            assert plain.count(BLOCK) == int((view.tokens_BL == view.mask_id).sum())
            assert plain.count("once upon") == 2
            assert f"step {view.step} of 6" in plain
    assert all(legible(text).split("\n")[0].split(" ")[0] in plain for text in made.text)
    # what is new in the last step stands out, what was there before does not
    new = int((views[-2].tokens_BL == views[-1].mask_id).sum())
    assert 0 < coloured.count("\x1b[1;30;43m") <= new < 10
    silent = Console(file=io.StringIO(), force_terminal=False)
    with Watch(checkpoint.tokenizer, silent) as watch:
        watch(views[0])
    assert silent.file.getvalue() == ""


def test_watch_without_a_terminal_gives_the_text(unmask):
    assert unmask("--watch", "--steps", "3")[0] == unmask("--steps", "3")[0]


# --- animations -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["--steps 5", "--steps 8 --plan iid --grid uniform --remask cap --eta 0.4"])
def test_the_page_replays_to_the_text(words, unmask, tmp_path):
    out, _ = unmask("--prompt", "once upon", *words.split(), "--html", "film.html", "--seed", "2")
    page = (tmp_path / "film.html").read_text(encoding="utf-8")
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])
    steps = data["steps"]
    assert steps == int(words.split()[1])

    def at(step):
        return [[text for when, text in changes if when <= step][-1] for changes in data["changes"]]

    assert "".join(at(steps)) == "".join(data["final"]) == legible(out.removesuffix("\n"))
    assert "".join(text for text in at(0) if text) == "once upon"  # before the first step only what was given
    assert [text is not None for text in at(0)] == data["given"]
    hidden = [at(step).count(None) for step in range(steps + 1)]
    if "remask" in words:
        assert any(None in [text for _, text in changes[1:]] for changes in data["changes"])
    else:
        assert hidden == sorted(hidden, reverse=True)
        assert [len(changes) for changes in data["changes"]] == [1 if given else 2 for given in data["given"]]
    for outside in ("http:", "https:", "src=", "@import", "url("):
        assert outside not in page


def test_hostile_text_stays_text(tmp_path):
    words = ["</script><script>alert(1)</script>", " {{DATA}}", " <!-- &amp;", " \\u003c \u2028"]

    class Codec:
        def decode(self, ids):
            return "".join(words[token] for token in ids)

    camera = Camera()
    given = torch.zeros(1, len(words), dtype=torch.bool)
    camera(StepView(1, 1, torch.arange(len(words))[None], given, (0,), mask_id=300))
    save_html(camera.film(Codec(), "a & <b>"), tmp_path / "film.html")
    page = (tmp_path / "film.html").read_text(encoding="utf-8")
    assert page.count("<script") == page.count("</script>") == 2  # the page's own: the data and the program
    assert "<title>unmask: a &amp; &lt;b&gt;</title>" in page
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    assert data["final"] == words
    assert data["changes"] == [[[0, None], [1, word]] for word in words]


def test_the_gif_shows_every_step_and_rests_at_the_end(unmask, tmp_path):
    unmask("--steps", "4", "--n", "2", "--gif", "film.gif", "--prompt", "once upon")
    pictures, durations = [], []
    with Image.open(tmp_path / "film.gif") as film:
        for frame in range(film.n_frames):
            film.seek(frame)
            durations.append(film.info["duration"])
            pictures.append(film.convert("RGB"))
    assert len(pictures) == 1 + 4 + 1  # blank, the steps, at rest
    assert len({picture.size for picture in pictures}) == 1
    assert durations[-1] >= 3000 > 4 * max(durations[1:-1])
    blank = (0xE4, 0xE2, 0xDA)
    grey = [sum(count for count, colour in picture.getcolors(1 << 20) if _near(colour, blank)) for picture in pictures]
    assert grey == sorted(grey, reverse=True)
    assert grey[0] > 10 * grey[-1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["film.gif"]


def _near(colour, other):
    return max(abs(a - b) for a, b in zip(colour, other, strict=True)) < 4


def test_lines_break_between_words_and_only_then_within():
    pieces = lay_out(["ab", "c", " de", "f\n", "g", " ", "x" * 12], width=5, measure=len)
    assert [(piece.token, piece.text, piece.x, piece.line) for piece in pieces[:5]] == [
        (0, "ab", 0, 0), (1, "c", 2, 0), (2, "de", 0, 1), (3, "f", 2, 1), (4, "g", 0, 2),
    ]  # fmt: skip
    assert "".join(piece.text for piece in pieces[5:]) == "x" * 12
    assert max(piece.x + piece.width for piece in pieces) <= 5
    assert pieces[-1].line == 5


def test_a_token_has_the_colour_of_the_step_that_it_stands_since():
    film = Film([[None, "a"], ["b", "a"], [None, "a"], ["b", "a"]], ["b", "a"], [False, True], "remasked")
    assert film.since_TL == [[0, 0], [1, 0], [2, 0], [3, 0]]
    assert len({_colour(step / 16, is_new) for step in range(1, 17) for is_new in (True, False)}) == 32
