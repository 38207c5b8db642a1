// Which rows are valid: lists of runs, and the chunks that threads take from them.
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

#include "params.hpp"

namespace truenorm {

// A stretch of valid rows, and how many valid rows of its list come before it.
struct Run {
    std::int64_t start, length, before;
};

// The valid rows as lists of runs: one list for each outer index (columns), for each sequence (planes), or
// one for all (rows). Everything is summed in the order of these lists, cut at fixed counts of valid rows. So neither
// padding nor threads can change a bit.
struct ValidRuns {
    std::vector<Run> runs;
    std::vector<std::int64_t> first;  // of each list, and one more
    std::vector<std::int64_t> count;  // valid rows of each list

    explicit ValidRuns(const CallParams& p) {
        const std::int64_t lists = p.layout == Layout::columns ? p.outer : p.layout == Layout::planes ? p.sequences : 1;
        const std::int64_t each = lists ? p.sequences / lists : 0;
        first.reserve(lists + 1);
        count.reserve(lists);
        if (!p.valid) runs.reserve(p.lengths ? p.sequences : lists);
        for (std::int64_t list = 0; list < lists; ++list) {
            first.push_back(static_cast<std::int64_t>(runs.size()));
            std::int64_t before = 0;
            const std::size_t begin = runs.size();
            const auto add = [&](std::int64_t start, std::int64_t length) {
                if (length == 0) return;
                if (runs.size() > begin && runs.back().start + runs.back().length == start) {
                    runs.back().length += length;
                } else {
                    runs.push_back({start, length, before});
                }
                before += length;
            };
            for (std::int64_t q = list * each; q < (list + 1) * each; ++q) {
                const std::int64_t start = p.starts ? p.starts[q] : q * p.extent;
                if (!p.valid) {
                    add(start, p.lengths ? p.lengths[q] : p.extent);
                    continue;
                }
                for (std::int64_t s = 0; s < p.extent;) {
                    std::int64_t end = s;
                    while (end < p.extent && p.valid[start + end]) ++end;
                    add(start + s, end - s);
                    s = end + 1;
                }
            }
            count.push_back(before);
        }
        first.push_back(static_cast<std::int64_t>(runs.size()));
    }

    bool padded(const CallParams& p) const {
        return std::accumulate(count.begin(), count.end(), std::int64_t{0}) < p.rows;
    }

    std::int64_t lists() const { return static_cast<std::int64_t>(count.size()); }

    // The run that holds the valid row of this number in its list.
    std::int64_t find(std::int64_t list, std::int64_t number) const {
        std::int64_t low = first[list], high = first[list + 1] - 1;
        while (low < high) {
            const std::int64_t middle = (low + high + 1) / 2;
            if (runs[middle].before <= number) low = middle;
            else high = middle - 1;
        }
        return low;
    }

    // piece(start, length, run) for the valid rows number `from` to `to` of a list, in order.
    template <class Piece> void walk(std::int64_t list, std::int64_t from, std::int64_t to, Piece piece) const {
        if (from >= to) return;
        for (std::int64_t i = find(list, from); i < first[list + 1] && runs[i].before < to; ++i) {
            const Run& run = runs[i];
            const std::int64_t begin = from > run.before ? from - run.before : 0;
            const std::int64_t end = to - run.before < run.length ? to - run.before : run.length;
            piece(run.start + begin, end - begin, i);
        }
    }

    // Where the run before run i ends: from there to the start of run i nothing is valid.
    std::int64_t end_before(std::int64_t i) const { return i ? runs[i - 1].start + runs[i - 1].length : 0; }
};

constexpr std::int64_t RUNS_AHEAD = 8;  // runs from the computation to the prefetch

// Prefetches the first lines of a run: of short runs with padding in between, the hardware sees no stream.
template <class T> void fetch_run(const T* run) {
    for (int line = 0; line < 4; ++line) __builtin_prefetch(reinterpret_cast<const char*>(run) + line * 64, 0, 2);
}

// Some consecutive valid rows of one list: an item of work.
struct Chunk {
    std::int64_t list, from, to;
};

// Of the lists `first` to `end`.
inline std::vector<Chunk> chunks_of(const ValidRuns& runs, std::int64_t rows, std::int64_t first, std::int64_t end) {
    std::vector<Chunk> chunks;
    for (std::int64_t list = first; list < end; ++list)
        for (std::int64_t from = 0; from < runs.count[list]; from += rows)
            chunks.push_back({list, from, runs.count[list] - from < rows ? runs.count[list] : from + rows});
    return chunks;
}

}  // namespace truenorm
