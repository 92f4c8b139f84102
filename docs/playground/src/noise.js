// The random numbers of `unmask`, to the bit: a generator a key, each torch's own for a CPU (the Mersenne twister).

const WORDS = 624, SHIFT = 397;

// The stream of a key, as core/streams.py names it: stream(seed, "draw", 3).
export function stream(...key) {
  const text = key.map(part => (typeof part === "number" ? `int:${part}` : `str:${part}`)).join("\x1f");
  return new Generator(lowSeed(sha256(new TextEncoder().encode(text))));
}

// Of the 63-bit seed, the 64 first bits halved, the twister reads the lower 32.
function lowSeed(digest) {
  const low = digest[0] | (digest[1] << 8) | (digest[2] << 16) | (digest[3] << 24);
  return ((low >>> 1) | ((digest[4] & 1) << 31)) >>> 0;
}

export class Generator {
  constructor(seed) {
    this.state = new Uint32Array(WORDS);
    this.state[0] = seed;
    for (let i = 1; i < WORDS; i++) {
      const before = this.state[i - 1];
      this.state[i] = Math.imul(1812433253, before ^ (before >>> 30)) + i;
    }
    this.at = WORDS;
  }

  // 32 bits.
  bits() {
    if (this.at === WORDS) this.#turn();
    let y = this.state[this.at++];
    y ^= y >>> 11;
    y ^= (y << 7) & 0x9d2c5680;
    y ^= (y << 15) & 0xefc60000;
    return (y ^ (y >>> 18)) >>> 0;
  }

  #turn() {
    const { state } = this;
    for (let i = 0; i < WORDS; i++) {
      const y = (state[i] & 0x80000000) | (state[(i + 1) % WORDS] & 0x7fffffff);
      state[i] = state[(i + SHIFT) % WORDS] ^ (y >>> 1) ^ (y & 1 ? 0x9908b0df : 0);
    }
    this.at = 0;
  }

  // A whole number below 2^53, evenly.
  whole53() {
    const high = this.bits() & 0x1fffff;
    return high * 2 ** 32 + this.bits();
  }

  // torch.rand in float64: one number, or n of them.
  uniform(n) {
    return n === undefined ? this.whole53() / 2 ** 53 : Float64Array.from({ length: n }, () => this.uniform());
  }

  // torch.randint(n) for a power of two below 2^32.
  below(n) {
    return this.bits() % n;
  }
}

// --- sha256, since the browser's own is asynchronous and only there under https --------------------------------------

const PRIMES = firstPrimes(64);
const K = PRIMES.map(prime => fraction(Math.cbrt(prime)));
const START = PRIMES.slice(0, 8).map(prime => fraction(Math.sqrt(prime)));

function firstPrimes(count) {
  const found = [];
  for (let n = 2; found.length < count; n++) if (found.every(prime => n % prime)) found.push(n);
  return found;
}

// The first 32 bits behind the point.
function fraction(root) {
  return ((root % 1) * 2 ** 32) >>> 0;
}

export function sha256(bytes) {
  const blocks = (bytes.length + 72) >> 6, padded = new Uint8Array(blocks * 64);
  padded.set(bytes);
  padded[bytes.length] = 0x80;
  const view = new DataView(padded.buffer);
  view.setUint32(padded.length - 4, bytes.length * 8);
  const hash = Uint32Array.from(START);
  for (let block = 0; block < blocks; block++) mix(hash, schedule(view, block * 64));
  const digest = new DataView(new ArrayBuffer(32));
  hash.forEach((word, i) => digest.setUint32(4 * i, word));
  return new Uint8Array(digest.buffer);
}

const turn = (x, n) => (x >>> n) | (x << (32 - n));

function schedule(view, at) {
  const w = new Uint32Array(64);
  for (let i = 0; i < 16; i++) w[i] = view.getUint32(at + 4 * i);
  for (let i = 16; i < 64; i++) {
    const a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + w[i - 7] + (turn(a, 7) ^ turn(a, 18) ^ (a >>> 3)) + (turn(b, 17) ^ turn(b, 19) ^ (b >>> 10));
  }
  return w;
}

function mix(hash, w) {
  let [a, b, c, d, e, f, g, h] = hash;
  for (let i = 0; i < 64; i++) {
    const t1 = h + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & f) ^ (~e & g)) + K[i] + w[i];
    const t2 = (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    [h, g, f, e, d, c, b, a] = [g, f, e, (d + t1) | 0, c, b, a, (t1 + t2) | 0];
  }
  [a, b, c, d, e, f, g, h].forEach((word, i) => (hash[i] += word));
}
