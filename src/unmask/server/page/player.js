// Forwards and backwards through the steps of the texts on the page.

import { hideCard } from "./card.js";

const [bar, play, icon, slider, count] = ["player", "play", "play-icon", "slider", "count"].map(id => document.getElementById(id));
const ICONS = {
  Play: "M4 2l10 6-10 6z",
  Pause: "M3 2h4v12H3zM9 2h4v12H9z",
  "Play again": "M8 3a5 5 0 1 0 5 5h-2a3 3 0 1 1-3-3v3l5-4-5-4z",
};
const SPAN = 4500, SHORTEST = 50, LONGEST = 450; // milliseconds: of a whole play, and of a step
const calm = matchMedia("(prefers-reduced-motion: reduce)");

export class Player {
  constructor() {
    this.panes = [];
    this.timer = 0;
    this.isHeld = false; // somebody stopped it: what still comes in does not start it again
    play.addEventListener("click", () => (this.timer ? this.hold() : this.resume()));
    slider.addEventListener("input", () => this.goTo(Number(slider.value)));
  }

  // The texts to play; those that are not there yet have no film.
  take(panes) {
    this.stop();
    this.isHeld = false;
    this.panes = panes;
    bar.hidden = false;
    this.#draw();
  }

  get films() {
    return this.panes.filter(pane => pane.film);
  }

  get steps() {
    return Math.max(1, ...this.films.map(pane => pane.film.steps));
  }

  start() {
    if (!this.timer && !this.isHeld) this.#next(0);
  }

  stop() {
    clearTimeout(this.timer);
    this.timer = 0;
    this.#draw();
  }

  giveUp() {
    this.stop();
    bar.hidden = !this.films.length;
  }

  hold() {
    this.isHeld = true;
    this.stop();
  }

  // Play on, from the beginning if everything was shown.
  resume() {
    if (this.#isOver()) this.films.forEach(pane => pane.show(0));
    this.isHeld = false;
    this.start();
  }

  goTo(step) {
    this.hold();
    hideCard();
    for (const pane of this.films) {
      pane.chosen.clear();
      pane.show(step);
      if (pane.isWhole) pane.finish();
    }
    this.#draw();
  }

  #isOver() {
    return this.films.length === this.panes.length && this.films.every(pane => pane.isWhole && pane.shown >= pane.film.steps);
  }

  // With reduced motion, what is known is shown at once.
  #next(pause) {
    this.timer = setTimeout(() => {
      for (const pane of this.films) {
        if (pane.shown < pane.film.reached) pane.show(calm.matches ? pane.film.reached : pane.shown + 1);
      }
      if (this.#isOver()) return this.#end();
      this.#next(Math.max(SHORTEST, Math.min(LONGEST, SPAN / this.steps)));
      this.#draw();
    }, pause);
  }

  #end() {
    this.stop();
    for (const pane of this.films) {
      pane.finish();
      pane.show(pane.shown, true);
    }
  }

  #draw() {
    const moving = this.films.filter(pane => pane.shown < pane.film.steps);
    const at = Math.max(0, ...(moving.length ? moving : this.films).map(pane => pane.shown));
    slider.max = this.steps;
    slider.value = at;
    slider.style.setProperty("--share", at / this.steps);
    slider.setAttribute("aria-valuetext", `step ${at} of ${this.steps}`);
    count.textContent = `${at} / ${this.steps}`;
    const name = this.timer ? "Pause" : this.#isOver() ? "Play again" : "Play";
    icon.setAttribute("d", ICONS[name]);
    play.setAttribute("aria-label", name);
  }
}
