"""The looks of a report: one palette for light and one for dark, and the few rules that a page and its plots need."""

from __future__ import annotations

_LIGHT = """--paper:#fbfaf7;--card:#ffffff;--ink:#1d2126;--soft:#5c6470;--rule:#dfdcd3;--faint:#eeebe3;--good:#1a7f4b;
--c0:#5b6472;--c1:#d1495b;--c2:#2a6fbb;--c3:#2e8b57;--c4:#b8860b;--c5:#7b4fb5;--c6:#0f8b8d;--c7:#c05fa0;
--c8:#1d2126"""
_DARK = """--paper:#14171b;--card:#1c2026;--ink:#e8e6e1;--soft:#a2a9b4;--rule:#353b44;--faint:#262b32;--good:#5fd39a;
--c0:#aab4c3;--c1:#ff7f8f;--c2:#6fb1f5;--c3:#6fd39b;--c4:#e6bd4f;--c5:#bd98f0;--c6:#55cfd0;--c7:#ef9ad0;
--c8:#f2efe8"""
COLOURS = 8  # models that have a colour of their own; the one after them is ink
INK = 8

_PLOT = (
    "text{font:11px system-ui,sans-serif;fill:var(--soft)}"
    "text.title{font-size:12.5px;font-weight:650;fill:var(--ink)}"
    ".grid{stroke:var(--faint)}.axis{stroke:var(--rule)}.rule{stroke:var(--soft);stroke-dasharray:2 3}"
    ".l{fill:none;stroke-width:1.7;stroke-linejoin:round}.dash{stroke-dasharray:5 3}.e{stroke-width:1.2;opacity:.55}"
    ".m{stroke:var(--card);stroke-width:1}.m .open{fill:none;stroke-width:2.2}"
    + "".join(
        f".l.c{i},.e.c{i},.m.c{i} .open{{stroke:var(--c{i})}}.m.c{i}{{fill:var(--c{i})}}" for i in range(COLOURS + 1)
    )
)


def _palette(selector: str) -> str:
    return f"{selector}{{{_LIGHT}}}@media(prefers-color-scheme:dark){{{selector}{{{_DARK}}}}}".replace("\n", "")


SVG = _palette("svg") + _PLOT + ".sheet{fill:var(--card)}"

PAGE = (
    _palette(":root")
    + _PLOT
    + """
:root{color-scheme:light dark}*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1120px;margin:0 auto;padding:28px 16px 64px}
h1{font-size:1.05rem;font-weight:600;margin:0;color:var(--soft)}h2{font-size:1.25rem;margin:2.6rem 0 .3rem}
p{margin:.4rem 0 .8rem;max-width:74ch}.sub,.note{color:var(--soft);font-size:.9rem}a{color:inherit}
.hero{background:var(--card);border:1px solid var(--rule);border-radius:14px;padding:22px 22px 18px;margin:14px 0}
.big{font-size:clamp(1.7rem,6vw,2.9rem);font-weight:750;line-height:1.12;letter-spacing:-.02em;margin:.2rem 0}
.big.good{color:var(--good)}.ends{font-size:1.05rem;color:var(--soft);font-variant-numeric:tabular-nums}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,215px),1fr));gap:12px;margin-top:16px}
.fact{border-top:2px solid var(--rule);padding-top:8px}
.fact b{display:block;font-size:1.2rem;font-variant-numeric:tabular-nums}
.fact small{display:block;font-weight:400;font-size:.86rem;color:var(--soft)}
.fact span{color:var(--soft);font-size:.86rem}
.meaning li{margin:.35rem 0;max-width:78ch}.meaning{padding-left:1.15rem}
.panels{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,310px),1fr));gap:12px}
.panel{background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:8px}
.panel svg{display:block;width:100%;height:auto;max-height:360px}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;margin:.5rem 0;font-size:.86rem;color:var(--soft)}
.legend span{display:inline-flex;align-items:center;gap:6px}.legend svg{width:30px;height:14px;flex:none}
.wide{overflow-x:auto;background:var(--card);border:1px solid var(--rule);border-radius:10px;margin:.6rem 0}
table{border-collapse:collapse;width:100%;font-size:.88rem;font-variant-numeric:tabular-nums}
th,td{padding:7px 11px;text-align:right;white-space:nowrap;border-top:1px solid var(--faint);vertical-align:top}
thead th{border-top:0;color:var(--soft);font-weight:600}
th:first-child,td:first-child{text-align:left;position:sticky;left:0;
background:var(--card)}
.words{white-space:normal;min-width:12rem;text-align:left}td small{display:block;color:var(--soft);font-size:.82em}
tr.control td{color:var(--soft)}
.samples{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,290px),1fr));gap:12px}
.sample{background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:12px 14px;min-width:0}
.sample h3{margin:0 0 .3rem;font-size:.9rem}
.sample p{font:15px/1.6 Georgia,"Times New Roman",serif;overflow-wrap:anywhere;
white-space:pre-line;margin:.3rem 0 .7rem}
details{margin:.6rem 0}summary{cursor:pointer;color:var(--soft)}
pre{overflow:auto;max-height:24rem;background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:12px;
font-size:.78rem}
@media(max-width:520px){th,td{padding:6px 7px}}
"""
)
