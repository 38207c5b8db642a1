// Rows, x[row][W]: each row has statistics of its own, one for each group of contiguous channels.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "row_group.hpp"

namespace truenorm {

// Rows of one item of work, and of one part of dweight and dbias: fewer of wide rows, so that few rows are shared too.
constexpr std::int64_t WIDE = 1024, WIDE_ROWS = 16;
inline std::vector<Chunk> chunks_of_rows(const CallParams& p, const ValidRuns& runs) {
    return chunks_of(runs, p.width() < WIDE ? BLOCK_ROWS : WIDE_ROWS, 0, runs.lists());
}

// group(rows, n, chunk) for n <= `most` valid rows at a time, gap(begin, end) for the padding between them. Groups are
// cut by the number of valid rows alone.
template <class Gap, class Group> void sweep_rows(const CallParams& p, const ValidRuns& runs,
                                                  const std::vector<Chunk>& chunks, int most, Gap gap, Group group) {
    auto item = [&](std::int64_t index) {
        std::int64_t rows[GROUP];
        int n = 0;
        runs.walk(0, chunks[index].from, chunks[index].to,
                  [&](std::int64_t start, std::int64_t length, std::int64_t i) {
                      if (start == runs.runs[i].start) gap(runs.end_before(i), start);
                      for (std::int64_t r = start; r < start + length; ++r) {
                          rows[n] = r;
                          if (++n == most) group(rows, n, index), n = 0;
                      }
                  });
        if (n) group(rows, n, index);
    };
    p.team->share(static_cast<std::int64_t>(chunks.size()), item);
    gap(runs.end_before(static_cast<std::int64_t>(runs.runs.size())), p.rows);
}

// found (n): the statistics (row, k) of n <= GROUP rows.
template <class T, class A> void measure_group_of_rows(const CallParams& p, const T* x, const std::int64_t* rows, int n,
                                                       std::int64_t k, Moments* found) {
    const T* at[GROUP] = {};
    for (int r = 0; r < n; ++r) at[r] = x + (rows[r] * p.kept + k) * p.channels;
    measure_stretches<T, A>(at, n, p.channels, p.center, at_once(p.channels) * p.width(), found);
    for (int r = 0; p.sample_weight && r < n; ++r) {
        const double s = p.sample_weight[rows[r]];
        found[r] = s == 0 ? Moments{} : Moments{found[r].count * s, found[r].mean, found[r].m2 * s};
    }
}

template <class T, class A> void measure_rows(const Measure<T>& call) {
    const CallParams& p = call.p;
    const ValidRuns& runs = call.runs;
    Moments* const found = call.moments;
    if (runs.count[0] < p.rows) std::fill_n(found, p.statistics(), Moments{});
    const auto group = [&](const std::int64_t* rows, int n, std::int64_t) {
        Moments here[GROUP];
        for (std::int64_t k = 0; k < p.kept; ++k) {
            measure_group_of_rows<T, A>(p, call.x, rows, n, k, here);
            for (int r = 0; r < n; ++r) found[rows[r] * p.kept + k] = here[r];
        }
    };
    const auto gap = [](std::int64_t, std::int64_t) {};
    sweep_rows(p, runs, chunks_of_rows(p, runs), at_once(p.channels), gap, group);
}

// Rows are measured while they are in the cache, unless the moments are given.
template <class T, class A> void forward_rows(const Forward<T>& call) {
    const CallParams& p = call.p;
    const ValidRuns& runs = call.runs;
    const T* const x = call.total ? call.total : call.x;
    const Output<T>& y = call.y;
    Moments* const found = call.moments;
    const bool given = call.given;
    const std::int64_t width = p.width();
    const RowParameter<A> weight(call.affine.stored_weight, width, 1), bias(call.affine.stored_bias, width, 0);
    if (!given && runs.count[0] < p.rows) std::fill_n(found, p.statistics(), Moments{});
    // The sum of some rows is read while it is in the cache, so it does not go past it.
    const auto add_residual = [&](std::int64_t row, std::int64_t rows) {
        const std::int64_t at = row * width;
        if (call.total && rows > 0) loops<T, A>().add(call.x + at, call.residual + at, call.total + at, rows * width);
    };
    const auto gap = [&](std::int64_t begin, std::int64_t end) {
        add_residual(begin, end - begin);
        y.fill(p.keep_padding ? x : nullptr, begin * width, (end - begin) * width);
    };
    const auto group = [&](const std::int64_t* rows, int n, std::int64_t) {
        for (int r = 0; r < n; ++r) add_residual(rows[r], 1);
        for (std::int64_t k = 0; k < p.kept; ++k) {
            Moments here[GROUP];
            if (!given) measure_group_of_rows<T, A>(p, x, rows, n, k, here);
            for (int r = 0; r < n; ++r) {
                Moments& one = found[rows[r] * p.kept + k];
                if (given) here[r] = one;
                else one = here[r];
            }
            const RowStatistics<A> of(p, here, n);
            each_stretch(p, rows, n, [&](int first, int count) {
                const std::int64_t start = (rows[first] * p.kept + k) * p.channels;
                y.put_block(start, count, p.channels,
                            [&](T* to, std::int64_t row, std::int64_t count, std::int64_t j, std::int64_t m) {
                                of.normalize(x + start + row * p.channels + j, to, first + static_cast<int>(row),
                                             static_cast<int>(count), m, weight, bias, k * p.channels + j);
                            });
            });
        }
        y.finish();
    };
    sweep_rows(p, runs, chunks_of_rows(p, runs), at_once(p.channels), gap, group);
}

// dweight and dbias from those of the chunks, (chunks, 2, W), in order. A column of a chunk whose float sum overflowed
// is summed once more in double.
template <class T, class A>
void add_parts_of_rows(const Backward<T>& call, const std::vector<Chunk>& chunks, const A* parts) {
    const CallParams& p = call.p;
    const std::int64_t width = p.width();
    const auto again = [&](const Chunk& chunk, std::int64_t c) {
        Sums exact;
        const double weight = widened(call.affine.stored_weight.from(c), 1, 1.0)[0];
        const double bias = widened(call.affine.stored_bias.from(c), 1, 0.0)[0];
        call.runs.walk(0, chunk.from, chunk.to, [&](std::int64_t start, std::int64_t n, std::int64_t) {
            for (std::int64_t at = start * width + c; at < (start + n) * width; at += width) {
                const Moments& m = call.moments[at / p.channels];
                const double rstd = rstd_of(p, m), middle = center_of(m, rstd), none = 0;
                double g = load<double>(call.dy[at]);
                if (call.activated()) {
                    T z;
                    loops<T, double>().row_forward(call.x + at, &z, 1, 1, &middle, &none, &rstd, &weight, &bias);
                    loops<T, A>().derive(p.activation, call.dy + at, &z, 1);
                    g = load<double>(z);
                }
                exact.dxhat_xhat += g * ((load<double>(call.x[at]) - middle) * rstd);
                exact.dxhat += g;
            }
        });
        return exact;
    };
    auto columns = [&](std::int64_t tile) {
        const std::int64_t begin = tile * TILE, n = width - begin < TILE ? width - begin : TILE;
        double dweight[TILE] = {}, dbias[TILE] = {};
        for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) {
            const A *one = parts + chunk * 2 * width + begin, *two = one + width;
            bool finite = true;
            for (std::int64_t c = 0; c < n; ++c) finite &= std::isfinite(one[c]) & std::isfinite(two[c]);
            for (std::int64_t c = 0; finite && c < n; ++c) {
                dweight[c] += static_cast<double>(one[c]);
                dbias[c] += static_cast<double>(two[c]);
            }
            for (std::int64_t c = 0; !finite && c < n; ++c) {
                const bool both = std::isfinite(one[c]) && std::isfinite(two[c]);
                const Sums sums = both ? Sums{static_cast<double>(two[c]), static_cast<double>(one[c])}
                                       : again(chunks[chunk], begin + c);
                dweight[c] += sums.dxhat_xhat;
                dbias[c] += sums.dxhat;
            }
        }
        narrow(dweight, n, call.stored_dweight.from(begin));
        narrow(dbias, n, call.stored_dbias.from(begin));
    };
    p.team->share((width + TILE - 1) / TILE, columns);
}

template <class T, class A> void backward_rows(const Backward<T>& call) {
    const CallParams& p = call.p;
    const ValidRuns& runs = call.runs;
    const Output<T>& dx = call.dx;
    const Moments* const found = call.moments;
    const Sums* const given = call.given;
    const bool constant = call.constant, activated = call.activated();
    const std::int64_t width = p.width();
    const RowParameter<A> weight(call.affine.stored_weight, width, 1), bias(call.affine.stored_bias, width, 0);
    const std::vector<Chunk> chunks = chunks_of_rows(p, runs);
    std::vector<A> parts(given ? 0 : chunks.size() * 2 * width);
    // dx = dy * scale + 0 of rows whose moments are constants, or have weight 0.
    const bool some_apart = constant || p.sample_weight;
    const RowParameter<A> zero({}, some_apart ? width : 0, 0);
    // Of one more array of x's size, fewer rows stay in the first-level cache.
    const int most = at_once(activated ? 2 * p.channels : p.channels);
    const auto gap = [&](std::int64_t begin, std::int64_t end) {
        if (dx) dx.fill(p.keep_padding ? call.dy : nullptr, begin * width, (end - begin) * width);
    };
    const auto group = [&](const std::int64_t* rows, int n, std::int64_t chunk) {
        const std::unique_ptr<T[]> room(activated ? new T[static_cast<std::size_t>(n * p.channels)] : nullptr);
        for (std::int64_t k = 0; k < p.kept; ++k) {
            const std::int64_t c = k * p.channels;
            const T *x[GROUP], *dy[GROUP];
            Moments moments[GROUP];
            for (int r = 0; r < n; ++r) {
                const std::int64_t i = rows[r] * p.kept + k;
                x[r] = call.x + i * p.channels, dy[r] = call.dy + i * p.channels, moments[r] = found[i];
            }
            const RowStatistics<A> of(p, moments, n);
            if (activated)  // dy times the derivative
                each_stretch(p, rows, n, [&](int first, int count) {
                    T* const z = room.get() + first * p.channels;
                    of.normalize(x[first], z, first, count, p.channels, weight, bias, c);
                    loops<T, A>().derive(p.activation, dy[first], z, count * p.channels);
                    for (int r = 0; r < count; ++r) dy[first + r] = z + r * p.channels;
                });
            Sums sums[GROUP];
            if (!given) {
                A* into = &parts[chunk * 2 * width + c];
                const RowGroup<T, A> all{of, x, dy, n};
                all.sum(p.channels, most * width, weight, c, sums, into, into + width);
            }
            RowGradient<A> gradient;
            for (int r = 0; r < n; ++r) {
                const std::int64_t i = rows[r] * p.kept + k;
                if (given) sums[r] = given[i];
                else if (call.sums) call.sums[i] = sums[r];
                const Sums* const used = constant ? nullptr : sums + r;
                const double scale = scale_of(p, moments[r], used, of.rstd[r]);
                gradient.set(r, scale, shared_of(p, moments[r], used, scale),
                             p.sample_weight ? p.sample_weight[rows[r]] : 1.0);
            }
            if (!dx) continue;
            const auto write = [&](T* to, int r, int count, std::int64_t j, std::int64_t m) {
                if (constant || (p.sample_weight && p.sample_weight[rows[r]] == 0))
                    return of.about_zero().normalize(dy[r] + j, to, r, count, m, weight, zero, c + j);
                gradient.differentiate(of, x[r] + j, dy[r] + j, to, r, count, m, weight, c + j);
            };
            each_stretch(p, rows, n, [&](int first, int count) {
                dx.put_block((rows[first] * p.kept + k) * p.channels, count, p.channels,
                             [&](T* to, std::int64_t row, std::int64_t count, std::int64_t j, std::int64_t m) {
                                 const int r = first + static_cast<int>(row), some = static_cast<int>(count);
                                 if (!p.sample_weight) return write(to, r, some, j, m);
                                 for (int i = 0; i < some; ++i) write(to + i * m, r + i, 1, j, m);
                             });
            });
        }
        dx.finish();
    };
    sweep_rows(p, runs, chunks, most, gap, group);
    if (!given) add_parts_of_rows<T, A>(call, chunks, parts.data());
}

}  // namespace truenorm
