// What is given and what is blank, as sampling/infill.py has it: token ids, null where it is blank.

const BLANK = /_{3,}/g;

export class Mistake extends Error {} // of whoever asks: one line says what to change

export function template(request, { about, tokenizer }) {
  const given = ["prompt", "infill", "tokens"].filter(name => request[name] !== undefined && request[name] !== null);
  if (given.length > 1) throw new Mistake(`give only one of prompt, infill and tokens, not ${given.join(" and ")}`);
  const ids = make(request, about, tokenizer);
  if (ids.length > about.length) {
    throw new Mistake(`the given text and its blanks take ${ids.length} tokens, the model at most ${about.length}`);
  }
  if (!ids.includes(null)) throw new Mistake("a sample has no blank to fill: leave at least one position masked");
  return ids;
}

function make({ prompt, infill, tokens, length }, about, tokenizer) {
  if (tokens) return fromTokens(tokens, about);
  if (infill !== undefined && infill !== null) return fromPattern(infill, tokenizer);
  const size = length ?? about.length;
  if (!(size >= 1 && size <= about.length)) {
    throw new Mistake(`length must be between 1 and the model's ${about.length}, not ${size}`);
  }
  return fromPrompt(prompt ?? "", size, tokenizer);
}

function fromTokens(tokens, { vocab_size: states, mask_id: mask }) {
  const strange = tokens.find(token => token !== null && !(Number.isInteger(token) && token >= 0 && token < states));
  if (strange !== undefined) {
    throw new Mistake(`tokens has the id ${strange}: give ids from 0 to ${states - 1}, null where it is blank`);
  }
  return tokens.map(token => (token === mask ? null : token));
}

function fromPrompt(prompt, length, tokenizer) {
  const head = tokenizer.encode(prompt);
  if (head.length >= length) {
    throw new Mistake(`the given text has ${head.length} tokens and leaves no blank in ${length}: ` +
      "shorten it, or raise the length up to the model's");
  }
  return [...head, ...new Array(length - head.length).fill(null)];
}

// Words with blanks: three underscores or more, one a token.
function fromPattern(pattern, tokenizer) {
  const ids = [];
  let start = 0;
  for (const blank of pattern.matchAll(BLANK)) {
    // the space before a blank belongs to the blank's first token
    ids.push(...tokenizer.encode(pattern.slice(start, blank.index).replace(/ $/, "")));
    ids.push(...new Array(blank[0].length).fill(null));
    start = blank.index + blank[0].length;
  }
  if (!start) throw new Mistake("the text has no blank: mark one with underscores, one a token, at least three");
  return [...ids, ...tokenizer.encode(pattern.slice(start))];
}
