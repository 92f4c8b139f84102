// The model's own thread: reads it once, then writes one text after the other and says each step.

import * as ort from "./ort.wasm.min.mjs";
import { open } from "./model.js";
import { write } from "./sampler.js";

ort.env.wasm.numThreads = 1; // several need headers that few static hosts send

const MB = 1e6;
const stopped = new Set(); // numbers of the texts that nobody waits for
const model = load().finally(() => tell(""));
model.catch(() => {}); // said where a text is asked for
let last = Promise.resolve();

addEventListener("message", ({ data: { number, request } }) => {
  if (!request) stopped.add(number);
  else last = last.then(() => answer(number, request));
});

// Every file at once, then the model; says how far it is.
async function load() {
  const stop = new AbortController(); // without one file the others are of no use
  try {
    const sizes = JSON.parse(new TextDecoder().decode(await read("files.json")));
    const total = Object.values(sizes).reduce((a, b) => a + b, 0), files = {};
    let loaded = 0;
    const count = bytes => {
      if (stop.signal.aborted) return;
      loaded += bytes;
      tell(`Loading the model: ${Math.floor(loaded / MB)} of ${Math.round(total / MB)} MB`);
    };
    await Promise.all(Object.keys(sizes).map(async name => (files[name] = await read(name, count, stop.signal))));
    tell("Starting the model");
    ort.env.wasm.wasmBinary = files["ort-wasm-simd-threaded.wasm"];
    return await open(ort, name => files[`model/${name}`]);
  } catch (error) {
    stop.abort();
    throw new Error(`The model cannot be loaded (${error.message}). Reload the page to try again.`);
  }
}

// A file as bytes; those that come are counted as they come.
async function read(name, count = () => {}, signal = null) {
  const response = await fetch(new URL(name, import.meta.url), { signal }).catch(() => null);
  if (!response?.ok) throw new Error(`${name}: ${response ? response.status : "no answer"}`);
  const counted = new TransformStream({ transform: (bytes, out) => (count(bytes.length), out.enqueue(bytes)) });
  return new Uint8Array(await new Response(response.body.pipeThrough(counted)).arrayBuffer());
}

let told = "";
function tell(progress) {
  if (progress !== told) postMessage({ progress: (told = progress) });
}

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
