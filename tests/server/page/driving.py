"""What the tests of the page do over and over: open a link, read the texts, move the slider."""

DONE = "document.querySelector('#play')?.getAttribute('aria-label') === 'Play again'"
OVER = f"{DONE} && !document.body.classList.contains('busy')"
TEXT = "[...document.querySelectorAll('{box} .tokens')].map(box => box.textContent.replaceAll('↵', ''))"
STATES = "[...document.querySelectorAll('.tokens span')].map(word => word.classList[0])"
CLASSIC = "#text=Once+upon+a+time&length=48&steps=6&seed=3&plan=golden"


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
