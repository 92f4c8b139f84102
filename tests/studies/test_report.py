"""The report of made-up results: what it claims, that nothing is missing, and how a real browser shows it."""

from __future__ import annotations

import dataclasses
import functools
import html.parser
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch

from unmask.core.streams import stream
from unmask.metrics.score import Ratio, Score
from unmask.studies.analysis import analyse
from unmask.studies.report import write_report
from unmask.studies.report.figures import figures
from unmask.studies.report.tables import likelihood, limits
from unmask.studies.report.words import facts, headline, meaning
from unmask.studies.results import Bound, Cell, Results

STEPS, PLANS, TEMPERATURES, N = (4, 8, 16, 32, 64), ("iid", "golden"), (1.0, 0.9, 0.8, 0.7), 48
PROSE = (
    "The old man looked out over the water, and <said> nothing for a long while. “It is not the wind,” he told her at "
    "last; “it is the waiting.” She had heard that before, in another house, from another mouth, and it had not been "
    "true then either. averyveryverylongwordthatnobodywouldeverwritewithoutabreakinitsomewhereinthemiddleofalineoftext "
)


def _scores(**ratios: tuple[Ratio, str]) -> dict:
    found = {name: Score.of(ratio, unit, {}).to_json() for name, (ratio, unit) in ratios.items()}
    return {name: {k: v for k, v in said.items() if k != "record"} for name, said in found.items()}


def _cell(
    model: str, plan: str | None, steps: int | None, temperature: float | None, entropy: float, log_ppl: float
) -> Cell:
    name = f"{model} {plan} {steps} {temperature}"
    noise_2N = torch.randn(2, N, generator=stream(0, name), dtype=torch.float64)
    entropy_N = entropy + 0.05 * noise_2N[0]
    nll_N = 250 * (log_ppl + 0.08 * noise_2N[1] + 3 * (entropy_N - entropy))
    ppl, mean = Ratio.of(nll_N, torch.full((N,), 250), exponential=True), Ratio.mean(entropy_N)
    gap = Ratio.of(nll_N - 250 * (entropy - 0.6) * 1.1, torch.full((N,), 1000))
    looks = ("only 6.2% of its 4-grams are distinct, real text's 97.0%: texts repeat each other",)
    shares = {"distinct_4": 0.96, "self_bleu": 0.21, "coverage_4": 0.11, "repeated_4": 0.01, "information_gap_1": -0.02}
    extra = {key: (Ratio.mean(value + 0.01 * noise_2N[0]), "share") for key, value in shares.items()}
    if plan:
        extra["path_gap"] = (gap, "nats/byte")
    scores = _scores(gen_ppl=(ppl, "perplexity"), entropy=(mean, "nats"), **extra)
    nfe = None if plan is None else float(steps or 256)
    return Cell(
        model, plan, steps, temperature, N, nfe, nfe and 0.02 * N * nfe**0.9, 256 * N, scores,
        {"ppl": ppl, "entropy": mean} | ({"gap": gap} if plan else {}), (PROSE * 3, PROSE),
        looks if model == "parrot" else (),
    )  # fmt: skip


def _teacher(plan: str, steps: float, temperature: float) -> tuple[float, float]:
    """(entropy, log PPL) near what a 33M teacher gave; spread plans lose less at few steps."""
    entropy = 4.84 + 0.25 / steps - 1.9 * (1 - temperature) - 0.4 * (1 - temperature) ** 2
    error = (2.2 if plan == "iid" else 0.7) * steps**-0.75
    return entropy, 5.2 + error + 3.2 * (entropy - 4.84) + 0.9 * (entropy - 4.84) ** 2


@functools.cache
def made_up(gain: float = 3.0) -> Results:
    """A teacher, two rounds of a student that hides `gain` steps in one, a causal model, real text and a parrot."""
    cells, bounds = [], []
    for plan in PLANS:
        for temperature in (*TEMPERATURES, 0.84):
            for steps in (*STEPS, 128, 256):
                cells.append(_cell("teacher", plan, steps, temperature, *_teacher(plan, steps, temperature)))
        for temperature in TEMPERATURES:
            for steps in STEPS:
                for model, share in (("round 1", 0.5), ("student", 1.0)):
                    hidden = gain**share
                    cells.append(_cell(model, plan, steps, temperature,
                                       *_teacher(plan, steps * hidden, temperature * (1 - 0.16 * share))))  # fmt: skip
        for model, better in (("teacher", 0.0), ("round 1", -0.02), ("student", 0.05)):
            for steps in STEPS:
                nats = 3.9 + 1.2 * steps ** (-1.0 if plan == "golden" else -0.6) + better
                text_N = torch.randn(N, generator=stream(1, "texts"), dtype=torch.float64)
                own_N = torch.randn(N, generator=stream(1, model, plan, steps), dtype=torch.float64)
                ratio = Ratio.of(256 * (nats + 0.3 * text_N + 0.03 * own_N), torch.full((N,), 256))
                byte = Ratio.of(ratio.top_n, torch.full((N,), 1050))
                bounds.append(Bound(model, plan, steps, float(steps), _scores(
                    per_token=(ratio, "nats/token"), per_byte=(byte, "nats/byte"),
                    perplexity=(dataclasses.replace(ratio, exponential=True), "perplexity")), ratio))  # fmt: skip
    cells += [_cell("causal", "causal", None, t, 4.8 - 1.5 * (1 - t), 4.6 - 4 * (1 - t)) for t in TEMPERATURES]
    cells += [_cell("real text", None, None, None, 4.75, 3.9), _cell("parrot", None, None, None, 4.75, 3.9)]
    roles = {"teacher": "teacher", "round 1": "student", "student": "student", "causal": "ar", "real text": "real",
             "parrot": "parrot"}  # fmt: skip
    settings = {"steps": list(STEPS), "plans": list(PLANS), "temperatures": list(TEMPERATURES), "n": N, "seed": 0,
                "protocol": "mdlm", "control_steps": [128, 256], "length": 256, "data": "books"}  # fmt: skip
    results = Results(
        models={name: {"role": role, "sha256": "0" * 64, "provenance": {}} for name, role in roles.items()},
        cells=cells, bounds=bounds, settings=settings, judge={"name": "smollm2", "id": "x"},
        notes=[], provenance={"device": "made up", "unmask": "0", "time": "now"},
    )  # fmt: skip
    return analyse(results, draws=300)


PARTS = (
    "What this means", "Gen PPL against entropy", "Path gap R against entropy", "N-step NELBO", "Two by two",
    "Speed-up at matched entropy", "Diversity across samples", "Samples at equal NFE", "tokens/s", "Provenance",
    "At equal wall-clock",
)  # fmt: skip


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    write_report(made_up(), folder)
    return folder


def test_the_headline_claims_what_its_interval_allows() -> None:
    good, entry = headline(made_up()), made_up().analysis["headline"]
    assert entry["plan"] == "golden"
    assert entry["steps"] == 4
    assert good.good
    assert "× faster" in good.words
    assert entry["speed_up"]["low"] > 1
    assert f"{entry['speed_up']['low']:.2f}" in good.ends
    none = headline(made_up(gain=1.0))
    assert not none.good
    assert "faster" not in none.words + none.ends
    assert "cannot be told" in meaning(made_up(gain=1.0))[0]


@pytest.mark.parametrize(
    ("relation", "said", "unsaid"),
    [
        (">", "No number of steps that was run lets teacher write .* more than 3.0 times", "less than"),
        ("<", "The fewest steps that were run already let teacher write .* less than 3.0 times", "more than"),
    ],
)
def test_a_bound_is_stated_as_the_side_that_it_bounds(relation: str, said: str, unsaid: str) -> None:
    results = made_up()
    bound = {**results.analysis["headline"]["speed_up"], "relation": relation, "value": 3.0, "n_star": None}
    entry = {**results.analysis["headline"], "speed_up": bound}
    speed = meaning(dataclasses.replace(results, analysis={**results.analysis, "headline": entry}))[0]
    assert re.search(said, speed)
    assert unsaid not in speed


def worse_by(loss: float, *, steps: int) -> Results:
    """A student in so many steps whose log PPL is above the teacher's at its entropy, which T = 0.9 has."""
    entropy, log_ppl = _teacher("golden", steps, 0.9)
    cells = [
        _cell("teacher", "golden", n, t, *_teacher("golden", n, t)) for n in (4, 8, 16) for t in (1.0, 0.9, 0.8)
    ] + [_cell("student", "golden", steps, 1.0, entropy, log_ppl + loss)]
    about = {name: {"role": name, "sha256": "0" * 64, "provenance": {}} for name in ("teacher", "student")}
    settings = {**made_up().settings, "steps": [steps], "plans": ["golden"]}
    judge = {"name": "smollm2", "id": "x"}
    return analyse(Results(models=about, cells=cells, bounds=[], settings=settings, judge=judge), draws=300)


@pytest.mark.parametrize(("loss", "steps"), [(0.25, 4), (0.9, 16)])
def test_a_student_that_is_worse_is_called_worse(loss: float, steps: int) -> None:
    """In 4 steps the teacher's fewest suffice, so that its speed-up ends at 1; in 16 steps, well below."""
    results = worse_by(loss, steps=steps)
    entry = results.analysis["headline"]
    assert entry["speed_up"]["low"] is None
    assert entry["speed_up"]["high"] == pytest.approx(4 / steps)
    assert entry["gap"]["low"] > 0
    speed, gap, *_ = meaning(results)
    assert f"student in {steps} steps is worse than teacher" in speed
    assert f"{entry['gap']['value']:.3f} above the teacher's" in gap
    assert f"[{entry['gap']['low']:+.3f}, {entry['gap']['high']:+.3f}]" in gap


def test_a_student_without_gain_or_loss_is_called_neither() -> None:
    """Its speed-up has no lower end either, and its gap holds 0."""
    results = worse_by(0.0, steps=4)
    entry = results.analysis["headline"]
    assert entry["speed_up"]["low"] is None
    assert entry["gap"]["low"] < 0 < entry["gap"]["high"]
    said = " ".join(meaning(results))
    assert "cannot be told" in said
    assert "At equal NFE" not in said


def test_a_gain_at_equal_nfe_is_said_with_its_interval() -> None:
    gap = made_up().analysis["headline"]["gap"]
    assert gap["high"] < 0
    (said,) = [sentence for sentence in meaning(made_up()) if "At equal NFE" in sentence]
    assert f"{-gap['value']:.3f} below the teacher's" in said
    assert f"[{gap['low']:+.3f}, {gap['high']:+.3f}]" in said


def test_the_bounds_stand_with_half_their_95_percent_interval() -> None:
    results = made_up()
    table = likelihood(results)
    (row,) = [row for row in table.rows if row[0] == "student\ngolden"]
    wanted = ("student", "golden", 4)
    (bound,) = [b for b in results.bounds if (b.model, b.plan, b.steps) == wanted]
    (less,) = [d for d in results.analysis["likelihood"] if (d["model"], d["plan"], d["steps"]) == wanted]
    token, byte = bound.scores["per_token"], bound.scores["per_byte"]
    half, half_less = ((said["high"] - said["low"]) / 2 for said in (token, less))
    assert row[1].split("\n") == [
        f"{token['value']:.3f} ± {half:.3f}", f"{byte['value']:.3f} per byte",
        f"{less['value']:+.3f} ± {half_less:.3f} to teacher",
    ]  # fmt: skip
    assert half == pytest.approx(1.96 * token["stderr"], rel=0.1), "not one standard error"
    assert "± is half the 95% bootstrap interval" in table.note


def test_what_cannot_be_compared_is_said() -> None:
    results = made_up()
    cut = [cell for cell in results.cells if not (cell.model == "teacher" and cell.temperature < 0.95)]
    alone = analyse(dataclasses.replace(results, cells=cut), draws=50)
    assert headline(alone).words == "Not bracketed"
    assert "nothing is extrapolated" in meaning(alone)[0]
    others = {name: about for name, about in results.models.items() if about["role"] != "student"}
    no_student = dataclasses.replace(
        results,
        models=others,
        cells=[cell for cell in results.cells if cell.model in others],
        bounds=[bound for bound in results.bounds if bound.model in others],
    )
    assert headline(analyse(no_student, draws=50)).words == "Measured, not compared"


# --- no more than its interval ----------------------------------------------------------------------------------------


def with_scores(results: Results, **ends: dict) -> Results:
    """The same, with other ends of Gen PPL for the teacher in 4 steps at T = 1, by plan."""
    cells = []
    for cell in results.cells:
        if (cell.model, cell.steps, cell.temperature) == ("teacher", 4, 1.0):
            said = {**cell.scores["gen_ppl"], **ends[str(cell.plan)]}
            cell = dataclasses.replace(cell, scores={**cell.scores, "gen_ppl": said})
        cells.append(cell)
    return dataclasses.replace(results, cells=cells)


@pytest.mark.parametrize(
    ("iid", "golden", "told"),
    [
        ({"value": 1550.0, "low": 1300.0, "high": 1850.0}, {"value": 1795.0, "low": 1500.0, "high": 2100.0}, "apart"),
        ({"value": 1795.0, "low": 1700.0, "high": 1900.0}, {"value": 1550.0, "low": 1450.0, "high": 1650.0}, "takes"),
        ({"value": 1795.0, "low": None, "high": None}, {"value": 1.0, "low": 0.9, "high": 1.1}, "apart"),
    ],
)
def test_the_plan_is_credited_only_where_intervals_are_disjoint(iid: dict, golden: dict, told: str) -> None:
    said = " ".join(meaning(with_scores(made_up(), iid=iid, golden=golden)))
    assert ("The plan alone" in said) == (told == "takes")
    assert ("on iid and on golden cannot be told apart" in said) == (told == "apart")


def with_headline(**entry: dict) -> Results:
    results = made_up()
    return dataclasses.replace(
        results, analysis={**results.analysis, "headline": {**results.analysis["headline"], **entry},
                           "comparisons": [{**one, **entry} for one in results.analysis["comparisons"]]}
    )  # fmt: skip


def everything_said(results: Results, folder: Path) -> str:
    """The page without its record, the Markdown, and what a terminal shows."""
    write_report(results, folder)
    page = (folder / "report.html").read_text(encoding="utf-8")
    return page[: page.index("everything that was really used")] + (folder / "report.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("low", "high", "words"), [(None, None, "not determined"), (None, 3.0, "below 3.00"), (0.5, None, "above 0.50")]
)
def test_an_interval_without_ends_is_said_in_words(low, high, words: str, tmp_path: Path) -> None:
    found = {**made_up().analysis["headline"]["speed_up"], "low": low, "high": high, "faster": False}
    gap = {"value": -0.1, "low": low and -low, "high": high}
    results = with_headline(speed_up=found, gap=gap, gap_at_real=gap)
    assert f"95% interval {words}" in headline(results).ends
    assert "cannot be told" in meaning(results)[0]
    assert words in meaning(results)[0]
    assert limits(found, digits=2) == words
    said = everything_said(results, tmp_path)
    assert words in said
    for bad in ("∞", "inf]", "[0, ", "None", "[nan"):
        assert bad not in said, bad


def test_a_likelihood_without_an_interval_is_no_verdict() -> None:
    results = made_up()
    less = [{**one, "low": None, "high": None} for one in results.analysis["likelihood"]]
    unknown = dataclasses.replace(results, analysis={**results.analysis, "likelihood": less})
    (said,) = [sentence for sentence in meaning(unknown) if "NELBO" in sentence]
    assert "cannot be told apart from the teacher" in said
    assert "not determined" in said
    assert "interval not determined" in " ".join(text for text, _ in facts(unknown))


def test_the_parrot_passes_only_what_it_passes() -> None:
    (said,) = [sentence for sentence in meaning(made_up()) if "parrot" in sentence]
    assert "By Gen PPL and entropy it cannot be told apart from real text" in said
    cells = [
        dataclasses.replace(cell, scores={**cell.scores, "gen_ppl": {"value": 9.0, "low": 8.0, "high": 10.0}})
        if cell.model == "parrot" else cell
        for cell in made_up().cells
    ]  # fmt: skip
    (said,) = [s for s in meaning(dataclasses.replace(made_up(), cells=cells)) if "parrot" in s]
    assert "By entropy it cannot be told" in said


def test_a_legend_names_what_is_drawn_and_nothing_else() -> None:
    """A student that ran on one plan only, and a causal model that nobody judged."""
    results = made_up()
    cells = [cell for cell in results.cells if (cell.model, cell.plan) != ("student", "iid") and cell.model != "causal"]
    fewer = dataclasses.replace(results, cells=cells)
    for figure in figures(fewer):
        drawn = {series.name for panel in figure.panels for series in panel.series if series.points}
        named = [series.name for series in figure.legend]
        assert sorted(named) == sorted(drawn)
        assert "causal, causal" not in named
        assert ("student, iid" in named) == (figure.name == "against-nfe"), "its NELBO was measured on both"
    frontier = figures(results)[0]
    assert {"student, iid", "causal, causal", "real text", "parrot"} <= {series.name for series in frontier.legend}
    assert "real text's entropy" in frontier.caption
    others = [cell for cell in results.cells if cell.model != "real text"]
    assert "real text's entropy" not in figures(dataclasses.replace(results, cells=others))[0].caption


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
    table = text[text.index("Gen PPL, entropy in nats beneath") :]
    cells = re.findall(r"<td>([\d.]+)<small>([\d.]+)</small></td>", table[: table.index("</table>")])
    assert len(cells) == 5 * (2 * 4 + 2 * 2) + 4 + 2, "every Gen PPL of the table has its entropy beneath"
    assert all(re.fullmatch(r"\d\.\d{3}", entropy) for _, entropy in cells)


def test_markdown_and_figures_stand_beside_it(written: Path) -> None:
    text = (written / "report.md").read_text(encoding="utf-8")
    linked = re.findall(r"\((figures/[^)]+)\)", text)
    assert len(linked) == 3
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
    const room = svg.getBoundingClientRect();
    for (const word of svg.querySelectorAll("use")) {
      const box = word.getBoundingClientRect();
      if (box.left < room.left - 1 || box.right > room.right + 1) faults.push("cut: " + word.parentElement.outerHTML);
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
