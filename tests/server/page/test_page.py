"""The page of `unmask play` in a real browser: what a visitor sees after every click and key."""

from __future__ import annotations

import math
import re
from urllib.parse import parse_qs

import pytest

import unmask

DONE = "document.querySelector('#play')?.getAttribute('aria-label') === 'Play again'"
OVER = f"{DONE} && !document.body.classList.contains('busy')"
TEXT = "[...document.querySelectorAll('{box} .tokens')].map(box => box.textContent.replaceAll('↵', ''))"
STATES = "[...document.querySelectorAll('.tokens span')].map(word => word.classList[0])"
CLASSIC = "#text=Once+upon+a+time&length=48&steps=6&seed=3"


def open_at(page, played, fragment: str = CLASSIC) -> None:
    """Open a link and wait until all is written."""
    page.open(f"{played}/{fragment}")
    page.wait(OVER)


def texts(page) -> list[str]:
    return page.eval(TEXT.format(box=""))


def token_texts(page) -> list[str]:
    return page.eval("[...document.querySelectorAll('.tokens span')].map(word => word.textContent)")


def go_to(page, step: int) -> None:
    """With the keys of the slider, as anybody without a mouse."""
    page.eval("document.querySelector('#slider').focus()")
    page.press("Home")
    for _ in range(step):
        page.press("ArrowRight")
    page.wait(f"document.querySelector('#count').textContent.startsWith('{step} /')")


def numbers(page) -> list[str]:
    return page.eval("[...document.querySelectorAll('.numbers')].map(one => one.textContent)")


# --- writing ----------------------------------------------------------------------------------------------------------


def test_type_run_and_see_what_python_writes(page, played) -> None:
    page.media(prefers_reduced_motion="reduce")
    open_at(page, played, "#length=16&steps=2")
    page.type("#text", "The old man and the")
    page.type("#length", "40")
    page.type("#side-a [name=steps]", "5")
    page.type("#seed", "11")
    page.click("#write")
    page.wait("document.querySelector('#count').textContent === '5 / 5'")
    page.wait(OVER)
    same = unmask.sample("pocket", 1, 5, prompt="The old man and the", length=40, seed=11, device="cpu")
    assert texts(page) == same.text
    assert numbers(page)[0].startswith("5 forwards · ")
    shown = float(numbers(page)[0].split("log-probability ")[1].replace("−", "-"))
    assert shown == pytest.approx(float(same.log_q.sum()), abs=0.06)


def test_blanks_are_filled_and_enter_writes(page, played) -> None:
    open_at(page, played)
    page.type("#text", "Once upon a ____ there was")
    assert page.eval("document.querySelector('#length').disabled"), "a text with blanks has its own length"
    page.press("Enter")
    page.wait("document.querySelector('.tokens').textContent.includes('there was')")
    page.wait(OVER)
    (text,) = texts(page)
    assert text.startswith("Once upon a")
    assert text.endswith(" there was")
    states = page.eval(STATES)
    assert states.count("drawn") == 4
    assert set(states) == {"drawn", "given"}
    same = unmask.sample("pocket", 1, 6, infill="Once upon a ____ there was", seed=3, device="cpu")
    assert text == same.text[0]


def test_words_appear_step_by_step_in_the_colour_of_their_step(page, played) -> None:
    """Nothing is hidden at the end, all but the prompt at the beginning; a later step has another hue."""
    open_at(page, played)
    hidden, hues = [], set()
    for step in range(7):
        go_to(page, step)
        hidden.append(page.eval(STATES).count("hidden"))
        new = "[...document.querySelectorAll('.tokens .new')].map(word => getComputedStyle(word).backgroundColor)"
        colours = set(page.eval(new))
        assert len(colours) == (step > 0), "the tokens of one step have one colour"
        hues |= colours
    prompt = len(unmask.load("pocket").tokenizer.encode("Once upon a time"))
    assert hidden[0] == 48 - prompt
    assert hidden[-1] == 0
    assert sorted(set(hidden), reverse=True) == hidden, "every step reveals some"
    assert len(hues) == 6


def test_it_plays_by_itself_and_again(page, played) -> None:
    page.open(f"{played}/{CLASSIC}")
    seen = {page.wait("document.querySelector('#count').textContent.match(/^([1-5]) . 6/)?.[1]")}
    page.wait(OVER)
    page.click("#play")
    seen.add(page.wait("document.querySelector('#count').textContent.match(/^([1-5]) . 6/)?.[1]"))
    page.click("#play")  # pause
    stood = page.eval("document.querySelector('#count').textContent")
    page.eval("new Promise(done => setTimeout(done, 1200))")
    assert page.eval("document.querySelector('#count').textContent") == stood
    page.click("#play")
    page.wait(OVER)
    assert all(seen)


def test_stop_leaves_the_server_free_and_the_page_alive(page, played) -> None:
    open_at(page, played)
    page.type("#length", "256")
    page.type("#side-a [name=steps]", "256")
    page.click("#write")
    page.wait("document.querySelector('#write').textContent === 'Stop'")
    page.click("#write")
    page.wait("document.querySelector('#write').textContent === 'Write'")
    assert page.eval("document.querySelector('#error').hidden")
    page.type("#side-a [name=steps]", "2")
    page.click("#write")
    page.wait("document.querySelector('#count').textContent === '2 / 2'")


# --- looking and rewriting --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["mouse", "keyboard"])
def test_a_token_shows_its_probability_and_its_runners_up(page, played, way: str) -> None:
    open_at(page, played)
    if way == "mouse":
        page.hover(".tokens .drawn")
    else:
        page.eval("document.querySelector('.tokens [tabindex=\"0\"]').focus()")
        while page.eval("document.activeElement.className") != "drawn":
            page.press("ArrowRight")
    page.wait("!document.querySelector('#card').hidden")
    rows = page.eval("[...document.querySelectorAll('#card li')].map(row => [...row.children].map(x => x.textContent))")
    shares = [float(share.strip("<% ")) for _, share in rows]
    assert len(rows) in (5, 6), "five runners-up, and the token itself where it is none of them"
    assert shares == sorted(shares, reverse=True)
    assert 0 < sum(shares) <= 100.5
    drawn = page.eval("document.querySelector('#card .drawn span').textContent")
    assert drawn == page.eval("document.querySelector('.tokens .drawn').textContent")
    assert re.match(r"step \d of 6", page.eval("document.querySelector('#card > span').textContent"))
    page.press("Escape")
    page.wait("document.querySelector('#card').hidden")


def test_the_probability_is_that_of_the_law(page, played) -> None:
    """One blank: the page's probability is exp(log q) of the same draw in Python."""
    open_at(page, played, "#text=It+was+the+best+of+___+,&steps=3&seed=5")
    same = unmask.sample("pocket", 1, 3, infill="It was the best of ___ ,", seed=5, device="cpu")
    wanted = [math.exp(value) for value, given in zip(same.log_q[0].tolist(), same.given[0], strict=True) if not given]
    for k, probability in enumerate(wanted):
        page.hover(f".tokens .drawn:nth-child({[s != 'given' for s in page.eval(STATES)].index(True) + 1 + k})")
        shown = page.eval("document.querySelector('#card .drawn span:last-child').textContent")
        assert float(shown.strip("<% ")) == pytest.approx(100 * probability, abs=0.51)


def test_chosen_words_are_rewritten_and_the_rest_stands(page, played) -> None:
    page.media(prefers_reduced_motion="reduce")
    open_at(page, played)
    before, given = token_texts(page), page.eval(STATES).count("given")
    page.click(".tokens .drawn:nth-of-type(12)")
    page.click(".tokens .drawn:nth-of-type(30)")
    chosen = page.eval("[...document.querySelectorAll('.tokens .chosen')].map(word => Number(word.dataset.position))")
    assert {11, 29} <= set(chosen)
    assert "2 words" in page.eval("document.querySelector('.chosen-count').textContent")
    page.click(".rewrite")
    page.wait("document.querySelector('.tokens .kept')")
    page.wait(OVER)
    after, states = token_texts(page), page.eval(STATES)
    assert [i for i, state in enumerate(states) if state == "drawn"] == chosen
    assert [i for i in range(48) if before[i] != after[i]] != [], "other noise, and another word"
    assert all(before[i] == after[i] for i in range(48) if i not in chosen)
    assert states.count("given") == given, "the prompt is still the prompt"
    assert int(numbers(page)[0].split()[0]) <= len(chosen), "no more steps than blanks"
    page.click(".undo")
    assert token_texts(page) == before


def test_a_word_is_all_its_tokens_and_keep_lets_it_stand(page, played) -> None:
    open_at(page, played)
    words = token_texts(page)
    spaces = page.eval("[...document.querySelectorAll('.tokens span')].map(word => word.previousSibling.data)")
    inner = next(i for i in range(5, 48) if not spaces[i] and words[i].isalpha() and words[i - 1].isalpha())
    page.click(f".tokens span:nth-of-type({inner + 1})")
    chosen = page.eval("[...document.querySelectorAll('.tokens .chosen')].map(word => Number(word.dataset.position))")
    assert {inner - 1, inner} <= set(chosen)
    assert page.eval("document.querySelector('.chosen-count').textContent").startswith("1 word ")
    page.click(".keep")
    assert page.eval("document.querySelectorAll('.tokens .chosen').length") == 0


def test_an_earlier_step_can_be_written_on_in_another_way(page, played) -> None:
    """What stands at that step stays but for the chosen word; the blanks are filled anew."""
    page.media(prefers_reduced_motion="reduce")
    open_at(page, played)
    go_to(page, 3)
    states, before = page.eval(STATES), token_texts(page)
    page.click(".tokens .drawn")
    kept = [i for i, state in enumerate(states) if state == "drawn"][1:]
    page.click(".rewrite")
    page.wait("document.querySelector('.tokens .kept')")
    page.wait(OVER)
    after = token_texts(page)
    chosen_word = sum(state == "kept" for state in page.eval(STATES))
    assert 0 < chosen_word <= len(kept)
    for i, state in enumerate(page.eval(STATES)):
        if state == "kept":
            assert states[i] == "drawn"
            assert before[i] == after[i]


def test_everything_works_without_a_mouse(page, played) -> None:
    """Tab order, arrows between tokens, Space to choose, Enter to rewrite."""
    open_at(page, played)
    page.eval("document.querySelector('#text').focus()")
    stops = []
    for _ in range(16):
        page.press("Tab")
        stops.append(
            page.eval("document.activeElement.id || document.activeElement.name || document.activeElement.role")
        )
    wanted = ["model", "plan", "steps", "length", "temperature", "seed", "compare", "another", "write", "option"]
    wanted += ["play", "slider"]
    assert stops[: len(wanted)] == wanted
    page.eval("document.querySelector('.tokens [tabindex=\"0\"]').focus()")
    at = "Number(document.activeElement.dataset.position)"
    page.press("End")
    assert page.eval(at) == 47
    page.press("ArrowUp")
    up = page.eval(at)
    assert up < 47
    page.press("ArrowDown")
    assert page.eval(at) > up
    page.press("ArrowLeft")
    page.press("Home")
    assert page.eval(at) == 0
    page.press("ArrowDown")
    page.press(" ")
    chosen = page.eval("document.querySelectorAll('.tokens [aria-selected=true]').length")
    assert chosen >= 1
    page.press("Escape")
    assert page.eval("document.querySelectorAll('.tokens [aria-selected=true]').length") == 0
    page.press(" ")
    page.press("Enter")
    page.wait("document.querySelector('.tokens .kept')")
    page.wait(OVER)
    assert page.eval(STATES).count("drawn") == chosen


# --- comparing and sharing --------------------------------------------------------------------------------------------


def test_two_plans_side_by_side_from_the_same_noise(page, played) -> None:
    open_at(page, played)
    page.click("#compare")
    page.choose("#side-b [name=plan]", "iid")
    page.type("#side-b [name=steps]", "3")
    page.click("#write")
    page.wait(
        "document.querySelectorAll('.numbers').length === 2 && document.querySelectorAll('.numbers')[1].textContent"
    )
    page.wait(OVER)
    wanted = {"prompt": "Once upon a time", "length": 48, "seed": 3, "device": "cpu"}
    sides = [unmask.sample("pocket", 1, steps, plan=plan, **wanted) for plan, steps in (("golden", 6), ("iid", 3))]
    assert texts(page) == [side.text[0] for side in sides]
    assert [re.match(r"(\d+) forwards · \d+\.\d\d s", one)[1] for one in numbers(page)] == ["6", "3"]
    left, right = page.eval("[...document.querySelectorAll('.pane')].map(pane => pane.getBoundingClientRect().left)")
    assert left < right, "side by side"
    go_to(page, 2)
    assert [one.split(" · ")[0] for one in numbers(page)] == ["2 forwards"] * 2
    page.click("#compare")
    page.click("#write")
    page.wait("document.querySelectorAll('.pane').length === 1")


def test_two_models_side_by_side(page, played) -> None:
    open_at(page, played, f"{CLASSIC}&model2=pocket-mcd&plan2=golden&steps2=4")
    titles = page.eval("[...document.querySelectorAll('h2')].map(one => one.textContent)")
    assert titles == ["pocket · golden · 6 steps", "pocket-mcd · golden · 4 steps"]
    same = unmask.sample("pocket-mcd", 1, 4, prompt="Once upon a time", length=48, seed=3, device="cpu")
    assert texts(page)[1] == same.text[0]


def test_a_link_carries_the_settings_and_nothing_else_does(page, played, browser) -> None:
    page.media(prefers_reduced_motion="reduce")
    open_at(page, played)
    page.type("#text", "A café & a = ____ 100% #1")
    page.type("#temperature", "0.8")
    page.choose("#side-a [name=plan]", "left_to_right")
    page.click("#write")
    page.wait("document.querySelector('h2').textContent.includes('left_to_right')")
    page.wait(OVER)
    link = page.eval("location.href")
    told = parse_qs(link.split("#")[1])
    assert told["text"] == ["A café & a = ____ 100% #1"]
    assert (told["temperature"], told["plan"], told["seed"]) == (["0.8"], ["left_to_right"], ["3"])
    assert not any("caf" in request for request in page.requests), "a fragment is not sent to anybody"
    other = browser.page()
    other.media(prefers_reduced_motion="reduce")
    other.open(link)
    other.wait(OVER)
    assert texts(other) == texts(page)
    assert other.eval("document.querySelector('#text').value") == "A café & a = ____ 100% #1"
    other.close()


def test_the_link_is_copied(page, played) -> None:
    page.browser.call(
        "Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"],
        browserContextId=page.context,
    )  # fmt: skip
    open_at(page, played)
    page.type("#seed", "77")
    page.click("#share")
    page.wait("document.querySelector('#share').textContent === 'Copied'")
    assert "seed=77" in page.eval("navigator.clipboard.readText()")


# --- mistakes, looks, and other hosts ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fragment", "said"),
    [
        ("#steps=", "Steps must be a whole number between 1 and 1024."),
        ("#steps=2.5", "Steps must be a whole number between 1 and 1024."),
        ("#length=257", "Length must be a whole number between 1 and 256."),
        ("#temperature=0", "Temperature must be a number between 0.05 and 5."),
        ("#text=" + "word+" * 300, "the given text has"),
        ("#model=nothing", "This link asks for model nothing, which is not here."),
    ],
)
def test_a_mistake_is_one_line_on_the_page(page, played, fragment: str, said: str) -> None:
    page.open(f"{played}/{fragment}")
    page.wait("!document.querySelector('#error').hidden")
    line = page.eval("document.querySelector('#error').textContent")
    assert line.startswith(said)
    assert "\n" not in line
    page.complaints.clear()  # the browser's own note of the answer 400
    page.type("#text", "So")
    for field, value in (("#length", "12"), ("#temperature", "1"), ("#side-a [name=steps]", "2")):
        page.type(field, value)
    page.click("#write")
    page.wait(f"document.querySelector('#error').hidden && {OVER}")


def test_a_text_is_shown_as_text(page, played) -> None:
    hostile = "<img src=x onerror=alert(1)><b>bold</b> ____"
    page.media(prefers_reduced_motion="reduce")
    open_at(page, played, "#text=so+____")
    page.type("#text", hostile)
    page.click("#write")
    page.wait("document.querySelector('.tokens').textContent.includes('<b>')")
    assert page.eval("document.querySelectorAll('.tokens img, .tokens b').length") == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_light_and_dark_wide_and_narrow(page, played, width: int, scheme: str) -> None:
    """Nothing overflows, words can be read, and the button turns one into the other and is remembered."""
    page.resize(width, 844)
    page.media(prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
    open_at(page, played, f"{CLASSIC}&model2=pocket&plan2=iid&steps2=6")
    page.click(".tokens .drawn")
    assert page.eval("document.documentElement.scrollWidth") == width
    outside = (
        "[...document.querySelectorAll('header *, main *:not(.unseen, option), footer *')].filter(one => {"
        f"const box = one.getBoundingClientRect(); return box.width && (box.left < 0 || box.right > {width}); }})"
        ".map(one => one.outerHTML)"
    )
    assert page.eval(outside) == []
    assert least_contrast(page) >= 4.5
    assert is_dark(page) == (scheme == "dark")
    page.click("#theme")
    assert is_dark(page) != (scheme == "dark")
    assert least_contrast(page) >= 4.5
    page.call("Page.reload")
    page.wait(OVER)
    assert is_dark(page) != (scheme == "dark")


def is_dark(page) -> bool:
    return luminance(page.eval(RGB % "getComputedStyle(document.body).backgroundColor")) < 0.2


RGB = (
    "(colour => { const area = document.createElement('canvas').getContext('2d'); area.fillStyle = colour;"
    "area.fillRect(0, 0, 1, 1); return [...area.getImageData(0, 0, 1, 1).data].slice(0, 3); })(%s)"
)


def luminance(rgb: list[int]) -> float:
    """Relative luminance as WCAG 2 defines it."""
    linear = [part / 255 / 12.92 if part / 255 <= 0.03928 else ((part / 255 + 0.055) / 1.055) ** 2.4 for part in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def least_contrast(page) -> float:
    """Of the words of the texts on their colours, by WCAG 2."""
    words = "[...document.querySelectorAll('.tokens .drawn:not(.chosen, .white)')]"
    ink = f"getComputedStyle({words}[0]).color"
    page.wait("document.getAnimations().length === 0")
    colours = page.eval(f"{words}.map(word => {RGB % 'getComputedStyle(word).backgroundColor'})")
    text = luminance(page.eval(RGB % ink))
    pairs = [sorted((text, luminance(colour))) for colour in colours]
    return min((high + 0.05) / (low + 0.05) for low, high in pairs)


def test_nothing_is_asked_of_any_other_host(page, played) -> None:
    page.media(prefers_reduced_motion="reduce")
    open_at(page, played)
    page.click(".tokens .drawn")
    page.click(".rewrite")
    page.wait("document.querySelector('.tokens .kept')")
    page.click("#compare")
    page.click("#write")
    page.wait("document.querySelectorAll('.pane').length === 2")
    page.wait(OVER)
    assert len(page.requests) > 10
    assert {request for request in page.requests if not request.startswith(f"{played}/")} == set()
    refused = page.eval("fetch('http://127.0.0.2:9/').then(() => 'asked', () => 'refused')")
    assert refused == "refused"
    assert "Content Security Policy" in page.complaints[0], "the browser itself forbids it"
    page.complaints.clear()
