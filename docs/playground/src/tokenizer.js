// Text to token ids and back: the byte-level BPE of a tokenizer.json, as the library `tokenizers` does it.

const SPACE = "\\p{White_Space}";
const WORD = new RegExp(
  `'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^${SPACE}\\p{L}\\p{N}]+|${SPACE}+(?!\\P{White_Space})|${SPACE}+`, "gu",
);

export class Tokenizer {
  constructor({ model, added_tokens: added }) {
    this.ids = new Map(Object.entries(model.vocab));
    this.ranks = new Map(model.merges.map((pair, rank) => [(Array.isArray(pair) ? pair : pair.split(" ")).join(" "), rank]));
    this.pieces = [];
    for (const [piece, id] of this.ids) this.pieces[id] = piece;
    for (const { id, content } of added) this.pieces[id] = content;
    this.known = new Map(); // words that were met
  }

  encode(text) {
    return [...text.matchAll(WORD)].flatMap(([word]) => this.#word(word));
  }

  // Ids that it does not know, such as the mask, leave nothing.
  decode(ids) {
    const bytes = ids.flatMap(id => bytesOf(this.pieces[id] ?? ""));
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(bytes));
  }

  // The pair that was learnt first is merged first.
  #word(word) {
    const kept = this.known.get(word);
    if (kept) return kept;
    let parts = Array.from(new TextEncoder().encode(word), byte => LETTERS[byte]);
    for (;;) {
      let best = Infinity, at = -1;
      for (let i = 0; i + 1 < parts.length; i++) {
        const rank = this.ranks.get(`${parts[i]} ${parts[i + 1]}`) ?? Infinity;
        if (rank < best) [best, at] = [rank, i];
      }
      if (at < 0) break;
      parts.splice(at, 2, parts[at] + parts[at + 1]);
    }
    const ids = parts.map(part => this.ids.get(part));
    this.known.set(word, ids);
    return ids;
  }
}

// Bytes as letters that can be seen: those that are so stay, the others come after them.
const LETTERS = letters();
const BYTES = new Map(LETTERS.map((letter, byte) => [letter, byte]));

function letters() {
  const isSeen = byte => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
  let next = 256;
  return Array.from({ length: 256 }, (_, byte) => String.fromCodePoint(isSeen(byte) ? byte : next++));
}

// A piece that is no spelled-out bytes stands for its own text.
function bytesOf(piece) {
  const bytes = Array.from(piece, letter => BYTES.get(letter));
  return bytes.includes(undefined) ? Array.from(new TextEncoder().encode(piece)) : bytes;
}
