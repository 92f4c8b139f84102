// Laws of u, as plans/laws.py has them: position i is revealed in order of u_i. L positions, a generator, N steps.

const GOLDEN = (Math.sqrt(5) - 1) / 2;
const MOST = 12; // of a rotation: positions further apart may share a step

export const iid = (L, noise) => noise.uniform(L);

export function permutation(L, noise) {
  const order = rising(noise.uniform(L));
  return noise.uniform(L).map((u, i) => (order[i] + u) / L);
}

export function golden(L, noise) {
  const shift = noise.uniform();
  return places(L, i => fraction(i * GOLDEN + shift));
}

export function van_der_corput(L, noise) {
  const bits = Math.max(1, bitLength(L - 1)), shift = BigInt(noise.whole53());
  return places(L, i => {
    let mirrored = 0n;
    for (let bit = 0; bit < bits; bit++) mirrored |= BigInt((i >> bit) & 1) << BigInt(52 - bit);
    return Number(mirrored ^ shift) / 2 ** 53;
  });
}

export function stride(L, noise, steps) {
  const order = rising(noise.uniform(steps));
  return noise.uniform(L).map((u, i) => (order[i % steps] + u) / steps);
}

export function dilated(L, noise) {
  const m = Math.max(1, bitLength(L - 1)), P = 1 << m;
  const level = r => (r === 0 ? -1 : m - 1 - Math.round(Math.log2(r & -r)));
  const rank = new Array(P);
  rising(noise.uniform(P).map((u, r) => level(r) + u)).forEach((residue, place) => (rank[residue] = place));
  const offset = noise.below(P);
  return noise.uniform(L).map((u, i) => (rank[(i + offset) % P] + u) / P);
}

export function comb(L, noise, steps) {
  const drift = steps > 2 ? 0.5 : 0;
  return turning(L, noise, [[1 - (1 + drift) / steps, 1 - 1 / steps]]);
}

export function rotation(L, noise, steps) {
  return turning(L, noise, steps <= 2 ? [[1 / steps, 1 / steps]] : allowed(steps, Math.min(Math.floor(steps / 2), MOST)));
}

// u_i = frac(shift + i turn), the turn uniform over intervals.
function turning(L, noise, intervals) {
  const shift = noise.uniform(), share = noise.uniform(), ends = [];
  for (const [low, high] of intervals) ends.push((ends.at(-1) ?? 0) + (high - low));
  const at = share * ends.at(-1), above = ends.filter(end => end <= at).length;
  const which = Math.min(above, ends.length - 1), turn = intervals[which][1] - (ends[which] - at);
  return places(L, i => fraction(fraction(i * turn) + shift));
}

// The turns that keep positions up to K apart out of one step.
function allowed(steps, K) {
  const edges = new Set([0, 1]);
  for (let k = 1; k <= K; k++) {
    for (let whole = 0; whole <= k; whole++) {
      for (const side of [-1, 1]) {
        const edge = (whole + side / steps) / k;
        if (edge > 0 && edge < 1) edges.add(edge);
      }
    }
  }
  const cuts = [...edges].sort((a, b) => a - b);
  const far = middle => {
    for (let k = 1; k <= K; k++) if (Math.abs(k * middle - Math.round(k * middle)) < 1 / steps) return false;
    return true;
  };
  return cuts.slice(1).map((b, i) => [cuts[i], b]).filter(([a, b]) => far((a + b) / 2));
}

// --- small things ---------------------------------------------------------------------------------------------------

const fraction = x => x - Math.trunc(x);
const bitLength = n => (n > 0 ? 32 - Math.clz32(n) : 0);
const places = (L, law) => Float64Array.from({ length: L }, (_, i) => law(i));

// The places of numbers in rising order; equal ones stay in order.
export function rising(numbers) {
  return Array.from(numbers.keys()).sort((a, b) => numbers[a] - numbers[b] || a - b);
}
