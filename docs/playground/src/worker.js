// The model's own thread: reads it once, then writes one text after the other and says each step.

import * as ort from "./ort.wasm.min.mjs";
import { open } from "./model.js";
import { write } from "./sampler.js";

ort.env.wasm.numThreads = 1; // several need headers that few static hosts send
ort.env.wasm.wasmPaths = { wasm: new URL("./ort-wasm-simd-threaded.wasm", import.meta.url).href };

const stopped = new Set(); // numbers of the texts that nobody waits for
const model = open(ort, async name => {
  const response = await fetch(new URL(`model/${name}`, import.meta.url));
  if (!response.ok) throw new Error(`${name} cannot be read: ${response.status} ${response.statusText}`);
  return new Uint8Array(await response.arrayBuffer());
});
model.catch(() => {}); // said where a text is asked for
let last = Promise.resolve();

addEventListener("message", ({ data: { number, request } }) => {
  if (!request) stopped.add(number);
  else last = last.then(() => answer(number, request));
});

async function answer(number, request) {
  try {
    for await (const message of write(await model, request)) {
      await breath();
      if (stopped.has(number)) return;
      postMessage({ number, message });
    }
  } catch (error) {
    postMessage({ number, message: { type: "error", message: error.message } });
  } finally {
    stopped.delete(number);
  }
}

// Let a word from the page come in.
const breath = () => new Promise(resolve => setTimeout(resolve));
