// The engine behind `unmask play`: the server that gave this page, which sends a draft step by step.

const GONE = "The server does not answer. Is `unmask play` still running?";

export async function models() {
  const response = await ask("v1/models");
  const { data } = await response.json();
  return data.map(({ id, unmask }) => ({ id, ...unmask }));
}

export async function* run(request, signal) {
  const headers = { "Content-Type": "application/json" };
  const response = await ask("v1/drafts", { method: "POST", headers, body: JSON.stringify(request), signal });
  let isOver = false;
  for await (const message of events(response.body)) {
    isOver = message.type === "done" || message.type === "error";
    yield message;
  }
  if (!isOver) throw new Error("The server stopped before the text was done.");
}

async function ask(address, options) {
  const response = await fetch(address, options).catch(error => {
    throw error.name === "AbortError" ? error : new Error(GONE);
  });
  if (!response.ok) throw new Error(await complaint(response));
  return response;
}

// One line of what the server says is wrong, in OpenAI's form or FastAPI's.
async function complaint(response) {
  const said = await response.json().catch(() => ({}));
  const message = said.error?.message ?? said.error ?? said.detail;
  return typeof message === "string" ? message : `The server answered ${response.status} ${response.statusText}`;
}

// Server-sent events, whose data is JSON.
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split(/\r?\n\r?\n/);
      rest = parts.pop();
      for (const part of parts) {
        const data = part.split(/\r?\n/).filter(line => line.startsWith("data:")).map(line => line.slice(5));
        if (data.length) yield JSON.parse(data.join("\n"));
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
