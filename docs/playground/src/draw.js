// The exact draw of inference/categorical.py: one uniform a position, by inverse CDF, in float64.

const RUN = 256; // states in a run: sums are taken in runs, so that no table of all states is scanned

// The law of one position. `weights` are exp(logit - largest), `total` their sum, `edges` the sums of whole runs.
export function shape(logits, maskId, temperature, topP) {
  const shaped = Float64Array.from(logits);
  shaped[maskId] = -Infinity;
  if (temperature !== 1 && temperature !== 0) shaped.forEach((x, i) => (shaped[i] = x / temperature));
  if (temperature === 0) onlyLargest(shaped);
  if (topP < 1) nucleus(shaped, topP);
  return weigh(shaped);
}

function largest(numbers) {
  return numbers.reduce((a, b) => Math.max(a, b), -Infinity);
}

function onlyLargest(shaped) {
  const first = shaped.indexOf(largest(shaped));
  shaped.forEach((_, i) => i !== first && (shaped[i] = -Infinity));
}

// The fewest likeliest states whose probability reaches topP; the likeliest always stays.
function nucleus(shaped, topP) {
  const order = Array.from(shaped.keys()).sort((a, b) => shaped[b] - shaped[a]), top = shaped[order[0]];
  const weights = order.map(i => Math.exp(shaped[i] - top)), total = weights.reduce((a, b) => a + b, 0);
  let sum = 0;
  order.forEach((state, place) => {
    const p = weights[place] / total;
    sum += p;
    if (place && sum - p >= topP) shaped[state] = -Infinity;
  });
}

function weigh(shaped) {
  const top = largest(shaped), weights = shaped.map(x => Math.exp(x - top)), edges = [];
  let total = 0;
  for (let start = 0; start < weights.length; start += RUN) {
    total += weights.subarray(start, start + RUN).reduce((a, b) => a + b, 0);
    edges.push(total);
  }
  return { weights, edges, total };
}

// Where the cumulative weight first exceeds uniform * total: the state and its log-probability.
export function pick({ weights, edges, total }, uniform) {
  const target = uniform * total, run = firstAbove(edges, target), before = run ? edges[run - 1] : 0;
  const inside = weights.subarray(run * RUN, (run + 1) * RUN);
  let sum = 0;
  const state = firstAbove(Array.from(inside, weight => before + (sum += weight)), target);
  // sums of runs and sums within a run may round apart: never past the last state that has weight
  const token = run * RUN + Math.min(state, inside.findLastIndex(weight => weight > 0));
  return { token, logProb: Math.log(weights[token]) - Math.log(total) };
}

// The first rising edge that exceeds the target; rounding may put the target on the total itself.
function firstAbove(edges, target) {
  const found = edges.findIndex(edge => edge > target);
  return found < 0 ? edges.indexOf(edges.at(-1)) : found;
}

// The k likeliest states and their probabilities.
export function likeliest({ weights, total }, k) {
  const found = [];
  weights.forEach((weight, token) => {
    if (weight === 0 || (found.length === k && weight <= (found.at(-1)?.weight ?? Infinity))) return;
    const place = found.findIndex(one => one.weight < weight);
    found.splice(place < 0 ? found.length : place, 0, { token, weight });
    found.length = Math.min(found.length, k);
  });
  return found.map(({ token, weight }) => ({ token, probability: weight / total }));
}
