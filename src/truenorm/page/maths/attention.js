/*
Self-attention as plain as it gets: the words of one sentence are mixed, each in proportion to how alike they are.

    attentionWeights(E) = softmax(E Eᵀ / √d)       one row a word; each row sums to 1
    selfAttention(E)    = softmax(E Eᵀ / √d) E

E is the embeddings of one sentence's words, one row a word of d numbers. Padding is never given to it, so no word
ever attends to padding. The twin of lab/attention.py with one head and identities for all of its matrices.
*/

/**
 * How much of each word goes into each word.
 * @type {(embeddings: number[][]) => number[][]}
 */
export function attentionWeights(embeddings) {
    const root = Math.sqrt(embeddings[0]?.length ?? 1);
    return embeddings.map((query) => softmaxOf(embeddings.map((key) => dotProduct(query, key) / root)));
}

/**
 * The words as mixtures of each other.
 * @type {(embeddings: number[][]) => number[][]}
 */
export function selfAttention(embeddings) {
    return attentionWeights(embeddings).map((weights) =>
        embeddings[0].map((_, column) => dotProduct(weights, embeddings.map((row) => row[column]))));
}

/**
 * e to each score, over their sum; less the largest first, as e to a large power is no number any more.
 * @type {(scores: number[]) => number[]}
 */
function softmaxOf(scores) {
    const top = Math.max(...scores);
    const powers = scores.map((score) => Math.exp(score - top));
    const sum = powers.reduce((a, b) => a + b, 0);
    return powers.map((power) => power / sum);
}

/** @type {(a: number[], b: number[]) => number} */
function dotProduct(a, b) {
    return a.reduce((sum, value, i) => sum + value * b[i], 0);
}
