// What the form says, as an object, as requests, and as the fragment of a share link.

const form = document.getElementById("form");
const SIDES = ["a", "b"].map(name => document.getElementById(`side-${name}`));
const BLANK = /_{3,}/;
const COMMON = ["text", "length", "temperature", "seed"];
const PER_SIDE = ["model", "plan", "steps"];
const field = name => document.getElementById(name);
const of = (side, name) => side.querySelector(`[name=${name}]`);

let known = [];

// Fill the lists of models and plans; a change of the model changes the plans and the longest text.
export function offer(models) {
  known = models;
  for (const side of SIDES) {
    of(side, "model").replaceChildren(...models.map(({ id }) => new Option(id)));
    of(side, "model").addEventListener("change", () => fit(side));
    fit(side);
  }
  field("text").addEventListener("input", fitLength);
}

function fit(side) {
  const { plans } = known.find(({ id }) => id === of(side, "model").value);
  const list = of(side, "plan"), before = list.value;
  list.replaceChildren(...plans.map(name => new Option(name)));
  list.disabled = !plans.length;
  if (plans.includes(before)) list.value = before; // else the first, which is the usual one
  fitLength();
}

// A text with blanks has the length it has.
function fitLength() {
  field("length").disabled = BLANK.test(field("text").value);
  field("length").max = Math.min(...used().map(side => known.find(({ id }) => id === of(side, "model").value).length));
}

const used = () => SIDES.filter(side => !side.disabled);

// Two texts side by side, or one. The second begins as the first, on another plan.
export function compare(isOn) {
  const [a, b] = SIDES;
  if (isOn && b.disabled) {
    of(b, "model").value = of(a, "model").value;
    fit(b);
    of(b, "steps").value = of(a, "steps").value;
    const plans = [...of(b, "plan").options].map(({ value }) => value);
    if (plans.length) of(b, "plan").value = plans.find(name => name !== of(a, "plan").value) ?? plans[0];
  }
  b.hidden = b.disabled = !isOn;
  form.classList.toggle("two", isOn);
  fitLength();
}

export const isComparing = () => used().length === 2;

// The first field that holds no number of its range, as one line; null if all do.
export function complaint() {
  for (const input of form.querySelectorAll("input:enabled")) {
    if (input.closest("[disabled]") || (input.value !== "" && input.validity.valid)) continue;
    const name = input.parentElement.firstChild.data.trim(), whole = input.step === "" ? "a whole number" : "a number";
    return { input, message: `${name} must be ${whole} between ${input.min} and ${input.max}.` };
  }
  return null;
}

// One request for each text; both have the same noise.
export function requests() {
  const text = field("text").value;
  const given = BLANK.test(text) ? { infill: text } : { ...(text.trim() && { prompt: text }), length: number("length") };
  const common = { temperature: number("temperature"), seed: number("seed"), index: 0, alternatives: 5 };
  return used().map(side => ({
    model: of(side, "model").value, ...given, steps: Number(of(side, "steps").value),
    ...(of(side, "plan").value && { plan: of(side, "plan").value }), ...common,
  }));
}

const number = name => Number(field(name).value);

export function nextSeed() {
  field("seed").value = number("seed") + 1;
}

// --- share links ----------------------------------------------------------------------------------------------------

export function toFragment() {
  const pairs = COMMON.filter(name => field(name).value !== "").map(name => [name, field(name).value]);
  used().forEach((side, i) => pairs.push(...PER_SIDE.map(name => [name + (i ? "2" : ""), of(side, name).value])));
  return new URLSearchParams(pairs.filter(([, value]) => value !== "")).toString();
}

// Whatever the fragment names and the page knows; says what it does not know.
export function fromFragment(fragment) {
  const given = new URLSearchParams(fragment), unknown = [];
  for (const name of COMMON) if (given.has(name)) field(name).value = given.get(name);
  compare(["model2", "plan2", "steps2"].some(name => given.has(name)));
  used().forEach((side, i) => PER_SIDE.forEach(name => {
    const value = given.get(name + (i ? "2" : "")), input = of(side, name);
    if (value === null) return;
    if (input.options && ![...input.options].some(option => option.value === value)) unknown.push(`${name} ${value}`);
    else input.value = value;
    if (name === "model") fit(side);
  }));
  fitLength();
  return unknown;
}
