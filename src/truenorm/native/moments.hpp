// Statistics: the twin of moments.py. measure -> merge.
//
// Each block of valid elements is measured in two passes while it is in the cache, and blocks are merged in order. A
// block whose float sums overflow or underflow is measured again in double.
#pragma once

#include <cmath>
#include <vector>

#include "loops.hpp"
#include "problem.hpp"
#include "threads.hpp"

namespace truenorm {

constexpr std::int64_t CHUNK_ROWS = 1024;  // rows of one item of work, and of one part that is merged

struct Moments {
    double count = 0, mean = 0, m2 = 0;
};

// The moments of both parts; exactly the other's where one is empty.
inline void merge(Moments& into, const Moments& other) {
    if (other.count == 0) return;
    if (into.count == 0) {
        into = other;
        return;
    }
    const double total = into.count + other.count, share = other.count / total, delta = other.mean - into.mean;
    into.mean += delta * share;
    into.m2 += other.m2 + delta * delta * (into.count * share);
    into.count = total;
}

// Float holds squares between about 1e-38 and 1e38: outside of what is safe, sums are taken again in double.
template <class A>
inline bool trusted(double m2) {
    return sizeof(A) == sizeof(double) || (m2 >= 1e-30 && m2 <= 1e36);
}

template <class T, class A>
Moments measure_stretch(const T* x, const double* s, std::int64_t n, bool center) {
    Moments found;
    found.count = static_cast<double>(n);
    if (s) {
        found.count = 0;
        for (std::int64_t i = 0; i < n; ++i) found.count += s[i];
        loops<T, double>().moments(x, s, n, center, &found.mean, &found.m2);
        return found;
    }
    loops<T, A>().moments(x, nullptr, n, center, &found.mean, &found.m2);
    if (!trusted<A>(found.m2)) loops<T, double>().moments(x, nullptr, n, center, &found.mean, &found.m2);
    return found;
}

// n elements one after the other, in blocks.
template <class T, class A>
Moments measure_contiguous(const T* x, std::int64_t n, bool center) {
    Moments found;
    for (std::int64_t i = 0; i < n; i += BLOCK)
        merge(found, measure_stretch<T, A>(x + i, nullptr, n - i < BLOCK ? n - i : BLOCK, center));
    return found;
}

// The valid elements of one plane: list q of runs, whose rows are steps q * extent + s. Blocks are full: where valid
// elements do not lie together, or have sample weights, they are gathered.
template <class T, class A>
Moments measure_plane(const Problem& p, const Runs& runs, std::int64_t q, const T* plane) {
    Moments found;
    const std::int64_t base = q * p.extent, total = runs.count[q];
    if (total && runs.first[q + 1] - runs.first[q] == 1 && !p.sample_weight)
        return measure_contiguous<T, A>(plane + runs.runs[runs.first[q]].start - base, total, p.center);
    T gathered[BLOCK];
    double weights[BLOCK];
    std::int64_t n = 0;
    const auto flush = [&] {
        if (n) merge(found, measure_stretch<T, A>(gathered, p.sample_weight ? weights : nullptr, n, p.center));
        n = 0;
    };
    runs.walk(q, 0, total, [&](std::int64_t start, std::int64_t length, std::int64_t) {
        for (std::int64_t i = start; i < start + length; ++i) {
            const double s = p.sample_weight ? p.sample_weight[i] : 1.0;
            if (s == 0) continue;  // counts for nothing, so it is not read
            gathered[n] = plane[i - base];
            weights[n] = s;
            if (++n == BLOCK) flush();
        }
    });
    flush();
    return found;
}

// Chunks of at most CHUNK_ROWS valid rows of one list.
struct Chunk {
    std::int64_t list, from, to;
};

inline std::vector<Chunk> chunks_of(const Runs& runs, std::int64_t rows) {
    std::vector<Chunk> chunks;
    for (std::int64_t list = 0; list < runs.lists(); ++list)
        for (std::int64_t from = 0; from < runs.count[list]; from += rows)
            chunks.push_back({list, from, runs.count[list] - from < rows ? runs.count[list] : from + rows});
    return chunks;
}

// The moments of w <= TILE columns from column c on, over one chunk of rows.
template <class T, class A>
double measure_tile(const Problem& p, const Runs& runs, const Chunk& chunk, const T* x, std::int64_t c, int w,
                    double* mean, double* m2) {
    const T* rows[BLOCK_ROWS];
    double weights[BLOCK_ROWS], block_mean[TILE], block_m2[TILE], count = 0;
    int n = 0;
    const auto flush = [&] {
        if (n == 0) return;
        double here = n;
        if (p.sample_weight) {
            here = 0;
            for (int r = 0; r < n; ++r) here += weights[r];
            loops<T, double>().column_moments(rows, weights, n, w, p.center, block_mean, block_m2);
        } else {
            loops<T, A>().column_moments(rows, nullptr, n, w, p.center, block_mean, block_m2);
            for (int k = 0; k < w; ++k) {
                if (trusted<A>(block_m2[k])) continue;
                const T* column[BLOCK_ROWS];
                bool constant = true;
                for (int r = 0; r < n; ++r) {
                    column[r] = rows[r] + k;
                    constant = constant && load<double>(*column[r]) == load<double>(*column[0]);
                }
                if (constant && p.center) {  // common: a unit that is always off
                    block_mean[k] = load<double>(*column[0]);
                    block_m2[k] = 0;
                } else {
                    loops<T, double>().column_moments(column, nullptr, n, 1, p.center, block_mean + k, block_m2 + k);
                }
            }
        }
        n = 0;
        if (count == 0) {
            for (int k = 0; k < w; ++k) mean[k] = block_mean[k], m2[k] = block_m2[k];
        } else {
            const double share = here / (count + here), both = count * share;
            for (int k = 0; k < w; ++k) {
                const double delta = block_mean[k] - mean[k];
                mean[k] += delta * share;
                m2[k] += block_m2[k] + delta * delta * both;
            }
        }
        count += here;
    };
    const std::int64_t width = p.width();
    runs.walk(chunk.list, chunk.from, chunk.to, [&](std::int64_t start, std::int64_t length, std::int64_t) {
        for (std::int64_t row = start; row < start + length; ++row) {
            if (p.sample_weight && p.sample_weight[row] == 0) continue;
            rows[n] = x + row * width + c;
            weights[n] = p.sample_weight ? p.sample_weight[row] : 1.0;
            if (++n == BLOCK_ROWS) flush();
        }
    });
    flush();
    if (count == 0)
        for (int k = 0; k < w; ++k) mean[k] = m2[k] = 0;
    return count;
}

template <class T, class A>
void measure_columns(const Problem& p, const Runs& runs, const T* x, Moments* found) {
    const std::int64_t width = p.width(), tiles = (width + TILE - 1) / TILE;
    const std::vector<Chunk> chunks = chunks_of(runs, CHUNK_ROWS);
    std::vector<double> mean(chunks.size() * width), m2(chunks.size() * width), count(chunks.size());
    auto measure = [&](std::int64_t item) {
        const std::int64_t i = item / tiles, c = item % tiles * TILE;
        const int w = static_cast<int>(width - c < TILE ? width - c : TILE);
        const double here = measure_tile<T, A>(p, runs, chunks[i], x, c, w, &mean[i * width + c], &m2[i * width + c]);
        if (c == 0) count[i] = here;
    };
    parallel(static_cast<std::int64_t>(chunks.size()) * tiles, p.rows * width, measure);
    for (std::int64_t i = 0; i < p.statistics(); ++i) found[i] = Moments{};
    // Channel by channel, so that a group's statistic is the merged one of its channels.
    for (std::size_t i = 0; i < chunks.size();) {
        std::size_t end = i;
        while (end < chunks.size() && chunks[end].list == chunks[i].list) ++end;
        for (std::int64_t c = 0; c < width; ++c) {
            Moments column;
            for (std::size_t k = i; k < end; ++k) merge(column, {count[k], mean[k * width + c], m2[k * width + c]});
            merge(found[chunks[i].list * p.kept + c / p.channels], column);
        }
        i = end;
    }
}

template <class T, class A>
Moments measure_row(const Problem& p, const T* x, std::int64_t row) {
    const double s = p.sample_weight ? p.sample_weight[row] : 1.0;
    if (s == 0) return {};
    Moments found = measure_contiguous<T, A>(x, p.channels, p.center);
    found.count *= s;
    found.m2 *= s;
    return found;
}

template <class T, class A>
void measure_rows(const Problem& p, const Runs& runs, const T* x, Moments* found) {
    for (std::int64_t i = 0; i < p.statistics(); ++i) found[i] = Moments{};
    const std::vector<Chunk> chunks = chunks_of(runs, BLOCK_ROWS);
    auto measure = [&](std::int64_t item) {
        const Chunk& chunk = chunks[item];
        runs.walk(0, chunk.from, chunk.to, [&](std::int64_t start, std::int64_t length, std::int64_t) {
            for (std::int64_t i = start * p.kept; i < (start + length) * p.kept; ++i)
                found[i] = measure_row<T, A>(p, x + i * p.channels, i / p.kept);
        });
    };
    parallel(static_cast<std::int64_t>(chunks.size()), p.rows * p.width(), measure);
}

// The statistic (sequence q, kept k) over its channels.
template <class T, class A>
Moments measure_group(const Problem& p, const Runs& runs, std::int64_t q, std::int64_t k, const T* x) {
    Moments found;
    for (std::int64_t c = 0; c < p.channels; ++c)
        merge(found, measure_plane<T, A>(p, runs, q, x + ((q * p.kept + k) * p.channels + c) * p.positions));
    return found;
}

template <class T, class A>
void measure_planes(const Problem& p, const Runs& runs, const T* x, Moments* found) {
    std::vector<Moments> parts(p.sequences * p.kept);
    auto measure = [&](std::int64_t item) {
        parts[item] = measure_group<T, A>(p, runs, item / p.kept, item % p.kept, x);
    };
    parallel(p.sequences * p.kept, p.sequences * p.width() * p.positions, measure);
    for (std::int64_t i = 0; i < p.statistics(); ++i) {
        found[i] = Moments{};
        for (std::int64_t r = 0; r < p.reduced; ++r)
            merge(found[i], parts[(i / p.kept * p.reduced + r) * p.kept + i % p.kept]);
    }
}

template <class T>
void measure(const Problem& p, const Runs& runs, const T* x, Moments* found) {
    using A = typename Computed<T>::type;
    switch (p.layout) {
        case Layout::columns: return measure_columns<T, A>(p, runs, x, found);
        case Layout::rows: return measure_rows<T, A>(p, runs, x, found);
        case Layout::planes: return measure_planes<T, A>(p, runs, x, found);
    }
}

}  // namespace truenorm
