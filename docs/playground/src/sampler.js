// The sampler of `unmask sample`, for one text: at each step the body once, head and draw where tokens appear.
//
// A model has `about` (its model.json), a `tokenizer`, and two promises: `features(ids)`, and `logits(features, where)`,
// a row for each of these positions.

import { likeliest, pick, shape } from "./draw.js";
import { stream } from "./noise.js";
import { PLANS, USUAL, keepMostConfident } from "./plans.js";
import { Mistake, template } from "./template.js";

// Messages as the server sends them: start, a step that changed something, ..., done.
export async function* write(model, request) {
  const asked = { ...USUAL, temperature: 1, top_p: 1, seed: 0, index: 0, alternatives: 0, ...withoutNulls(request) };
  check(asked);
  const ids = template(asked, model), began = now(), { tokenizer } = model;
  yield {
    type: "start", length: ids.length, tokens: ids, texts: ids.map(id => (id === null ? null : tokenizer.decode([id]))),
    given: ids.map(id => id !== null), steps: asked.steps, plan: asked.plan, model: asked.model,
  };
  let nfe = 0, sum = 0;
  const draft = new Draft(model, asked, ids);
  for (let step = 0; step < draft.plan.steps; step++) {
    const drawn = await draft.take(step);
    if (!drawn.length) continue;
    nfe += 1;
    for (const { log_prob: logProb } of drawn) sum += logProb;
    yield { type: "step", step: step + 1, steps: draft.plan.steps, nfe, seconds: now() - began, changes: drawn };
  }
  yield { type: "done", text: tokenizer.decode(draft.ids), tokens: draft.ids, log_prob: sum, nfe, seconds: now() - began };
}

// A text under way.
class Draft {
  constructor(model, asked, ids) {
    this.model = model;
    this.asked = asked;
    this.ids = ids.map(id => id ?? model.about.mask_id);
    this.blank = ids.map(id => id === null); // what is not written yet
    this.uniform = stream(asked.seed, "draw", asked.index).uniform(ids.length);
    this.plan = PLANS[asked.plan](this.blank.slice(), asked.steps, stream(asked.seed, "reveal", asked.index));
  }

  async take(step) {
    const { plan, blank } = this, due = places(plan.step.map(k => k === step));
    if (!due.length) return [];
    const features = await this.model.features(this.ids);
    const where = plan.confidence ? await this.#surest(features, places(blank), due.length) : due;
    const rows = await this.model.logits(features, where);
    return where.map((position, m) => this.#draw(position, rows[m]));
  }

  // The positions that the model is surest of.
  async #surest(features, candidates, count) {
    const { plan, asked } = this, rows = await this.model.logits(features, candidates);
    const plain = asked.temperature === 0; // a point mass is sure of itself everywhere
    const confidence = rows.map(row => plan.confidence(plain ? this.#law(row, 1, 1) : this.#law(row)));
    const kept = keepMostConfident(confidence, candidates.map(i => plan.tie[i]), count);
    return kept.map(m => candidates[m]);
  }

  #law(logits, temperature = this.asked.temperature, topP = this.asked.top_p) {
    return shape(logits, this.model.about.mask_id, temperature, topP);
  }

  #draw(position, logits) {
    const { tokenizer } = this.model, law = this.#law(logits), { token, logProb } = pick(law, this.uniform[position]);
    if (!Number.isFinite(logProb)) throw new Error("the model gave a law that is not finite");
    this.ids[position] = token;
    this.blank[position] = false;
    const alternatives = likeliest(law, this.asked.alternatives).map(one => ({ ...one, text: tokenizer.decode([one.token]) }));
    return { position, token, text: tokenizer.decode([token]), log_prob: logProb, probability: Math.exp(logProb), alternatives };
  }
}

function check({ plan, steps, temperature, top_p: topP, seed, index }) {
  if (!Object.hasOwn(PLANS, plan)) throw new Mistake(`unknown plan '${plan}': allowed: ${Object.keys(PLANS).join(", ")}`);
  if (!(Number.isInteger(steps) && steps >= 1)) throw new Mistake(`steps must be at least 1, not ${steps}`);
  if (!(temperature >= 0 && temperature < Infinity)) {
    throw new Mistake(`temperature must be at least 0 and finite, not ${temperature}`);
  }
  if (!(topP > 0 && topP <= 1)) throw new Mistake(`top_p must be above 0 and at most 1, not ${topP}`);
  for (const number of [seed, index]) {
    if (!Number.isSafeInteger(number)) throw new Mistake(`seed and index are whole numbers below 2^53, not ${number}`);
  }
}

const now = () => performance.now() / 1000;
const places = wanted => wanted.flatMap((is, i) => (is ? [i] : []));
const withoutNulls = request => Object.fromEntries(Object.entries(request).filter(([, value]) => value !== null && value !== undefined));
