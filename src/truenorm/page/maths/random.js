/*
Random numbers: NumPy's `default_rng`, to the bit, so that a run in the page draws what the same run of the lab draws.

    const rng = defaultRng([seed, 2]);
    rng.normal(); rng.random(); rng.integer(27); rng.permutation(5); rng.gumbel();

`SeedSequence` turns the seed into 256 bits, PCG64 makes 64 random bits at a time from a state of 128, and the rest
turns bits into numbers. A word of more than 32 bits is several numbers of 32 bits here, the lowest first: JavaScript's
numbers are exact up to 53 bits only, and BigInt is slow.
*/

/**
 * @typedef {ReturnType<typeof defaultRng>} Rng
 */

/**
 * NumPy's generator for a list of whole numbers, each from 0 to 2⁵³ - 1.
 * @type {(seed: number[]) => { random(): number; normal(): number; integer(below: number): number;
 *     permutation(n: number): number[]; gumbel(): number }}
 */
export function defaultRng(seed) {
    const bits = pcg64(seedWords(seed, 8));
    const { low, high } = bits;
    let spare = -1; // the upper half of the last word, for the next 32 bits

    /** From 0 to below 1, in steps of 2⁻⁵³. */
    function random() {
        bits.next();
        return (high() * 0x200000 + (low() >>> 11)) * 2 ** -53;
    }

    function next32() {
        if (spare >= 0) {
            const word = spare;
            spare = -1;
            return word;
        }
        bits.next();
        spare = high();
        return low();
    }

    /**
     * From 0 to below `below`, which is at most 2³²: the upper half of a product, where every number is equally often.
     * @type {(below: number) => number}
     */
    function integer(below) {
        if (below === 1) return 0;
        const few = (2 ** 32 - below) % below; // products whose lower half is less than this are one too many
        for (;;) {
            const word = next32();
            const lower = Math.imul(word, below) >>> 0;
            if (lower >= few) return highProduct(word, below);
        }
    }

    /** The standard normal distribution, by Marsaglia and Tsang's ziggurat of 256 layers. */
    function normal() {
        for (;;) {
            bits.next();
            const word = low(), upper = high();
            const layer = word & 0xff;
            const size = (upper & 0x1fffffff) * 2 ** 23 + (word >>> 9); // 52 bits
            const x = (word & 0x100 ? -size : size) * ZIGGURAT.width[layer];
            if (size < ZIGGURAT.inside[layer]) return x;
            if (layer === 0) return tail(((word >>> 17) & 1) === 1);
            const { density } = ZIGGURAT;
            const height = (density[layer - 1] - density[layer]) * random() + density[layer];
            if (height < Math.exp(-0.5 * x * x)) return x;
        }
    }

    /** @type {(negative: boolean) => number} */
    function tail(negative) {
        for (;;) {
            const x = -INVERSE_EDGE * Math.log1p(-random());
            const y = -Math.log1p(-random());
            if (y + y > x * x) return negative ? -(EDGE + x) : EDGE + x;
        }
    }

    /**
     * 0 to n - 1 in random order.
     * @type {(n: number) => number[]}
     */
    function permutation(n) {
        const order = Array.from({ length: n }, (_, i) => i);
        for (let i = n - 1; i > 0; i--) {
            const mask = 2 ** (32 - Math.clz32(i)) - 1;
            let j = next32() & mask; // NumPy shuffles by rejection, not as it draws integers
            while (j > i) j = next32() & mask;
            [order[i], order[j]] = [order[j], order[i]];
        }
        return order;
    }

    /** The Gumbel distribution: the largest of logits + gumbel() is a draw from their softmax. */
    function gumbel() {
        for (;;) {
            const u = 1 - random();
            if (u < 1) return -Math.log(-Math.log(u));
        }
    }

    return { random, normal, integer, permutation, gumbel };
}

/**
 * NumPy's SeedSequence: `count` words of 32 bits. Every bit of the seed changes about half of all bits.
 * @type {(seed: number[], count: number) => number[]}
 */
export function seedWords(seed, count) {
    const entropy = seed.flatMap((one) => (one < 2 ** 32 ? [one] : [one % 2 ** 32, Math.floor(one / 2 ** 32)]));
    let multiplier = 0x43b0d7e5;
    /** @type {(word: number, factor: number) => number} */
    const hash = (word, factor) => {
        const mixed = word ^ multiplier;
        multiplier = Math.imul(multiplier, factor);
        return fold(Math.imul(mixed, multiplier));
    };
    const toPool = (/** @type {number} */ word) => hash(word, 0x931e8875);
    /** @type {(one: number, two: number) => number} */
    const mix = (one, two) => fold(Math.imul(0xca01f9dd, one) - Math.imul(0x4973f715, two));
    const pool = [0, 1, 2, 3].map((i) => toPool(entropy[i] ?? 0));
    for (let from = 0; from < 4; from++) {
        for (let to = 0; to < 4; to++) if (from !== to) pool[to] = mix(pool[to], toPool(pool[from]));
    }
    for (const word of entropy.slice(4)) for (let to = 0; to < 4; to++) pool[to] = mix(pool[to], toPool(word));
    multiplier = 0x8b51f9dd;
    return Array.from({ length: count }, (_, i) => hash(pool[i % 4], 0x58f38ded) >>> 0);
}

/** @type {(word: number) => number} */
function fold(word) {
    return word ^ (word >>> 16);
}

/**
 * PCG64: a linear congruential generator of 128 bits. Its output is the xor of the state's halves, rotated.
 * @type {(words: number[]) => { next(): void; low(): number; high(): number }}
 */
function pcg64(words) {
    // Each 64-bit word of the seed has its lower half first, but the upper of two 64-bit words comes first.
    const [start, stream] = [[words[2], words[3], words[0], words[1]], [words[6], words[7], words[4], words[5]]];
    const step = stream.map((word, i) => ((word << 1) | (i ? stream[i - 1] >>> 31 : 1)) >>> 0);
    const [c0, c1, c2, c3] = step;
    // The state, in two's complement: a number is read as unsigned by >>> 0.
    let [s0, s1, s2, s3] = [0, 0, 0, 0];
    let [low, high] = [0, 0];

    /** state = state · 0x2360ed051fc65da44385df649fccf645 + step, modulo 2¹²⁸. */
    function advance() {
        const a0 = s0, a1 = s1, a2 = s2, a3 = s3;
        // A column of the product is the lower halves of some products and the upper halves of the column before.
        let sum = (Math.imul(a0, 0x9fccf645) >>> 0) + c0;
        s0 = sum | 0;
        sum = highProduct(a0, 0x9fccf645) + (Math.imul(a0, 0x4385df64) >>> 0) + (Math.imul(a1, 0x9fccf645) >>> 0) + c1
            + (sum >= 0x100000000 ? 1 : 0);
        s1 = sum | 0;
        sum = highProduct(a0, 0x4385df64) + highProduct(a1, 0x9fccf645) + (Math.imul(a0, 0x1fc65da4) >>> 0)
            + (Math.imul(a1, 0x4385df64) >>> 0) + (Math.imul(a2, 0x9fccf645) >>> 0) + c2
            + Math.floor(sum / 0x100000000);
        s2 = sum | 0;
        s3 = (highProduct(a0, 0x1fc65da4) + highProduct(a1, 0x4385df64) + highProduct(a2, 0x9fccf645)
            + (Math.imul(a0, 0x2360ed05) >>> 0) + (Math.imul(a1, 0x1fc65da4) >>> 0) + (Math.imul(a2, 0x4385df64) >>> 0)
            + (Math.imul(a3, 0x9fccf645) >>> 0) + c3 + Math.floor(sum / 0x100000000)) | 0;
    }

    /** Make the next 64 bits. They are read by `low` and `high`, which costs less than to return a pair. */
    function next() {
        advance();
        const turn = s3 >>> 26;
        const lower = turn < 32 ? s0 ^ s2 : s1 ^ s3;
        const upper = turn < 32 ? s1 ^ s3 : s0 ^ s2;
        const by = turn & 31;
        low = by === 0 ? lower >>> 0 : ((lower >>> by) | (upper << (32 - by))) >>> 0;
        high = by === 0 ? upper >>> 0 : ((upper >>> by) | (lower << (32 - by))) >>> 0;
    }

    advance();
    let carry = 0;
    [s0, s1, s2, s3] = [s0, s1, s2, s3].map((word, i) => {
        const sum = (word >>> 0) + start[i] + carry;
        carry = Math.floor(sum / 0x100000000);
        return sum | 0;
    });
    advance();
    return { next, low: () => low, high: () => high };
}

/**
 * The upper half of the product of two words of 32 bits.
 * @type {(a: number, b: number) => number}
 */
function highProduct(a, b) {
    const a0 = a & 0xffff, a1 = a >>> 16, b0 = b & 0xffff, b1 = b >>> 16;
    const middle = (Math.imul(a1, b0) >>> 0) + (Math.imul(a0, b0) >>> 16); // less than 2³²
    const other = (Math.imul(a0, b1) >>> 0) + (middle & 0xffff);
    return (Math.imul(a1, b1) >>> 0) + (middle >>> 16) + (other >>> 16);
}

// ---- the ziggurat ----

const EDGE = 3.6541528853610088; // where the tail begins
const INVERSE_EDGE = 0.27366123732975828;
const AREA = 0.004928673233974652; // of each layer, and of the tail with the rectangle below it

const BITS = 160n; // of fractions in fixed point

const ZIGGURAT = layers();

/**
 * The layers, from the top (1) to the widest (255); 0 is the tail. NumPy's tables are rounded to doubles after each
 * operation, so they are computed in the same way, with an exp and a log that every browser rounds alike.
 */
function layers() {
    const x = new Float64Array(256);
    const density = new Float64Array(256);
    [x[255], density[255], density[0]] = [EDGE, roundedExp(-0.5 * EDGE * EDGE), 1];
    for (let i = 254; i > 0; i--) {
        x[i] = Math.sqrt(-2 * roundedLog(AREA / x[i + 1] + density[i + 1]));
        density[i] = roundedExp(-0.5 * x[i] * x[i]);
        // Almost halfway between two doubles, and in NumPy's table the other one.
        if (i === 38) density[i] += 2 ** -53;
    }
    x[0] = AREA / density[255];
    return {
        density,
        width: x.map((value) => value * 2 ** -52),
        // To add 2⁵² rounds to a whole number.
        inside: x.map((value, i) => (i === 1 ? 0 : ((i ? x[i - 1] : EDGE) / value) * 2 ** 52 + 2 ** 52 - 2 ** 52)),
    };
}

/** @type {(x: number) => number} */
function roundedExp(x) {
    return fromFixed(fixedExp(toFixed(x)));
}

/**
 * A step of Halley's method from the double that is nearly right.
 * @type {(x: number) => number}
 */
function roundedLog(x) {
    const near = toFixed(Math.log(x));
    const [wanted, got] = [toFixed(x), fixedExp(near)];
    return fromFixed(near + ((2n * (wanted - got)) << BITS) / (wanted + got));
}

/**
 * (1 + x/256 + (x/256)²/2 + ...)²⁵⁶
 * @type {(x: bigint) => bigint}
 */
function fixedExp(x) {
    let [sum, term] = [1n << BITS, 1n << BITS];
    for (let n = 1n; term !== 0n && term !== -1n; n++) {
        term = ((term * (x >> 8n)) >> BITS) / n;
        sum += term;
    }
    for (let square = 0; square < 8; square++) sum = (sum * sum) >> BITS;
    return sum;
}

/**
 * Exact from 2⁻¹⁵ on.
 * @type {(x: number) => bigint}
 */
function toFixed(x) {
    return BigInt(x * 2 ** 67) << (BITS - 67n);
}

/** @type {(x: bigint) => number} */
function fromFixed(x) {
    return Number(x) * 2 ** -Number(BITS);
}
