"""The report as files: that nothing is missing, and how a real browser shows it."""

import html.parser
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from tests.studies.made_up import made_up

from unmask.studies.report import write_report
from unmask.studies.report.words import headline

PARTS = (
    "What this means", "Path gap against own entropy", "N-step NELBO", "Two by two",
    "Speed-up at equal own entropy", "Diversity across samples", "Samples at equal NFE", "tokens/s", "Provenance",
    "At equal wall-clock",
)  # fmt: skip


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    write_report(made_up(), folder)
    return folder


class _Seen(html.parser.HTMLParser):
    """Elements that are opened and closed in order, and whatever they point to."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "link"):
            self.open.append(tag)
        self.links += [str(value) for name, value in attrs if name in ("href", "src", "srcset", "xlink:href")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_else(written: Path) -> None:
    text = (written / "report.html").read_text(encoding="utf-8")
    seen = _Seen()
    seen.feed(text)
    assert seen.open == []
    assert {link for link in seen.links if not link.startswith("#")} == {"data:,"}
    assert text.count("url(") == text.count("url(#")
    assert "<script" not in text
    assert "prefers-color-scheme:dark" in text
    assert "#d1495b" not in text[text.index("</style>") :], "plots follow light and dark"
    assert "&lt;said&gt;" in text, "samples are text, not markup"
    for part in PARTS:
        assert part in text, part
    table = text[text.index("beneath, the sampler&#39;s own entropy") :]
    own = r"<td>\d\.\d{3}<small>(own|words) \d\.\d{3}</small><small>PPL [\d.]+</small></td>"
    cells = re.findall(own, table[: table.index("</table>")])
    assert len(cells) == 5 * (2 * 4 + 2 * 2) + 4 + 2, "every score of a judge in the table has its entropy beneath"
    assert cells.count("words") == 1, "real text has none of its own"


def test_markdown_and_figures_stand_beside_it(written: Path) -> None:
    text = (written / "report.md").read_text(encoding="utf-8")
    linked = re.findall(r"\((figures/[^)]+)\)", text)
    assert len(linked) == 2
    for name in linked:
        root = ElementTree.parse(written / name).getroot()
        assert root.tag.endswith("svg")
        assert sum(element.tag.endswith("}use") for element in root.iter()) > 30, "a marker for every point"
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in rows)
    assert headline(made_up()).words in text


CHROMIUM = next((path for path in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if path), None)
PROBE = """<script>
const faults = [];
addEventListener("error", event => faults.push("error: " + event.message), true);
const log = console.error; console.error = (...words) => { faults.push("console: " + words.join(" ")); log(...words); };
addEventListener("load", () => {
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width) faults.push("the page is " + document.documentElement.scrollWidth);
  for (const element of document.querySelectorAll("main *")) {
    if (element.closest(".wide, pre, svg") && !element.matches(".wide, pre, svg")) continue;
    const box = element.getBoundingClientRect();
    if (box.width && (box.right > width + 1 || box.left < -1)) faults.push(element.tagName + "." + element.className);
  }
  for (const svg of document.querySelectorAll("svg.plot")) {
    const frame = svg.getBoundingClientRect();
    for (const word of svg.querySelectorAll("use")) {
      const box = word.getBoundingClientRect();
      if (box.left < frame.left - 1 || box.right > frame.right + 1) faults.push("cut: " + word.parentElement.outerHTML);
    }
  }
  document.body.dataset.width = width;
  document.body.dataset.faults = JSON.stringify(faults);
});
</script></head>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")
@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_shows_it_without_overflow_or_errors(written: Path, tmp_path: Path, width: int) -> None:
    """A headless window is at least 500 wide, so the narrow page is looked at through a frame."""
    text = (written / "report.html").read_text(encoding="utf-8").replace("<details>", "<details open>")
    (tmp_path / "page.html").write_text(text.replace("</head>", PROBE, 1), encoding="utf-8")
    (tmp_path / "frame.html").write_text(
        f'<body><iframe src="page.html" style="width:{width}px;height:900px;border:0"></iframe><script>'
        "addEventListener('load', () => { const seen = document.querySelector('iframe').contentDocument.body.dataset;"
        "document.body.dataset.seen = seen.width + ' ' + seen.faults; })</script>",
        encoding="utf-8",
    )
    assert CHROMIUM is not None
    flags = [
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
        "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
        "--enable-logging=stderr", "--allow-file-access-from-files", f"--user-data-dir={tmp_path / 'profile'}",
        f"--window-size={width + 40},1000", "--virtual-time-budget=3000", "--hide-scrollbars",
        "--dump-dom",
    ]  # fmt: skip
    command = [CHROMIUM, *flags, f"file://{tmp_path / 'frame.html'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    seen = re.search(r'data-seen="(\d+) ([^"]*)"', done.stdout)
    assert seen is not None, done.stdout[-500:] + done.stderr[-2000:]
    assert seen[1] == str(width)
    assert seen[2] == "[]"
    assert not [line for line in done.stderr.splitlines() if "CONSOLE" in line and "error" in line.lower()]
