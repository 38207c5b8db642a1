// Statistics: the twin of moments.py. measure -> merge.
//
// Each block of valid elements is measured in two passes while it is in the cache, and blocks are merged in order. A
// block whose float sums overflow or underflow is measured again in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "loops.hpp"
#include "problem.hpp"
#include "threads.hpp"

namespace truenorm {

constexpr std::int64_t CHUNK_ROWS = 512;  // rows of one item of work, and of one part that is merged

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

// count <= GROUP stretches of n elements each, in blocks. ahead: as in loops.hpp.
template <class T, class A>
void measure_stretches(const T* const* x, int count, std::int64_t n, bool center, std::int64_t ahead, Moments* found) {
    const T* at[GROUP];
    double mean[GROUP], m2[GROUP];
    for (int r = 0; r < count; ++r) found[r] = Moments{};
    for (std::int64_t i = 0; i < n; i += BLOCK) {
        const std::int64_t length = n - i < BLOCK ? n - i : BLOCK;
        for (int r = 0; r < count; ++r) at[r] = x[r] + i;
        loops<T, A>().row_moments(at, count, length, center, ahead, mean, m2);
        for (int r = 0; r < count; ++r) {
            if (!trusted<A>(m2[r])) loops<T, double>().row_moments(at + r, 1, length, center, 0, mean + r, m2 + r);
            merge(found[r], {static_cast<double>(length), mean[r], m2[r]});
        }
    }
}

// The valid elements of one plane where they do not lie together, or have sample weights: gathered into full blocks.
template <class T, class A>
Moments measure_scattered(const Problem& p, const Runs& runs, std::int64_t q, const T* plane) {
    Moments found;
    T gathered[BLOCK];
    const T* const only = gathered;
    double weights[BLOCK];
    std::int64_t n = 0;
    const auto flush = [&] {
        if (n == 0) return;
        Moments here;
        if (p.sample_weight) {
            for (std::int64_t i = 0; i < n; ++i) here.count += weights[i];
            loops<T, double>().weighted_moments(gathered, weights, n, p.center, &here.mean, &here.m2);
        } else {
            measure_stretches<T, A>(&only, 1, n, p.center, 0, &here);
        }
        merge(found, here);
        n = 0;
    };
    runs.walk(q, 0, runs.count[q], [&](std::int64_t start, std::int64_t length, std::int64_t) {
        for (std::int64_t i = start; i < start + length; ++i) {
            const double s = p.sample_weight ? p.sample_weight[i] : 1.0;
            if (s == 0) continue;  // counts for nothing, so it is not read
            gathered[n] = plane[i - q * p.extent];
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

// The moments of both parts, for w columns that share their counts.
inline void merge_columns(double& count, double* __restrict__ mean, double* __restrict__ m2, double other_count,
                          const double* __restrict__ other_mean, const double* __restrict__ other_m2, std::int64_t w) {
    if (other_count == 0) return;
    if (count == 0) {
        for (std::int64_t k = 0; k < w; ++k) mean[k] = other_mean[k], m2[k] = other_m2[k];
    } else {
        const double share = other_count / (count + other_count), both = count * share;
        for (std::int64_t k = 0; k < w; ++k) {
            const double delta = other_mean[k] - mean[k];
            mean[k] += delta * share;
            m2[k] += other_m2[k] + delta * delta * both;
        }
    }
    count += other_count;
}

// One column of a block, in double.
template <class T>
void measure_column(const T* const* rows, int n, bool center, double* mean, double* m2) {
    bool constant = true;
    for (int r = 0; r < n; ++r) constant = constant && load<double>(*rows[r]) == load<double>(*rows[0]);
    if (constant && center) {  // common: a unit that is always off
        *mean = load<double>(*rows[0]);
        *m2 = 0;
    } else {
        loops<T, double>().column_moments(rows, nullptr, n, 0, 1, center, mean, m2);
    }
}

// The rows of a chunk, without those that count for nothing, which are not read.
struct ChunkRows {
    std::int64_t row[CHUNK_ROWS];
    int count = 0;

    ChunkRows(const Problem& p, const Runs& runs, const Chunk& chunk, const double* sample_weight) {
        runs.walk(chunk.list, chunk.from, chunk.to, [&](std::int64_t start, std::int64_t length, std::int64_t) {
            for (std::int64_t r = start; r < start + length; ++r)
                if (!sample_weight || sample_weight[r] != 0) row[count++] = r * p.width();
        });
    }

    // rows[i]: column c of row i.
    template <class T>
    void point(const T** rows, const T* x, std::int64_t c) const {
        for (int i = 0; i < count; ++i) rows[i] = x + row[i] + c;
    }
};

// The moments of w <= TILE columns from column c on, over one chunk of rows.
template <class T, class A>
double measure_tile(const Problem& p, const Runs& runs, const Chunk& chunk, const T* x, std::int64_t c, int w,
                    double* mean, double* m2) {
    const ChunkRows all(p, runs, chunk, p.sample_weight);
    const T* rows[CHUNK_ROWS];
    all.point(rows, x, c);
    double block_mean[TILE], block_m2[TILE], count = 0;
    for (int k = 0; k < w; ++k) mean[k] = m2[k] = 0;
    for (int first = 0; first < all.count; first += BLOCK_ROWS) {
        const int left = all.count - first, n = left < BLOCK_ROWS ? left : BLOCK_ROWS;
        const T* const* block = rows + first;
        double here = n;
        if (p.sample_weight) {
            double weights[BLOCK_ROWS];
            here = 0;
            for (int r = 0; r < n; ++r) here += weights[r] = p.sample_weight[all.row[first + r] / p.width()];
            loops<T, double>().column_moments(block, weights, n, left - n, w, p.center, block_mean, block_m2);
        } else {
            loops<T, A>().column_moments(block, nullptr, n, left - n, w, p.center, block_mean, block_m2);
            for (int k = 0; k < w; ++k) {
                if (trusted<A>(block_m2[k])) continue;
                const T* column[BLOCK_ROWS];
                for (int r = 0; r < n; ++r) column[r] = block[r] + k;
                measure_column(column, n, p.center, block_mean + k, block_m2 + k);
            }
        }
        merge_columns(count, mean, m2, here, block_mean, block_m2, w);
    }
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
    p.team->share(static_cast<std::int64_t>(chunks.size()) * tiles, measure);
    for (std::int64_t i = 0; i < p.statistics(); ++i) found[i] = Moments{};
    for (std::size_t i = 0; i < chunks.size();) {  // into the first chunk of each list
        std::size_t next = i + 1;
        for (; next < chunks.size() && chunks[next].list == chunks[i].list; ++next)
            merge_columns(count[i], &mean[i * width], &m2[i * width], count[next], &mean[next * width], &m2[next * width],
                          width);
        for (std::int64_t c = 0; c < width; ++c)  // a group's statistic is the merged one of its channels
            merge(found[chunks[i].list * p.kept + c / p.channels], {count[i], mean[i * width + c], m2[i * width + c]});
        i = next;
    }
}

// ---- rows ----

// chunks of BLOCK_ROWS valid rows; in each, group(rows, n, chunk) for n <= GROUP valid rows at a time. Whichever rows
// are valid, they meet in the same groups.
template <class Gap, class Group>
void sweep_rows(const Problem& p, const Runs& runs, const std::vector<Chunk>& chunks, Gap gap, Group group) {
    auto item = [&](std::int64_t index) {
        std::int64_t rows[GROUP];
        int n = 0;
        runs.walk(0, chunks[index].from, chunks[index].to, [&](std::int64_t start, std::int64_t length, std::int64_t i) {
            if (start == runs.runs[i].start) gap(runs.end_before(i), start);
            for (std::int64_t r = start; r < start + length; ++r) {
                rows[n] = r;
                if (++n == GROUP) group(rows, n, index), n = 0;
            }
        });
        if (n) group(rows, n, index);
    };
    p.team->share(static_cast<std::int64_t>(chunks.size()), item);
    gap(runs.end_before(static_cast<std::int64_t>(runs.runs.size())), p.rows);
}

// The statistics (row, k) of some rows.
template <class T, class A>
void measure_group_of_rows(const Problem& p, const T* x, const std::int64_t* rows, int n, std::int64_t k, Moments* found) {
    const T* at[GROUP] = {};
    for (int r = 0; r < n; ++r) at[r] = x + (rows[r] * p.kept + k) * p.channels;
    measure_stretches<T, A>(at, n, p.channels, p.center, GROUP * p.width(), found);
    for (int r = 0; p.sample_weight && r < n; ++r) {
        const double s = p.sample_weight[rows[r]];
        found[r] = s == 0 ? Moments{} : Moments{found[r].count * s, found[r].mean, found[r].m2 * s};
    }
}

template <class T, class A>
void measure_rows(const Problem& p, const Runs& runs, const T* x, Moments* found) {
    if (runs.count[0] < p.rows) std::fill_n(found, p.statistics(), Moments{});
    const auto group = [&](const std::int64_t* rows, int n, std::int64_t) {
        Moments here[GROUP];
        for (std::int64_t k = 0; k < p.kept; ++k) {
            measure_group_of_rows<T, A>(p, x, rows, n, k, here);
            for (int r = 0; r < n; ++r) found[rows[r] * p.kept + k] = here[r];
        }
    };
    sweep_rows(p, runs, chunks_of(runs, BLOCK_ROWS), [](std::int64_t, std::int64_t) {}, group);
}

// ---- planes ----

// body(q, from, to) for the groups `from` to `to` of sequence q: as many at once as make it worth a thread's while.
template <class Body>
void sweep_planes(const Problem& p, Body body) {
    const std::int64_t fitting = PIECE_OF_PLANES / (p.channels * p.positions), most = fitting < 1 ? 1 : fitting;
    const std::int64_t each = most < p.kept ? most : p.kept, pieces = (p.kept + each - 1) / each;
    auto item = [&](std::int64_t index) {
        const std::int64_t from = index % pieces * each, to = from + each;
        body(index / pieces, from, to < p.kept ? to : p.kept);
    };
    p.team->share(p.sequences * pieces, item);
}

// The statistic (sequence q, kept k) over its channels.
template <class T, class A>
Moments measure_group(const Problem& p, const Runs& runs, std::int64_t q, std::int64_t k, const T* x) {
    Moments found;
    const T* planes = x + (q * p.kept + k) * p.channels * p.positions;
    if (runs.count[q] == 0) return found;
    if (p.sample_weight || runs.first[q + 1] - runs.first[q] > 1) {
        for (std::int64_t c = 0; c < p.channels; ++c)
            merge(found, measure_scattered<T, A>(p, runs, q, planes + c * p.positions));
        return found;
    }
    const std::int64_t start = runs.runs[runs.first[q]].start - q * p.extent;
    for (std::int64_t c = 0; c < p.channels; c += GROUP) {
        const T* at[GROUP];
        Moments here[GROUP];
        const int n = static_cast<int>(p.channels - c < GROUP ? p.channels - c : GROUP);
        for (int r = 0; r < n; ++r) at[r] = planes + (c + r) * p.positions + start;
        measure_stretches<T, A>(at, n, runs.count[q], p.center, 0, here);
        for (int r = 0; r < n; ++r) merge(found, here[r]);
    }
    return found;
}

// found[from .. to): of these groups of sequence q. Groups of one plane each are measured together, like rows.
template <class T, class A>
void measure_groups(const Problem& p, const Runs& runs, std::int64_t q, std::int64_t from, std::int64_t to, const T* x,
                    Moments* found) {
    const bool plain = p.channels == 1 && !p.sample_weight && runs.first[q + 1] - runs.first[q] == 1;
    if (!plain) {
        for (std::int64_t k = from; k < to; ++k) found[k] = measure_group<T, A>(p, runs, q, k, x);
        return;
    }
    const T* first = x + q * p.kept * p.positions + runs.runs[runs.first[q]].start - q * p.extent;
    for (std::int64_t k = from; k < to; k += GROUP) {
        const T* at[GROUP];
        const int n = static_cast<int>(to - k < GROUP ? to - k : GROUP);
        for (int r = 0; r < n; ++r) at[r] = first + (k + r) * p.positions;
        measure_stretches<T, A>(at, n, runs.count[q], p.center, 0, found + k);
    }
}

template <class T, class A>
void measure_planes(const Problem& p, const Runs& runs, const T* x, Moments* found) {
    std::vector<Moments> parts(p.sequences * p.kept);
    sweep_planes(p, [&](std::int64_t q, std::int64_t from, std::int64_t to) {
        measure_groups<T, A>(p, runs, q, from, to, x, &parts[q * p.kept]);
    });
    std::fill_n(found, p.statistics(), Moments{});
    for (std::int64_t q = 0; q < p.sequences; ++q) {  // in the order of memory
        Moments* into = found + q / p.reduced * p.kept;
        for (std::int64_t k = 0; k < p.kept; ++k) merge(into[k], parts[q * p.kept + k]);
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
