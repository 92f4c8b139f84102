"""The page that `--html` fills in: self-contained, light and dark, for a phone as well as a desk.

Without JavaScript it shows the finished text. Refuses to know where the tokens come from.
"""

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>unmask: {{CAPTION}}</title>
<style>
:root { --paper: #fbfaf6; --ink: #22252a; --faint: #70716c; --blank: #e4e2da; --fresh: #ffdf80; --given: #1a5fb4;
        --bar: #b98500; --line: #dddbd2; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #17191c; --ink: #e6e4dd; --faint: #9a9a93; --blank: #30343a; --fresh: #6b5200; --given: #8cbcff;
          --bar: #e0b040; --line: #33373d; }
}
* { box-sizing: border-box; }
body { margin: 0; min-height: 100vh; min-height: 100dvh; display: flex; flex-direction: column;
       background: var(--paper); color: var(--ink);
       font: 1.15rem/1.75 Charter, "Bitstream Charter", "Iowan Old Style", Georgia, serif; }
main { flex: 1; width: 100%; max-width: 44rem; margin: 0 auto; padding: 2.5rem 1.25rem; }
#text { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; }
#text span { border-radius: .25em; padding: .08em 0; transition: background-color .35s, color .35s; }
#text .hidden { background: var(--blank); color: transparent; box-shadow: inset 0 0 0 1px var(--paper);
                user-select: none; -webkit-user-select: none; }
#text .fresh { background: var(--fresh); transition: none; }
#text .given { color: var(--given); }
footer { position: sticky; bottom: 0; background: var(--paper); border-top: 1px solid var(--line); }
footer > div { max-width: 44rem; margin: 0 auto; padding: .6rem 1.25rem calc(.6rem + env(safe-area-inset-bottom));
               font: .875rem/1.4 system-ui, sans-serif; }
.controls { display: flex; align-items: center; gap: .9rem; }
.controls[hidden] { display: none; }
button { width: 2.75rem; height: 2.75rem; flex: none; border: 0; border-radius: 50%; background: var(--ink);
         color: var(--paper); cursor: pointer; display: grid; place-items: center; }
button svg { width: 1.1rem; height: 1.1rem; fill: currentColor; }
input { flex: 1; min-width: 0; height: 2.75rem; margin: 0; accent-color: var(--bar); cursor: pointer; }
button:focus-visible, input:focus-visible { outline: 2px solid var(--given); outline-offset: 2px; }
output { flex: none; min-width: 4.5em; text-align: right; font-variant-numeric: tabular-nums; }
.caption { color: var(--faint); margin: .2rem 0 0; }
@media (prefers-reduced-motion: reduce) { #text span { transition: none; } }
</style>
</head>
<body>
<main>
<p id="text"><noscript>{{TEXT}}</noscript></p>
</main>
<footer><div>
<div class="controls" id="controls" hidden>
<button id="play" type="button" aria-label="Play"><svg viewBox="0 0 16 16" aria-hidden="true"><path id="icon"/></svg>
</button>
<input id="slider" type="range" min="0" value="0" step="1" aria-label="Step">
<output id="count" for="slider"></output>
</div>
<p class="caption">{{CAPTION}}</p>
</div></footer>
<script type="application/json" id="data">{{DATA}}</script>
<script>
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const [text, controls, play, icon, slider, count] =
    ["text", "controls", "play", "icon", "slider", "count"].map(id => document.getElementById(id));
  const PLAY = "M4 2l10 6-10 6z", PAUSE = "M3 2h4v12H3zM9 2h4v12H9z", AGAIN =
    "M8 3a5 5 0 1 0 5 5h-2a3 3 0 1 1-3-3v3l5-4-5-4z";

  // a token: the space before it, which is never a block, and its word
  const tokens = data.final.map((final, i) => {
    const space = document.createTextNode(""), word = document.createElement("span");
    text.append(space, word);
    return { final, given: data.given[i], changes: data.changes[i], space, word };
  });

  function show(step) {
    for (const token of tokens) {
      let now = token.changes[0];
      for (const change of token.changes) if (change[0] <= step) now = change;
      const isHidden = now[1] === null, shown = isHidden ? token.final : now[1], body = shown.trimStart();
      token.space.data = shown.slice(0, shown.length - body.length);
      if (token.word.textContent !== body) token.word.textContent = body;
      token.word.className =
        isHidden ? "hidden" : token.given ? "given" : now[0] === step && step > 0 ? "fresh" : "";
    }
    slider.value = step;
    count.textContent = `${step} / ${data.steps}`;
    slider.setAttribute("aria-valuetext", `step ${step} of ${data.steps}`);
    if (!timer) draw();
  }

  const pause = Math.max(60, Math.min(500, 7000 / data.steps));
  let timer = 0;
  function draw() {
    const isDone = Number(slider.value) === data.steps;
    icon.setAttribute("d", timer ? PAUSE : isDone ? AGAIN : PLAY);
    play.setAttribute("aria-label", timer ? "Pause" : isDone ? "Play again" : "Play");
  }
  function stop() { clearTimeout(timer); timer = 0; draw(); }
  function go() {
    const step = Number(slider.value);
    if (step >= data.steps) return stop();
    show(step + 1);
    timer = setTimeout(go, pause);
  }
  function start() {
    if (Number(slider.value) === data.steps) show(0);
    timer = setTimeout(go, 600);
    draw();
  }

  slider.max = data.steps;
  slider.addEventListener("input", () => { stop(); show(Number(slider.value)); });
  play.addEventListener("click", () => timer ? stop() : start());
  controls.hidden = false;
  show(0);
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) show(data.steps); else start();
})();
</script>
</body>
</html>
"""
