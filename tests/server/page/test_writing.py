"""Writing, comparing and sharing in a real browser, on the page of `unmask play`; `either` is each of the two pages."""

import re
from urllib.parse import parse_qs

import pytest
from tests.server.page.driving import CLASSIC, OVER, STATES, go_to, numbers, open_at, texts

import unmask


def test_type_run_and_see_what_python_writes(page, played) -> None:
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


def test_blanks_are_filled_and_enter_writes(page, either) -> None:
    open_at(page, either)
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
    same = unmask.sample("pocket", 1, 6, infill="Once upon a ____ there was", seed=3, plan="golden", device="cpu")
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
    page.media(prefers_reduced_motion="no-preference")
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


def test_two_plans_side_by_side_from_the_same_noise(page, either) -> None:
    """Texts whose tokens stay the same when noise of 1e-4 moves every logit, more than another runtime does."""
    open_at(page, either, "#text=Once+upon+a+time&length=32&steps=6&seed=1&plan=golden")
    page.click("#compare")
    page.choose("#side-b [name=plan]", "iid")
    page.type("#side-b [name=steps]", "3")
    page.click("#write")
    page.wait(
        "document.querySelectorAll('.numbers').length === 2 && document.querySelectorAll('.numbers')[1].textContent"
    )
    page.wait(OVER)
    wanted = {"prompt": "Once upon a time", "length": 32, "seed": 1, "device": "cpu"}
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
    same = unmask.sample("pocket-mcd", 1, 4, plan="golden", prompt="Once upon a time", length=48, seed=3, device="cpu")
    assert texts(page)[1] == same.text[0]


def test_a_link_carries_the_settings_and_nothing_else_does(page, played, browser) -> None:
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
