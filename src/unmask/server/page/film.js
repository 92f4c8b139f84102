// One writing: what every position held after every step, and what the model thought when it drew it.

export class Film {
  // `past` is the film that this one rewrites, `at` the step of it from which it starts.
  constructor(request, start, past = null, at = 0) {
    this.request = request;
    this.start = start;
    this.steps = start.steps;
    this.past = past;
    this.reached = 0; // the last step that is known
    this.end = null; // the message `done`
    this.times = [{ step: 0, nfe: 0, seconds: 0 }];
    const before = past?.cells(at);
    this.changes = start.tokens.map((token, i) => [this.#first(token, start.texts[i], before?.[i])]);
  }

  // What stands at the beginning: a blank, a given word, or a word that an earlier writing drew and this one keeps.
  #first(token, text, before) {
    if (token === null) return { step: 0, token: null, text: null, kind: "hidden" };
    if (before && before.token === token && before.kind !== "given") return { ...before, step: 0, kind: "kept" };
    return { step: 0, ...spelled({ token, text }), kind: "given" };
  }

  take(message) {
    if (message.type === "done") {
      this.end = message;
      this.reached = this.steps;
      return;
    }
    this.reached = message.step;
    this.steps = Math.max(this.steps, message.step); // with a threshold nobody knows beforehand
    this.times.push(message);
    for (const { position, ...change } of message.changes) {
      const alternatives = (change.alternatives ?? []).map(spelled), kind = change.token === null ? "hidden" : "drawn";
      this.changes[position].push({ ...spelled(change), alternatives, step: message.step, kind });
    }
  }

  // Every position as it stands after a step.
  cells(step) {
    return this.changes.map(changes => changes.findLast(change => change.step <= step));
  }

  // The text a position ends with, null where nobody knows yet: a blank takes its space.
  last(position) {
    return this.changes[position].at(-1).text;
  }

  // Forwards and seconds until a step.
  time(step) {
    return this.times.findLast(time => time.step <= step);
  }

  // A template that keeps what stands after a step, but for some positions.
  template(step, dropped) {
    return this.cells(step).map((cell, i) => (dropped.has(i) ? null : cell.token));
  }

  // The tokens of the word at a position: those around it that letters join to it.
  word(position) {
    const texts = this.changes.map(changes => changes.at(-1).text ?? " ");
    let [first, last] = [position, position];
    while (first > 0 && joined(texts[first - 1], texts[first])) first--;
    while (last + 1 < texts.length && joined(texts[last], texts[last + 1])) last++;
    return Array.from({ length: last - first + 1 }, (_, k) => first + k);
  }
}

// A model without a tokenizer has numbers for words.
const spelled = each => ({ ...each, text: each.text ?? (each.token === null ? null : ` ${each.token}`) });

const joined = (left, right) => /[\p{L}\p{N}\p{M}'’]$/u.test(left) && /^[\p{L}\p{N}\p{M}'’]/u.test(right);
