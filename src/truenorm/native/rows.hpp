// Rows, x[row][W]: each row has statistics of its own, one for each group of contiguous channels.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "verb_arguments.hpp"

namespace truenorm {

// Rows of one item of work, and of one part of dweight and dbias: fewer of wide rows, so that few rows are shared too.
constexpr std::int64_t WIDE = 1024, WIDE_ROWS = 16;
inline std::vector<Chunk> chunks_of_rows(const CallParams& p, const ValidRuns& runs) {
    return chunks_of(runs, p.width() < WIDE ? BLOCK_ROWS : WIDE_ROWS, 0, runs.lists());
}

// group(rows, n, chunk) for n <= GROUP valid rows at a time, gap(begin, end) for the padding between them. Groups are
// cut by the number of valid rows and their width alone.
template <class Gap, class Group>
void sweep_rows(const CallParams& p, const ValidRuns& runs, const std::vector<Chunk>& chunks, Gap gap, Group group) {
    auto item = [&](std::int64_t index) {
        std::int64_t rows[GROUP];
        const int most = at_once(p.channels);
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

// stretch(first, count) for those of n rows that lie one after another in memory.
template <class Stretch> void each_stretch(const CallParams& p, const std::int64_t* rows, int n, Stretch stretch) {
    for (int first = 0, end; first < n; first = end) {
        for (end = first + 1; p.kept == 1 && end < n && rows[end] == rows[end - 1] + 1;) ++end;
        stretch(first, end - first);
    }
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
    sweep_rows(p, runs, chunks_of_rows(p, runs), [](std::int64_t, std::int64_t) {}, group);
}

// A parameter (width) in the type of the loops. fits: whether it holds all of it.
template <class A> struct Narrowed {
    std::vector<A> values;
    bool fits = true;

    Narrowed(const double* from, std::int64_t width) : values(from, from + width) {
        for (std::int64_t c = 0; c < width; ++c) fits = fits && holds<A>(from[c]);
    }
    const A* at(std::int64_t c) const { return values.data() + c; }
};

// Rows are measured while they are in the cache, unless the moments are given.
template <class T, class A> void forward_rows(const Forward<T>& call) {
    const CallParams& p = call.p;
    const ValidRuns& runs = call.runs;
    const T* const x = call.total ? call.total : call.x;
    const Output<T>& y = call.y;
    const Affine& affine = call.affine;
    Moments* const found = call.moments;
    const bool given = call.given;
    const std::int64_t width = p.width();
    const Narrowed<A> weight(affine.weight, width), bias(affine.bias, width);
    const bool narrow = weight.fits && bias.fits;
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
            const std::int64_t c = k * p.channels;
            Moments here[GROUP];
            double rstd[GROUP];
            if (!given) measure_group_of_rows<T, A>(p, x, rows, n, k, here);
            for (int r = 0; r < n; ++r) {  // together: roots and divisions take long, but many can run at once
                Moments& one = found[rows[r] * p.kept + k];
                if (given) here[r] = one;
                else one = here[r];
                rstd[r] = rstd_of(p, here[r]);
            }
            each_stretch(p, rows, n, [&](int first, int count) {
                const std::int64_t start = (rows[first] * p.kept + k) * p.channels;
                y.put_rows(start, count, p.channels, [&](T* to, std::int64_t row, std::int64_t j, std::int64_t m) {
                    const std::int64_t r = first + row, at = start + row * p.channels;
                    const double middle = center_of(here[r], rstd[r]);
                    const LoopStatistic<A> one(middle, rstd[r]);
                    if (one.fits && narrow) {
                        loops<T, A>().row_forward(x + at + j, to, m, one.hi, one.lo, one.rstd, weight.at(c + j),
                                                  bias.at(c + j));
                    } else {
                        loops<T, double>().row_forward(x + at + j, to, m, middle, 0.0, rstd[r], affine.weight + c + j,
                                                       affine.bias + c + j);
                    }
                });
            });
        }
        y.finish();
    };
    sweep_rows(p, runs, chunks_of_rows(p, runs), gap, group);
}

// The statistics (row, k) of up to GROUP rows, in the form that their sums need.
template <class T, class A> struct RowGroup {
    const T *x[GROUP], *dy[GROUP];
    double mean[GROUP], rstd[GROUP];
    A hi[GROUP], lo[GROUP], factor[GROUP];
    bool fits[GROUP];
    int count = 0;

    // weight and bias: those of the groups k, in A. room: n * channels elements; null without an activation, whose
    // derivative is multiplied by dy there.
    RowGroup(const Backward<T>& call, const std::int64_t* rows, int n, std::int64_t k, const Narrowed<A>& weight,
             const Narrowed<A>& bias, T* room)
        : count(n) {
        const CallParams& p = call.p;
        const std::int64_t c = k * p.channels;
        for (int r = 0; r < n; ++r) {
            const std::int64_t i = rows[r] * p.kept + k;
            x[r] = call.x + i * p.channels;
            dy[r] = call.dy + i * p.channels;
            rstd[r] = rstd_of(p, call.moments[i]);
            mean[r] = center_of(call.moments[i], rstd[r]);
        }
        for (int r = 0; r < n; ++r) {
            const LoopStatistic<A> one(mean[r], rstd[r]);
            hi[r] = one.hi, lo[r] = one.lo, factor[r] = one.rstd;
            fits[r] = one.fits && weight.fits;
        }
        for (int r = 0; room && r < n; ++r, room += p.channels) {
            if (fits[r] && bias.fits)
                loops<T, A>().row_forward(x[r], room, p.channels, hi[r], lo[r], factor[r], weight.at(c), bias.at(c));
            else
                loops<T, double>().row_forward(x[r], room, p.channels, mean[r], 0.0, rstd[r], call.affine.weight + c,
                                               call.affine.bias + c);
            loops<T, A>().derive(p.activation, dy[r], room, p.channels);
            dy[r] = room;
        }
    }

    // The sums of the rows, each over itself; dweight, dbias (channels) are added to. weight and wide
    // are the same numbers in A and in double.
    void sum(std::int64_t channels, std::int64_t ahead, const A* weight, const double* wide, Sums* sums, A* dweight,
             A* dbias) const {
        double dxhat[GROUP], dxhat_xhat[GROUP];
        for (int r = 0; r < count; ++r) sums[r] = Sums{};
        for (std::int64_t j = 0; j < channels; j += BLOCK) {
            const std::int64_t n = channels - j < BLOCK ? channels - j : BLOCK;
            for (int r = 0; r < count;) {  // as many as follow each other and fit
                int end = r;
                const T *xs[GROUP], *dys[GROUP];
                for (; end < count && fits[end]; ++end) xs[end] = x[end] + j, dys[end] = dy[end] + j;
                RowSums<T, A> of;
                of.x = xs + r, of.dy = dys + r, of.rows = end - r, of.n = n;
                of.hi = hi + r, of.lo = lo + r, of.rstd = factor + r, of.weight = weight + j, of.ahead = ahead;
                of.dxhat = dxhat + r, of.dxhat_xhat = dxhat_xhat + r, of.dweight = dweight + j, of.dbias = dbias + j;
                if (end > r) loops<T, A>().row_sums(of);
                for (; r < end; ++r)
                    if (!reliable(dxhat[r], dxhat_xhat[r]))  // overflow or underflow
                        sum_wide(r, j, n, wide, dxhat + r, dxhat_xhat + r, nullptr, nullptr);
                if (r < count) sum_wide(r, j, n, wide, dxhat + r, dxhat_xhat + r, dweight + j, dbias + j), ++r;
            }
            for (int r = 0; r < count; ++r) sums[r].dxhat += dxhat[r], sums[r].dxhat_xhat += dxhat_xhat[r];
        }
    }

private:
    // Whether float sums can be trusted: products of small numbers underflow, those of large ones overflow.
    static bool reliable(double dxhat, double dxhat_xhat) {
        if (!std::isfinite(dxhat) || !std::isfinite(dxhat_xhat)) return false;
        return sizeof(A) == sizeof(double) || std::fabs(dxhat) > 1e-30 || std::fabs(dxhat_xhat) > 1e-30;
    }

    // The sums of one row's n <= BLOCK elements from j on, in double.
    void sum_wide(int r, std::int64_t j, std::int64_t n, const double* weight, double* dxhat, double* dxhat_xhat,
                  A* dweight, A* dbias) const {
        double more_weight[BLOCK] = {}, more_bias[BLOCK] = {};
        const T *xs = x[r] + j, *dys = dy[r] + j;
        const double zero = 0;
        RowSums<T, double> of;
        of.x = &xs, of.dy = &dys, of.rows = 1, of.n = n;
        of.hi = mean + r, of.lo = &zero, of.rstd = rstd + r, of.weight = weight + j, of.ahead = 0;
        of.dxhat = dxhat, of.dxhat_xhat = dxhat_xhat, of.dweight = more_weight, of.dbias = more_bias;
        loops<T, double>().row_sums(of);
        for (std::int64_t i = 0; dweight && i < n; ++i) {
            dweight[i] += static_cast<A>(more_weight[i]);
            dbias[i] += static_cast<A>(more_bias[i]);
        }
    }
};

template <class T, class A> void backward_rows(const Backward<T>& call) {
    const CallParams& p = call.p;
    const ValidRuns& runs = call.runs;
    const T *const x = call.x, *const dy = call.dy;
    const Output<T>& dx = call.dx;
    const Moments* const found = call.moments;
    const double *const weight = call.affine.weight, *const bias = call.affine.bias;
    const Sums* const given = call.given;
    const bool constant = call.constant;
    const std::int64_t width = p.width();
    const Narrowed<A> narrow(weight, width), narrow_bias(bias, width);
    const std::vector<Chunk> chunks = chunks_of_rows(p, runs);
    std::vector<A> parts(given ? 0 : chunks.size() * 2 * width);
    // dx = dy * scale + 0 of rows whose moments are constants, or have weight 0.
    const bool some_apart = constant || p.sample_weight;
    const std::vector<double> zeros(some_apart ? width : 0);
    const std::vector<A> narrow_zeros(some_apart ? width : 0);
    const auto gap = [&](std::int64_t begin, std::int64_t end) {
        if (dx) dx.fill(p.keep_padding ? dy : nullptr, begin * width, (end - begin) * width);
    };
    const auto group = [&](const std::int64_t* rows, int n, std::int64_t chunk) {
        std::vector<T> room(call.activated() ? n * p.channels : 0);
        for (std::int64_t k = 0; k < p.kept; ++k) {
            const std::int64_t c = k * p.channels;
            const RowGroup<T, A> all(call, rows, n, k, narrow, narrow_bias, call.activated() ? room.data() : nullptr);
            Sums here[GROUP];
            if (!given) {
                A* into = &parts[chunk * 2 * width + c];
                all.sum(p.channels, at_once(p.channels) * width, narrow.at(c), weight + c, here, into, into + width);
            }
            Shared shared[GROUP];
            bool lone[GROUP];
            for (int r = 0; r < n; ++r) {
                const std::int64_t i = rows[r] * p.kept + k;
                if (given) here[r] = given[i];
                lone[r] = scale_of(p, found[i], constant ? nullptr : &here[r], 1) == 0;
                if (!given) call.sums[i] = here[r];
                const double s = p.sample_weight ? p.sample_weight[rows[r]] : 1.0;
                shared[r] = shared_of(p, found[i], constant ? nullptr : &here[r], lone[r] ? 0 : all.rstd[r]);
                shared[r].through_mean *= s;
                shared[r].through_var *= s;
            }
            if (!dx) continue;
            const auto write = [&](std::int64_t r, T* to, std::int64_t j, std::int64_t m) {
                const double through_mean = shared[r].through_mean, through_var = shared[r].through_var;
                const bool fits = all.fits[r] && holds<A>(through_mean) && holds<A>(through_var);
                const bool apart = constant || (p.sample_weight && p.sample_weight[rows[r]] == 0);
                if (apart && fits) {
                    loops<T, A>().row_forward(all.dy[r] + j, to, m, 0, 0, all.factor[r], narrow.at(c + j),
                                              narrow_zeros.data() + c + j);
                } else if (apart) {
                    loops<T, double>().row_forward(all.dy[r] + j, to, m, 0.0, 0.0, all.rstd[r], weight + c + j,
                                                   zeros.data() + c + j);
                } else if (fits) {
                    loops<T, A>().row_backward(all.x[r] + j, all.dy[r] + j, to, m, all.hi[r], all.lo[r],
                                               lone[r] ? 0 : all.factor[r], narrow.at(c + j),
                                               static_cast<A>(through_mean), static_cast<A>(through_var));
                } else {
                    loops<T, double>().row_backward(all.x[r] + j, all.dy[r] + j, to, m, all.mean[r], 0.0,
                                                    lone[r] ? 0 : all.rstd[r], weight + c + j, through_mean,
                                                    through_var);
                }
            };
            each_stretch(p, rows, n, [&](int first, int count) {
                dx.put_rows(
                    (rows[first] * p.kept + k) * p.channels, count, p.channels,
                    [&](T* to, std::int64_t row, std::int64_t j, std::int64_t m) { write(first + row, to, j, m); });
            });
        }
        dx.finish();
    };
    sweep_rows(p, runs, chunks, gap, group);
    if (given) return;
    // The chunks' parts, in order; a column whose float sum overflowed is summed once more in double.
    const auto again = [&](const Chunk& chunk, std::int64_t c) {
        Sums exact;
        runs.walk(0, chunk.from, chunk.to, [&](std::int64_t start, std::int64_t n, std::int64_t) {
            for (std::int64_t at = start * width + c; at < (start + n) * width; at += width) {
                const Moments& m = found[at / p.channels];
                const double rstd = rstd_of(p, m), middle = center_of(m, rstd);
                double g = load<double>(dy[at]);
                if (call.activated()) {
                    T z;
                    loops<T, double>().row_forward(x + at, &z, 1, middle, 0.0, rstd, weight + c, bias + c);
                    loops<T, A>().derive(p.activation, dy + at, &z, 1);
                    g = load<double>(z);
                }
                exact.dxhat_xhat += g * ((load<double>(x[at]) - middle) * rstd);
                exact.dxhat += g;
            }
        });
        return exact;
    };
    auto columns = [&](std::int64_t tile) {
        const std::int64_t end = (tile + 1) * TILE < width ? (tile + 1) * TILE : width;
        for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) {
            const A *one = &parts[chunk * 2 * width], *two = one + width;
            for (std::int64_t c = tile * TILE; c < end; ++c) {
                if (std::isfinite(one[c]) && std::isfinite(two[c])) {
                    call.dweight[c] += static_cast<double>(one[c]);
                    call.dbias[c] += static_cast<double>(two[c]);
                } else {
                    const Sums exact = again(chunks[chunk], c);
                    call.dweight[c] += exact.dxhat_xhat;
                    call.dbias[c] += exact.dxhat;
                }
            }
        }
    };
    p.team->share((width + TILE - 1) / TILE, columns);
}

}  // namespace truenorm
