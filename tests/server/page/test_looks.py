"""Mistakes, light and dark, wide and narrow, and that no other host is asked."""

import pytest
from tests.server.page.driving import CLASSIC, OVER, open_at


@pytest.mark.parametrize(
    ("fragment", "said"),
    [
        ("#steps=", "Steps must be a whole number between 1 and 1024."),
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
    open_at(page, played, "#text=so+____")
    page.type("#text", hostile)
    page.click("#write")
    page.wait("document.querySelector('.tokens').textContent.includes('<b>')")
    assert page.eval("document.querySelectorAll('.tokens img, .tokens b').length") == 0


@pytest.mark.parametrize(("either", "width", "scheme"), [("served", 1280, "light"), ("served", 390, "dark"),
                                                         ("static", 390, "light")], indirect=["either"])  # fmt: skip
def test_light_and_dark_wide_and_narrow(page, either, width: int, scheme: str) -> None:
    """Nothing overflows, words can be read, and the button turns one into the other and is remembered."""
    page.resize(width, 844)
    page.media(prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
    open_at(page, either, f"{CLASSIC}&model2=pocket&plan2=iid&steps2=6")
    page.click(".tokens .drawn")
    assert page.eval("document.documentElement.scrollWidth") == width
    outside = (
        "[...document.querySelectorAll('header *, main *:not(.unseen, option), footer *')].filter(one => {"
        f"const box = one.getBoundingClientRect(); return box.width && (box.left < 0 || box.right > {width}); }})"
        ".map(one => one.outerHTML)"
    )
    assert page.eval(outside) == []
    tops = "[...document.querySelectorAll('#side-{} select, #side-{} input')].map(x => x.getBoundingClientRect().top)"
    for side in "ab":
        assert len(set(page.eval(tops.replace("{}", side)))) == 1, "model, plan and steps stand in one row"
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
    open_at(page, played)
    page.click(".tokens .drawn")
    page.click(".rewrite")
    page.wait("document.querySelector('.tokens .kept')")
    page.wait(OVER)
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


def test_a_server_that_is_gone_is_one_line(page, played) -> None:
    open_at(page, played)
    page.call("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0)
    page.click("#write")
    page.wait("!document.querySelector('#error').hidden")
    said = page.eval("document.querySelector('#error').textContent")
    assert said == "The server does not answer. Is `unmask play` still running?"
    page.complaints.clear()  # the browser's own note
    page.call("Network.emulateNetworkConditions", offline=False, latency=0, downloadThroughput=-1, uploadThroughput=-1)
    page.click("#write")
    page.wait(f"document.querySelector('#error').hidden && {OVER}")
