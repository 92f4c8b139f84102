// Texts of the page's own sampler, under node: reads {sources, table?, folder?, ort?, requests} and prints their last messages.

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const asked = JSON.parse(readFileSync(0, "utf8"));
const source = name => import(pathToFileURL(join(asked.sources, name)));
const { write } = await source("sampler.js");
const model = asked.table ? await madeUp() : await opened();

// Logits that the test made: a row of a table for each context.
async function madeUp() {
  const { Tokenizer } = await source("tokenizer.js");
  const { table, about, tokenizer } = asked, V = about.vocab_size;
  const raw = readFileSync(table), numbers = new Float32Array(raw.buffer, raw.byteOffset, raw.length / 4);
  const context = (ids, i) => (31 * (ids[i - 1] ?? 0) + 17 * (ids[i + 1] ?? 0) + 7 * i) % (numbers.length / V);
  return {
    about,
    tokenizer: new Tokenizer(JSON.parse(readFileSync(tokenizer, "utf8"))),
    features: async ids => ids.map((_, i) => context(ids, i)),
    logits: async (features, where) => where.map(i => numbers.subarray(features[i] * V, (features[i] + 1) * V)),
  };
}

async function opened() {
  const ort = await import(pathToFileURL(join(asked.ort, "ort.wasm.min.mjs")));
  ort.env.wasm.numThreads = 1;
  ort.env.wasm.wasmBinary = readFileSync(join(asked.ort, "ort-wasm-simd-threaded.wasm"));
  const { open } = await source("model.js");
  return open(ort, async name => new Uint8Array(readFileSync(join(asked.folder, name))));
}

const said = [];
for (const request of asked.requests) {
  const messages = [];
  try {
    for await (const message of write(model, request)) messages.push(message);
    said.push({ start: messages[0], steps: messages.slice(1, -1), done: messages.at(-1) });
  } catch (error) {
    said.push({ error: error.message });
  }
}
process.stdout.write(JSON.stringify(said));
