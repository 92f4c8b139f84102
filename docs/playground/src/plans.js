// Plans: which position is revealed in which step, as plans/plan.py has them, on the grid `rank`.
//
// A plan makes of (blank, steps, noise) an assignment: `step` of every position (-1 where nothing is blank), how many
// `steps` there are, and for a plan that looks at the model's law also `block`, `tie` and `confidence`.

import * as laws from "./laws.js";
import { rising } from "./laws.js";

const BLOCK = 32; // positions
const TIE = 1e-5; // confidences this near are equal
const EPSILON = 1e-6; // keeps a rank that meets an edge from rounding into the step before it
const BELOW_1 = 1 - 2 ** -53;

export const PLANS = {
  iid: locked(laws.iid),
  permutation: locked(laws.permutation),
  golden: locked(laws.golden),
  van_der_corput: locked(laws.van_der_corput),
  comb: locked(laws.comb, { forSteps: true }),
  rotation: locked(laws.rotation, { forSteps: true }),
  stride: locked(laws.stride, { forSteps: true, classes: true }),
  dilated: locked(laws.dilated),
  left_to_right: (blank, steps) => ({ step: byRank(leftToRight(blank), blank, steps, 1), steps }),
  confidence: adaptive(mostLikely),
  entropy: adaptive(leastEntropy),
  blocks,
};
export const USUAL = { plan: "comb", steps: 32 }; // where nobody says

// --- plans that know everything beforehand --------------------------------------------------------------------------

function locked(law, { forSteps = false, classes = false } = {}) {
  return (blank, steps, noise) => {
    let u = law(blank.length, noise, steps).map(value => Math.min(value, BELOW_1));
    if (forSteps) u = together(blank).map(place => u[place]);
    return { step: byRank(u, blank, steps, classes ? steps : 1), steps };
  };
}

// The place of each blank if all moved up to the first.
function together(blank) {
  const first = Math.max(0, blank.indexOf(true));
  let seen = 0;
  return blank.map(isBlank => Math.max(0, first + (seen += isBlank) - 1));
}

function leftToRight(blank) {
  const count = Math.max(1, blank.filter(Boolean).length);
  let seen = 0;
  return blank.map(isBlank => (Math.max(0, (seen += isBlank) - 1) + EPSILON) / count);
}

// Rank r of the n blanks in cell c of C goes to the step whose share of [0, 1) holds (c + r/n)/C.
function byRank(u, blank, steps, cells) {
  const edges = Array.from({ length: steps }, (_, k) => 1 - (1 - (k + 1) / steps));
  const order = rising(Float64Array.from(blank, (isBlank, i) => (isBlank ? u[i] : 2)));
  const cell = i => Math.min(cells - 1, Math.floor(u[i] * cells));
  const count = new Array(cells).fill(0), seen = new Array(cells).fill(0), step = new Array(blank.length).fill(-1);
  blank.forEach((isBlank, i) => isBlank && count[cell(i)]++);
  for (const i of order) {
    if (!blank[i]) continue;
    const c = cell(i), share = (c + (seen[c]++ + EPSILON) / count[c]) / cells;
    step[i] = Math.min(steps - 1, edges.filter(edge => edge <= share).length);
  }
  return step;
}

// Blocks from left to right, golden inside each.
function blocks(blank, steps, noise) {
  const block = blank.map((_, i) => Math.floor(i / BLOCK)), counts = new Array(block.at(-1) + 1).fill(0);
  blank.forEach((isBlank, i) => (counts[block[i]] += isBlank));
  const step = new Array(blank.length).fill(-1);
  let done = 0;
  dealSteps(counts, steps).forEach((share, number) => {
    if (!share) return;
    const inside = blank.map((isBlank, i) => isBlank && block[i] === number);
    PLANS.golden(inside, share, noise).step.forEach((k, i) => inside[i] && (step[i] = done + k));
    done += share;
  });
  return { step, steps: done };
}

// One step where there is a blank, each further one where the most blanks wait for a step.
function dealSteps(counts, steps) {
  const dealt = counts.map(count => Number(count > 0)), sum = numbers => numbers.reduce((a, b) => a + b, 0);
  for (let left = Math.min(steps, sum(counts)) - sum(dealt); left > 0; left--) {
    let most = 0;
    const waiting = i => (dealt[i] ? counts[i] / dealt[i] : 0);
    counts.forEach((_, i) => waiting(i) > waiting(most) && (most = i));
    dealt[most]++;
  }
  return dealt;
}

// --- plans that look at the model's law -----------------------------------------------------------------------------

function adaptive(confidence) {
  return (blank, steps, noise) => {
    const tie = laws.iid(blank.length, noise); // chance decides between equally confident ones
    return { step: byRank(leftToRight(blank), blank, steps, 1), steps, tie, confidence };
  };
}

// Of a law as log-weights.
function mostLikely(law) {
  return 1 / law.total; // the largest weight is 1
}

function leastEntropy(law) {
  let sum = 0;
  for (const weight of law.weights) if (weight > 0) sum += weight * Math.log(weight);
  return sum / law.total - Math.log(law.total);
}

// Which of the candidates a step reveals: so many of the most confident.
export function keepMostConfident(confidence, tie, quota) {
  const order = Array.from(confidence.keys()).sort((a, b) => confidence[b] - confidence[a] || a - b);
  const last = confidence[order[Math.min(quota, order.length) - 1]];
  const rank = confidence.map(value => (Math.abs(value - last) < TIE ? 1 : value > last ? 0 : 2)); // in, tied, out
  const kept = Array.from(confidence.keys()).sort((a, b) => rank[a] - rank[b] || tie[a] - tie[b]).slice(0, quota);
  return kept.sort((a, b) => a - b);
}
