// The engine of the static page: the bundled model in a worker of this browser. It asks no server for anything but files.

import { PLANS, USUAL } from "./plans.js";

const worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
const listeners = new Map(); // by the number of a text
const FAILED = { type: "error", message: "The model cannot be started in this browser. Reload the page to try again." };
let count = 0, isBroken = false, tellPage = () => {};
worker.addEventListener("message", ({ data: { number, message, progress } }) => {
  if (progress === undefined) listeners.get(number)?.(message);
  else tellPage(progress);
});
worker.addEventListener("error", () => {
  isBroken = true;
  for (const listen of listeners.values()) listen(FAILED);
});

export async function models(tell) {
  tellPage = tell;
  const about = await (await fetch(new URL("model/model.json", import.meta.url))).json();
  const { name, length, process, parameters } = about;
  const plans = Object.keys(PLANS).sort((a, b) => (b === USUAL.plan) - (a === USUAL.plan)); // the usual one first
  return [{ id: name, length, process: process.name, plans, parameters }];
}

export async function* run(request, signal) {
  signal?.throwIfAborted();
  const number = ++count, waiting = [];
  let wake = () => {};
  const come = what => {
    waiting.push(what);
    wake();
  };
  const stop = () => come(null);
  listeners.set(number, come);
  signal?.addEventListener("abort", stop);
  if (isBroken) come(FAILED);
  else worker.postMessage({ number, request });
  let isOver = false;
  try {
    while (!isOver) {
      while (!waiting.length) await new Promise(resolve => (wake = resolve));
      const message = waiting.shift();
      signal?.throwIfAborted();
      isOver = message.type === "done" || message.type === "error";
      yield message;
    }
  } finally {
    listeners.delete(number);
    signal?.removeEventListener("abort", stop);
    if (!isOver) worker.postMessage({ number });
  }
}
