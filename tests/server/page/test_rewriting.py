"""Looking at tokens and having words written again, with the mouse and without; `either` is each of the two pages."""

import math
import re

import pytest
from tests.server.page.driving import OVER, STATES, go_to, numbers, open_at, token_texts

import unmask


def test_a_token_shows_its_probability_and_its_runners_up(page, either) -> None:
    open_at(page, either)
    page.hover(".tokens .drawn")
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
    page.eval("document.querySelector('.tokens [tabindex=\"0\"]').focus()")  # without a mouse
    while page.eval("document.activeElement.className") != "drawn":
        page.press("ArrowRight")
    page.wait("!document.querySelector('#card').hidden")


def test_the_probability_is_that_of_the_law(page, played) -> None:
    """One blank: the page's probability is exp(log q) of the same draw in Python."""
    open_at(page, played, "#text=It+was+the+best+of+___+,&steps=3&seed=5")
    same = unmask.sample("pocket", 1, 3, infill="It was the best of ___ ,", seed=5, device="cpu")
    wanted = [math.exp(value) for value, given in zip(same.log_q[0].tolist(), same.given[0], strict=True) if not given]
    for k, probability in enumerate(wanted):
        page.hover(f".tokens .drawn:nth-child({[s != 'given' for s in page.eval(STATES)].index(True) + 1 + k})")
        shown = page.eval("document.querySelector('#card .drawn span:last-child').textContent")
        assert float(shown.strip("<% ")) == pytest.approx(100 * probability, abs=0.51)


def test_chosen_words_are_rewritten_and_the_rest_stands(page, either) -> None:
    open_at(page, either)
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
