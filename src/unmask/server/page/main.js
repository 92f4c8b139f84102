// The page: settings become requests, requests become texts that appear step by step.

import { models, run } from "./engine.js";
import { hideCard } from "./card.js";
import { Pane, counted } from "./pane.js";
import { Player } from "./player.js";
import * as settings from "./settings.js";
import "./theme.js";

const [form, error, wait, write, panesBox, said, share, compare] =
  ["form", "error", "wait", "write", "panes", "said", "share", "compare"].map(id => document.getElementById(id));
const GRACE = 350; // milliseconds: a text that is done by then appears with every word at its place

const player = new Player();
const panes = ["First text", "Second text"].map(name => new Pane(name, rewrite, () => player.take(player.panes)));
let running = null; // what stops the texts under way

// --- writing --------------------------------------------------------------------------------------------------------

async function writeAll() {
  const wrong = settings.complaint();
  if (wrong) {
    wrong.input.focus();
    return complain(wrong.message);
  }
  history.replaceState(null, "", `#${settings.toFragment()}`);
  const requests = settings.requests(), used = panes.slice(0, requests.length);
  await attempt(async signal => {
    panesBox.replaceChildren(...used.map(pane => pane.root));
    used.forEach((pane, i) => pane.clear([requests[i].model, requests[i].plan].filter(Boolean).join(" · ")));
    player.take(used);
    // one after the other, so that neither costs the other time
    for (const [i, pane] of used.entries()) await record(pane, requests[i], signal);
  });
}

// The chosen words of a text are blanks again; the rest stands as it is shown.
async function rewrite(pane) {
  const { film, shown, chosen } = pane, tokens = film.template(shown, chosen);
  const { prompt, infill, length, ...request } = film.request;
  const blanks = tokens.filter(token => token === null).length;
  request.tokens = tokens;
  request.steps = Math.min(request.steps, blanks);
  request.index += 1; // other noise, else the same word might come back
  await attempt(signal => {
    player.take(player.panes);
    return record(pane, request, signal, film, shown);
  });
}

// Run one request into a pane, which the player shows as it comes.
async function record(pane, request, signal, past, at) {
  let wait = 0;
  try {
    for await (const message of run(request, signal)) {
      if (message.type === "error") throw new Error(message.message);
      if (message.type === "start") {
        pane.begin(request, message, past, at);
        wait = setTimeout(() => player.start(), GRACE);
      } else pane.film.take(message);
    }
    player.start();
    said.textContent = `${pane.title.textContent}: ${counted(pane.film.end.nfe, "forward")}. ${pane.film.end.text}`;
  } finally {
    clearTimeout(wait);
  }
}

// One attempt at a time; a new one ends the one before.
async function attempt(work) {
  running?.abort();
  const mine = (running = new AbortController());
  complain("");
  hideCard();
  busy(true);
  try {
    await work(mine.signal);
  } catch (fault) {
    if (running !== mine) return;
    if (fault.name !== "AbortError") complain(fault.message);
    panes.forEach(pane => pane.giveUp());
    player.giveUp();
  } finally {
    if (running === mine) {
      running = null;
      busy(false);
    }
  }
}

function busy(isBusy) {
  write.textContent = isBusy ? "Stop" : "Write";
  document.body.classList.toggle("busy", isBusy);
}

// One line, or none.
function complain(message) {
  sayIn(error, message);
}

function sayIn(line, message) {
  line.textContent = message;
  line.hidden = !message;
}

// --- the form and the header ----------------------------------------------------------------------------------------

form.addEventListener("submit", event => {
  event.preventDefault();
  if (running) running.abort();
  else writeAll();
});
form.addEventListener("keydown", event => {
  if (event.key !== "Enter" || event.shiftKey || event.target.id !== "text") return;
  event.preventDefault();
  writeAll();
});
document.getElementById("another").addEventListener("click", () => {
  settings.nextSeed();
  writeAll();
});
compare.addEventListener("click", () => setCompare(!settings.isComparing()));

function setCompare(isOn) {
  settings.compare(isOn);
  compare.setAttribute("aria-pressed", isOn);
}

share.addEventListener("click", async () => {
  history.replaceState(null, "", `#${settings.toFragment()}`);
  const before = share.textContent;
  await navigator.clipboard.writeText(location.href).then(
    () => (share.textContent = "Copied"),
    () => (share.textContent = "It is in the address bar"),
  );
  setTimeout(() => (share.textContent = before), 1600);
});

// --- the beginning --------------------------------------------------------------------------------------------------

function follow(fragment) {
  const unknown = settings.fromFragment(fragment);
  compare.setAttribute("aria-pressed", settings.isComparing());
  if (unknown.length) complain(`This link asks for ${unknown.join(" and ")}, which is not here.`);
  else writeAll();
}

addEventListener("hashchange", () => follow(location.hash.slice(1)));

try {
  settings.offer(await models(message => sayIn(wait, message)));
  follow(location.hash.slice(1));
} catch (fault) {
  complain(fault.message);
}
