// The order of rows in an epoch, equal to NumPy's default_rng([seed, epoch]).permutation(count):
// SeedSequence (O'Neill's seed_seq_fe), PCG64 (XSL-RR 128/64) and masked rejection.

const MULTIPLIER = 47026247687942121848144207491837523525n;
const MASK128 = (1n << 128n) - 1n;
const MASK64 = (1n << 64n) - 1n;

/** Return the 32-bit words of a seed, lowest first; NumPy takes whole numbers of any size. */
function words(seed) {
  const parts = [];
  for (let rest = BigInt(seed); rest > 0n || !parts.length; rest >>= 32n) parts.push(Number(rest & 0xffffffffn));
  return parts;
}

/** Return 64-bit words that follow from 32-bit words of entropy (SeedSequence.generate_state). */
function generated(entropy, count) {
  let constant = 0x43b0d7e5;
  const hash = (value) => {
    value = (value ^ constant) >>> 0;
    constant = Math.imul(constant, 0x931e8875) >>> 0;
    value = Math.imul(value, constant) >>> 0;
    return (value ^ (value >>> 16)) >>> 0;
  };
  const mix = (x, y) => {
    const value = (Math.imul(x, 0xca01f9dd) - Math.imul(y, 0x4973f715)) >>> 0;
    return (value ^ (value >>> 16)) >>> 0;
  };
  const pool = [0, 1, 2, 3].map((place) => hash(entropy[place] ?? 0));
  for (let from = 0; from < 4; from++)
    for (let to = 0; to < 4; to++) if (from !== to) pool[to] = mix(pool[to], hash(pool[from]));
  for (const word of entropy.slice(4)) for (let to = 0; to < 4; to++) pool[to] = mix(pool[to], hash(word));
  constant = 0x8b51f9dd;
  const out = Array.from({ length: 2 * count }, (_, place) => {
    let value = (pool[place % 4] ^ constant) >>> 0;
    constant = Math.imul(constant, 0x58f38ded) >>> 0;
    value = Math.imul(value, constant) >>> 0;
    return BigInt((value ^ (value >>> 16)) >>> 0);
  });
  return Array.from({ length: count }, (_, place) => out[2 * place] | (out[2 * place + 1] << 32n));
}

/** Return a function that gives the next 32-bit number of PCG64. */
function pcg64(entropy) {
  const [high, low, streamHigh, streamLow] = generated(entropy, 4);
  const increment = ((((streamHigh << 64n) | streamLow) << 1n) | 1n) & MASK128;
  let state = (increment + ((high << 64n) | low)) & MASK128;
  const advance = () => (state = (state * MULTIPLIER + increment) & MASK128);
  advance();
  let upper = null; // the second half of a 64-bit number, for the next call
  return () => {
    if (upper !== null) {
      const value = upper;
      upper = null;
      return value;
    }
    advance();
    const folded = (state >> 64n) ^ (state & MASK64);
    const turn = state >> 122n;
    const value = ((folded >> turn) | (folded << ((64n - turn) & 63n))) & MASK64;
    upper = Number(value >> 32n);
    return Number(value & 0xffffffffn);
  };
}

/** Return a whole number from 0 to `most`: numbers of as many bits are drawn until one fits. */
function upTo(next, most) {
  const mask = 0xffffffff >>> Math.clz32(most);
  for (;;) {
    const drawn = (next() & mask) >>> 0;
    if (drawn <= most) return drawn;
  }
}

/** Return the row numbers of an epoch in the order in which ortpipe trains on them: Uint32Array [count]. */
export function order(count, seed, epoch) {
  const next = pcg64([...words(seed), ...words(epoch)]);
  const rows = Uint32Array.from({ length: count }, (_, place) => place);
  for (let last = count - 1; last > 0; last--) {
    const place = upTo(next, last);
    [rows[last], rows[place]] = [rows[place], rows[last]];
  }
  return rows;
}
