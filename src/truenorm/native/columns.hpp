// Columns, x[row][W]: one statistic for each column, or group of columns, over all rows of a list.
//
// Work is cut into chunks of rows and tiles of columns. A chunk is summed in blocks that stay in the cache.
#pragma once

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <memory>
#include <type_traits>
#include <vector>

#include "coefficients.hpp"

namespace truenorm {

constexpr std::int64_t CHUNK_ROWS = 512;         // rows of one item of work, and of one part that is merged
constexpr std::int64_t PART_ELEMENTS = 1 << 17;  // elements of lists that stay in the cache from one sweep to the next
constexpr std::int64_t SWEPT = 1 << 15;          // elements that one item of work writes, if they are whole rows
constexpr std::int64_t PARTS = 8;                // so many of them are enough for the threads

// The lists `first` to `end`, and the threads that share them; null: this one alone.
struct Lists {
    std::int64_t first, end;
    Team* team;

    template <class Body> void share(std::int64_t count, Body& body) const {
        if (team) return team->share(count, body);
        for (std::int64_t i = 0; i < count; ++i) body(i);
    }
};

// part(lists) with some short lists at a time, or with all lists if there are too few for that. All bits are the same.
template <class Part> void each_part(const CallParams& p, const ValidRuns& runs, Part part) {
    if (p.elements() < PART_ELEMENTS) return part(Lists{0, runs.lists(), p.team});
    const std::int64_t longest = *std::max_element(runs.count.begin(), runs.count.end()), lists = runs.lists();
    const std::int64_t fitting = PART_ELEMENTS / std::max(longest * p.width(), std::int64_t{1});
    if (fitting < 1 || lists / fitting < PARTS) return part(Lists{0, lists, p.team});
    auto item = [&](std::int64_t i) { part(Lists{i * fitting, std::min((i + 1) * fitting, lists), nullptr}); };
    p.team->share((lists + fitting - 1) / fitting, item);
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
            mean[k] = merged_mean(mean[k], other_mean[k], share);
            m2[k] += other_m2[k] + delta * delta * both;
        }
    }
    count += other_count;
}

// One column of a block of n rows, in double.
template <class T> void measure_column(const T* const* rows, int n, bool center, double* mean, double* m2) {
    bool constant = true;
    for (int r = 0; r < n; ++r) constant = constant && load<double>(*rows[r]) == load<double>(*rows[0]);
    if (constant && center && std::isfinite(load<double>(*rows[0]))) {  // common: a unit that is always off
        *mean = load<double>(*rows[0]);
        *m2 = 0;
    } else {
        loops<T, double>().column_moments(rows, nullptr, n, 0, 1, center, mean, m2);
        if (!trusted<double>(*m2))
            measure_overflowed([&](std::int64_t r) { return load<double>(*rows[r]); }, nullptr, n, center, mean, m2);
    }
}

// The rows of a chunk, without those of weight 0, which are not read.
struct ChunkRows {
    std::int64_t row[CHUNK_ROWS];
    int count = 0;

    ChunkRows(const CallParams& p, const ValidRuns& runs, const Chunk& chunk, const double* sample_weight) {
        runs.walk(chunk.list, chunk.from, chunk.to, [&](std::int64_t start, std::int64_t length, std::int64_t) {
            for (std::int64_t r = start; r < start + length; ++r)
                if (!sample_weight || sample_weight[r] != 0) row[count++] = r * p.width();
        });
    }

    // rows[i]: column c of row i.
    template <class T> void point(const T** rows, const T* x, std::int64_t c) const {
        for (int i = 0; i < count; ++i) rows[i] = x + row[i] + c;
    }
};

// The moments of w <= TILE columns from column c on, over one chunk of rows. mean, m2: (w). Returns the count.
template <class T, class A>
double measure_tile(const Measure<T>& call, const Chunk& chunk, std::int64_t c, int w, double* mean, double* m2) {
    const CallParams& p = call.p;
    const ChunkRows all(p, call.runs, chunk, p.sample_weight);
    const T* rows[CHUNK_ROWS];
    all.point(rows, call.x, c);
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
            for (int k = 0; k < w; ++k)
                if (!trusted<double>(block_m2[k]))
                    measure_overflowed([&](std::int64_t r) { return load<double>(block[r][k]); }, weights, n, p.center,
                                       block_mean + k, block_m2 + k);
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

template <class T, class A> void measure_lists(const Measure<T>& call, const Lists& lists) {
    const CallParams& p = call.p;
    Moments* const found = call.moments;
    const std::int64_t width = p.width(), tiles = (width + TILE - 1) / TILE;
    const std::vector<Chunk> chunks = chunks_of(call.runs, CHUNK_ROWS, lists.first, lists.end);
    const std::unique_ptr<double[]> mean(new double[chunks.size() * width]), m2(new double[chunks.size() * width]);
    std::vector<double> count(chunks.size());
    auto measure = [&](std::int64_t item) {
        const std::int64_t i = item / tiles, c = item % tiles * TILE;
        const int w = static_cast<int>(width - c < TILE ? width - c : TILE);
        const double here = measure_tile<T, A>(call, chunks[i], c, w, &mean[i * width + c], &m2[i * width + c]);
        if (c == 0) count[i] = here;
    };
    lists.share(static_cast<std::int64_t>(chunks.size()) * tiles, measure);
    std::fill(found + lists.first * p.kept, found + lists.end * p.kept, Moments{});
    for (std::size_t i = 0; i < chunks.size();) {  // into the first chunk of each list
        std::size_t next = i + 1;
        for (; next < chunks.size() && chunks[next].list == chunks[i].list; ++next)
            merge_columns(count[i], &mean[i * width], &m2[i * width], count[next], &mean[next * width],
                          &m2[next * width], width);
        for (std::int64_t k = 0; k < p.kept; ++k) {  // the statistic of a group merges those of its channels
            const std::int64_t c = i * width + k * p.channels;
            found[chunks[i].list * p.kept + k] = merge_equal(count[i], &mean[c], &m2[c], p.channels);
        }
        i = next;
    }
}

// z (w): dy times the derivative of the activation. scale: of the normalization, rstd * weight.
template <class T, class A>
void derive_columns(Activation kind, const T* x, const T* dy, T* z, int w, const Tile<A>& tile, const A* scale) {
    loops<T, A>().column_forward(x, z, w, w, tile.hi, tile.low(), scale, tile.bias);
    loops<T, typename Accumulator<T>::type>().derive(kind, dy, z, w);
}

template <class T, class A> void measure_columns(const Measure<T>& call) {
    each_part(call.p, call.runs, [&](const Lists& lists) { measure_lists<T, A>(call, lists); });
}

// write(tile, row, c, rows, w, to) writes w columns from c on of valid rows from `row` on, which are whole if there is
// more than one; padding in between is filled. fill: as in coefficients.hpp. read: the arrays that `write` reads. From
// the last rows to the first: the sweep before this one ended there, so much of it is still in a cache.
template <class T, class A, class Fill, class Write>
void sweep_columns(const CallParams& p, const ValidRuns& runs, const Lists& lists, const Output<T>& to, const T* from,
                   std::initializer_list<const T*> read, Fill fill, Write write) {
    const std::int64_t width = p.width(), count = lists.end - lists.first;
    const auto fill_list = [&](std::int64_t list) {
        return [&, list](auto& part, std::int64_t c, int w) { fill(part, list * p.kept, c, w); };
    };
    const bool narrow = !p.sample_weight;
    const Tiles<A> memory(narrow ? count : 0, width);
    std::vector<Tile<A>> tiles(narrow ? count : 0);
    auto prepare = [&](std::int64_t i) { tiles[i] = filled(memory[i], 0, width, fill_list(lists.first + i)); };
    lists.share(static_cast<std::int64_t>(tiles.size()), prepare);

    const std::int64_t rows = std::clamp(SWEPT / width, std::int64_t{1}, CHUNK_ROWS);
    const std::vector<Chunk> chunks = chunks_of(runs, rows, lists.first, lists.end);
    const auto items = static_cast<std::int64_t>(chunks.size());
    const auto gap = [&](std::int64_t begin, std::int64_t end) { to.fill(from, begin * width, (end - begin) * width); };
    auto item = [&](std::int64_t turn) {
        const Chunk& chunk = chunks[items - 1 - turn];
        const auto sweep = [&](const auto& tile) {
            runs.walk(chunk.list, chunk.from, chunk.to, [&](std::int64_t start, std::int64_t length, std::int64_t i) {
                if (start == runs.runs[i].start) gap(runs.end_before(i), start);
                if (i + RUNS_AHEAD < static_cast<std::int64_t>(runs.runs.size()))
                    for (const T* array : read) fetch_run(array + runs.runs[i + RUNS_AHEAD].start * width);
                to.put_block(start * width, length, width,
                             [&](T* into, std::int64_t row, std::int64_t count, std::int64_t c, std::int64_t w) {
                                 write(tile.part(c), start + row, c, count, w, into);
                             });
            });
        };
        if (narrow && tiles[chunk.list - lists.first].fits) sweep(tiles[chunk.list - lists.first]);
        else with_tile<double>(false, 0, width, fill_list(chunk.list), sweep);
        to.finish();
    };
    lists.share(items, item);
    if (lists.end < runs.lists()) return;
    gap(runs.end_before(static_cast<std::int64_t>(runs.runs.size())), p.rows);
    to.finish();
}

template <class T, class A> void forward_columns(const Forward<T>& call) {
    const CallParams& p = call.p;
    const Moments* const found = call.moments;
    const std::int64_t width = p.width();
    std::vector<double> rstd(p.statistics());
    each_part(p, call.runs, [&](const Lists& lists) {
        if (!call.given) measure_lists<T, A>(call.measure(), lists);
        const std::int64_t first = lists.first * p.kept;
        rstd_of(p, found + first, lists.end * p.kept - first, &rstd[first]);
        sweep_columns<T, A>(
            p, call.runs, lists, call.y, p.keep_padding ? call.x : nullptr, {call.x},
            coefficients_of_y(call, rstd.data()),
            [&](const auto& tile, std::int64_t r, std::int64_t c, std::int64_t rows, std::int64_t w, T* y) {
                using B = std::remove_reference_t<decltype(tile.hi[0])>;
                loops<T, B>().column_forward(call.x + r * width + c, y, rows * w, w, tile.hi, tile.low(), tile.scale,
                                             tile.bias);
            });
    });
}

inline void add(double* __restrict__ into, const double* __restrict__ more, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) into[i] += more[i];
}

// The sums of all statistics. parts (chunks, 2, W): written; those of a list's first chunk are the sums of dy, and of
// dy * xhat, over the list. rstd: (statistics).
template <class T, class A>
void sums_columns(const Backward<T>& call, const Lists& lists, const double* rstd, double* parts) {
    const CallParams& p = call.p;
    const Moments* const found = call.moments;
    const std::int64_t width = p.width(), tiles = (width + TILE - 1) / TILE;
    const std::vector<Chunk> chunks = chunks_of(call.runs, CHUNK_ROWS, lists.first, lists.end);
    const auto fill = coefficients_of_sums(call, rstd);
    auto item = [&](std::int64_t index) {
        const Chunk& chunk = chunks[index / tiles];
        const std::int64_t c = index % tiles * TILE;
        const int w = static_cast<int>(width - c < TILE ? width - c : TILE);
        double *const into_plain = parts + index / tiles * 2 * width + c, *const into_product = into_plain + width;
        std::fill_n(into_plain, w, 0.0);
        std::fill_n(into_product, w, 0.0);
        with_tile<A>(
            true, c, w, [&](auto& part, std::int64_t c, int w) { fill(part, chunk.list * p.kept, c, w); },
            [&](const auto& tile) {
                using B = std::remove_reference_t<decltype(tile.hi[0])>;
                const ChunkRows all(p, call.runs, chunk, nullptr);
                const T *xs[CHUNK_ROWS], *dys[CHUNK_ROWS];
                all.point(xs, call.x, c);
                all.point(dys, call.dy, c);
                double here[TILE], here_product[TILE];
                std::vector<T> room(call.activated() ? BLOCK_ROWS * w : 0);
                for (int first = 0; first < all.count; first += BLOCK_ROWS) {
                    const int left = all.count - first, n = left < BLOCK_ROWS ? left : BLOCK_ROWS;
                    for (int r = 0; call.activated() && r < n; ++r) {
                        T* const z = room.data() + r * w;
                        derive_columns(p.activation, xs[first + r], dys[first + r], z, w, tile, tile.weighted);
                        dys[first + r] = z;
                    }
                    loops<T, B>().column_sums(xs + first, dys + first, n, left - n, w, tile.hi, tile.lo, tile.scale,
                                              here, here_product);
                    bool finite = true;
                    for (int k = 0; k < w; ++k)
                        finite = finite && std::isfinite(here[k]) && std::isfinite(here_product[k]);
                    if (!finite && sizeof(B) != sizeof(double)) {  // float overflowed: once more in double
                        double hi[TILE], lo[TILE] = {}, factor[TILE];
                        for (int k = 0; k < w; ++k) {
                            const std::int64_t i = chunk.list * p.kept + (c + k) / p.channels;
                            hi[k] = center_of(found[i], rstd[i]);
                            factor[k] = rstd[i];
                        }
                        loops<T, double>().column_sums(xs + first, dys + first, n, 0, w, hi, lo, factor, here,
                                                       here_product);
                    }
                    add(into_plain, here, w);
                    add(into_product, here_product, w);
                }
            });
    };
    lists.share(static_cast<std::int64_t>(chunks.size()) * tiles, item);
    for (std::size_t i = 0; i < chunks.size();) {
        double *const one = parts + i * 2 * width, *const two = one + width;
        const std::int64_t list = chunks[i].list;
        while (++i < chunks.size() && chunks[i].list == list) add(one, parts + i * 2 * width, 2 * width);
        for (std::int64_t k = 0; k < p.kept; ++k) {
            Sums& into = call.sums[list * p.kept + k];
            for (std::int64_t c = k * p.channels; c < (k + 1) * p.channels; ++c) {
                into.dxhat += call.affine.weight[c] * one[c];
                into.dxhat_xhat += call.affine.weight[c] * two[c];
            }
        }
    }
}

// dx. rstd: (statistics).
template <class T, class A> void write_columns(const Backward<T>& call, const Lists& lists, const double* rstd) {
    const CallParams& p = call.p;
    const Sums* const sums = call.used();
    const std::int64_t width = p.width();
    sweep_columns<T, A>(
        p, call.runs, lists, call.dx, p.keep_padding ? call.dy : nullptr, {call.x, call.dy},
        coefficients_of_dx(call, rstd),
        [&](const auto& tile, std::int64_t row, std::int64_t c, std::int64_t rows, std::int64_t w, T* dx) {
            using B = std::remove_reference_t<decltype(tile.hi[0])>;
            const T *const x = call.x + row * width + c, *const dy = call.dy + row * width + c;
            if (!call.reads_x())
                return loops<T, B>().column_forward(dy, dx, rows * w, w, tile.hi, tile.low(), tile.scale, tile.bias);
            const auto write = [&](std::int64_t at, std::int64_t n, const T* dy, const Tile<B>& tile) {
                // Moments that are constants do not pass on anything of x: s = 0.
                const B s = static_cast<B>(!sums ? 0.0 : p.sample_weight ? p.sample_weight[row + at / w] : 1.0);
                loops<T, B>().column_backward(x + at, dy, dx + at, n, w, tile.coefficients(), s);
            };
            if (!call.activated() && !p.sample_weight) return write(0, rows * w, dy, tile);
            for (std::int64_t at = 0; at < rows * w; at += w) {
                if (!call.activated()) {
                    write(at, w, dy + at, tile);
                    continue;
                }
                T z[TILE];
                for (std::int64_t i = 0; i < w; i += TILE) {
                    const int n = w - i < TILE ? static_cast<int>(w - i) : TILE;
                    const Tile<B> part = tile.part(i);
                    derive_columns(p.activation, x + at + i, dy + at + i, z, n, part, part.scale);
                    write(at + i, n, z, part);
                }
            }
        });
}

template <class T, class A> void backward_columns(const Backward<T>& call) {
    const CallParams& p = call.p;
    const Moments* const found = call.moments;
    const std::int64_t width = p.width();
    std::vector<double> rstd(p.statistics());
    const ValidRuns& runs = call.runs;
    std::vector<std::int64_t> chunks{0};  // before each list, and of all
    for (const std::int64_t rows : runs.count) chunks.push_back(chunks.back() + (rows + CHUNK_ROWS - 1) / CHUNK_ROWS);
    const std::unique_ptr<double[]> parts(new double[call.given ? 0 : chunks.back() * 2 * width]);
    each_part(p, runs, [&](const Lists& lists) {
        const std::int64_t first = lists.first * p.kept;
        rstd_of(p, found + first, lists.end * p.kept - first, &rstd[first]);
        if (!call.given) sums_columns<T, A>(call, lists, rstd.data(), &parts[chunks[lists.first] * 2 * width]);
        if (call.dx) write_columns<T, A>(call, lists, rstd.data());
    });
    for (std::int64_t list = 0; !call.given && list < runs.lists(); ++list) {
        if (runs.count[list] == 0) continue;
        const double* const sums = &parts[chunks[list] * 2 * width];
        add(call.dbias, sums, width);
        add(call.dweight, sums + width, width);
    }
}

}  // namespace truenorm
