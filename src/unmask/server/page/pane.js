// One text on the page: its tokens, which can be looked at and chosen, and its numbers.

import { Film } from "./film.js";
import { hideCard, showCard } from "./card.js";

const FIRST_HUE = 85, LAST_HUE = 285; // of oklch: amber, green, blue, violet; style.css has them too
const hue = (step, steps) => FIRST_HUE + ((LAST_HUE - FIRST_HUE) * Math.max(0, step - 1)) / Math.max(1, steps - 1);

export class Pane {
  constructor(name, rewrite, changed) {
    this.root = document.getElementById("pane").content.cloneNode(true).firstElementChild;
    const find = selector => this.root.querySelector(selector);
    [this.title, this.box, this.numbers, this.redo] = ["h2", ".tokens", ".numbers", ".redo"].map(find);
    this.box.setAttribute("aria-label", name);
    this.film = null;
    this.shown = 0;
    this.chosen = new Set();
    this.changed = changed;
    this.rewrite = () => this.chosen.size && rewrite(this);
    find(".rewrite").addEventListener("click", this.rewrite);
    find(".keep").addEventListener("click", () => this.choose([]));
    find(".undo").addEventListener("click", () => this.#undo());
    this.#listen();
  }

  // A new writing; `past` is the one that it rewrites, and comes back with Undo.
  begin(request, start, past = null, at = 0) {
    this.film = new Film(request, start, past, at);
    this.#build();
  }

  clear(title) {
    this.film = null;
    this.title.textContent = title;
    this.chosen.clear();
    this.box.replaceChildren();
    this.numbers.textContent = "";
    this.redo.hidden = true;
  }

  get isWhole() {
    return this.film?.end != null;
  }

  #build() {
    const { model, plan, steps } = this.film.start;
    this.title.textContent = [model, plan, counted(steps, "step")].filter(Boolean).join(" · ");
    this.chosen.clear();
    this.shown = 0;
    this.current = null;
    this.box.replaceChildren();
    this.tokens = this.film.changes.map((_, position) => {
      const space = document.createTextNode(""), word = document.createElement("span");
      word.setAttribute("role", "option");
      word.dataset.position = position;
      word.tabIndex = -1;
      this.box.append(space, word);
      return { space, word };
    });
    this.show(0);
  }

  // The text after a step.
  show(step, isSettled = false) {
    const { film } = this;
    this.shown = Math.min(step, film.reached);
    film.cells(this.shown).forEach((cell, position) => this.#draw(cell, position, isSettled));
    this.#setCurrent(this.current ?? this.#visible()[0]);
    this.#count();
  }

  #draw(cell, position, isSettled) {
    const { space, word } = this.tokens[position], { film } = this;
    const isChosen = this.chosen.has(position);
    const shown = cell.text ?? film.last(position);
    const body = (shown ?? " ").trimStart();
    const before = shown === null ? " " : shown.slice(0, shown.length - body.length);
    // a token of white space alone has to be seen too
    space.data = body ? before : "";
    const seen = body || (shown === null ? "" : before.replaceAll("\n", "↵\n"));
    if (word.textContent !== seen) word.textContent = seen; // else the pointer would come in anew
    const isNew = cell.kind === "drawn" && cell.step === this.shown && !isSettled;
    word.className = [cell.kind, isNew && "new", isChosen && "chosen", shown === null && "unknown", !body && "white"]
      .filter(Boolean).join(" ");
    word.style.setProperty("--hue", hue(cell.step, film.steps));
    word.setAttribute("aria-selected", isChosen);
    word.setAttribute("aria-label", cell.kind === "hidden" ? "blank" : isChosen ? `${body}, to be rewritten` : body || "space");
  }

  #count() {
    const { film } = this, { end } = film, now = film.time(this.shown);
    const isEnd = this.shown === film.steps && end;
    const said = [counted(isEnd ? end.nfe : now.nfe, "forward"), `${(isEnd ? end.seconds : now.seconds).toFixed(2)} s`];
    if (isEnd && end.log_prob != null) said.push(`log-probability ${end.log_prob.toFixed(1).replace("-", "−")}`);
    this.numbers.textContent = said.join(" · ");
  }

  // --- choosing words ---------------------------------------------------------------------------------------------

  // These positions are masked again once Rewrite is pressed.
  choose(positions) {
    this.chosen = new Set(positions);
    hideCard();
    this.show(this.shown, true);
    this.#offer();
  }

  #toggle(position) {
    if (!this.isWhole || !this.#isVisible(position)) return;
    const word = this.film.word(position).filter(each => this.#isVisible(each));
    const isChosen = this.chosen.has(position);
    this.choose(isChosen ? [...this.chosen].filter(each => !word.includes(each)) : [...this.chosen, ...word]);
  }

  #offer() {
    const words = new Set([...this.chosen].map(position => this.film.word(position)[0])).size;
    const find = selector => this.redo.querySelector(selector);
    find(".chosen-count").textContent = words ? `${counted(words, "word")} to rewrite` : "";
    find(".rewrite").hidden = find(".keep").hidden = !words;
    find(".undo").hidden = Boolean(words) || !this.film.past;
    this.redo.hidden = !words && !this.film.past;
  }

  // After the last step: the words may be chosen.
  finish() {
    this.#offer();
  }

  // A rewriting that did not come to its end leaves the text as it was; what did not begin has no title.
  giveUp() {
    if (!this.film) this.title.textContent = "";
    if (this.film?.past && !this.isWhole) this.#undo();
  }

  #undo() {
    const { past } = this.film;
    this.film = past;
    this.#build();
    this.show(past.steps, true);
    this.#offer();
    this.changed();
  }

  // --- mouse and keys ---------------------------------------------------------------------------------------------

  #listen() {
    const at = event => event.target.dataset?.position;
    const on = (name, act) => this.box.addEventListener(name, event => at(event) !== undefined && act(Number(at(event)), event));
    on("pointerover", position => this.#look(position));
    on("focusin", position => this.#look(position));
    on("click", (position, event) => {
      this.#setCurrent(position);
      this.#toggle(position);
      if (event.pointerType === "touch") this.#look(position); // a finger does not hover
    });
    this.box.addEventListener("pointerleave", hideCard);
    this.box.addEventListener("focusout", hideCard);
    on("keydown", (position, event) => this.#key(position, event));
  }

  #look(position) {
    const cell = this.film.cells(this.shown)[position];
    if (cell.kind === "hidden") hideCard();
    else showCard(this.tokens[position].word, cell, this.film.steps);
  }

  #key(position, event) {
    const visible = this.#visible(), place = visible.indexOf(position);
    const moves = { ArrowLeft: place - 1, ArrowRight: place + 1, Home: 0, End: visible.length - 1 };
    if (event.key in moves) this.#focus(visible[moves[event.key]]);
    else if (event.key === "ArrowUp") this.#focus(this.#onNextLine(position, -1));
    else if (event.key === "ArrowDown") this.#focus(this.#onNextLine(position, 1));
    else if (event.key === " ") this.#toggle(position);
    else if (event.key === "Escape") this.choose([]);
    else if (event.key === "Enter") {
      if (!this.chosen.size) this.#toggle(position);
      this.rewrite();
    } else return;
    event.preventDefault();
  }

  // The nearest token on the line above or below.
  #onNextLine(position, direction) {
    const box = each => this.tokens[each].word.getBoundingClientRect();
    const { left, top } = box(position);
    const beyond = this.#visible().filter(each => (box(each).top - top) * direction > 4);
    if (!beyond.length) return undefined;
    const line = box(direction > 0 ? beyond[0] : beyond.at(-1)).top;
    const across = each => Math.abs(box(each).left - left);
    return beyond.filter(each => Math.abs(box(each).top - line) < 4).reduce((a, b) => (across(b) < across(a) ? b : a));
  }

  #visible() {
    return this.tokens.map((_, position) => position).filter(position => this.#isVisible(position));
  }

  #isVisible(position) {
    return this.film.cells(this.shown)[position].kind !== "hidden";
  }

  // One token of the text stands in the tab order.
  #setCurrent(position) {
    if (position === undefined) return;
    if (this.current !== null) this.tokens[this.current].word.tabIndex = -1;
    this.current = position;
    this.tokens[position].word.tabIndex = 0;
  }

  #focus(position) {
    if (position === undefined) return;
    this.#setCurrent(position);
    this.tokens[position].word.focus();
  }
}

export const counted = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;
