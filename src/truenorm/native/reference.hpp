// Forward and backward: the twin of reference.py, where the derivation stands.
//
//   y  = (x - mean) * rstd * weight + bias
//   dx = rstd * (dxhat - s * sum(dxhat) / N - s * xhat * sum(dxhat * xhat) / (N - ddof))
//
// Forward writes y and nothing else of x's size. Backward reads x, dy and the moments: one sweep sums (and gives dweight and
// dbias), one writes dx; where a statistic's elements lie together, both happen while they are in the cache.
#pragma once

#include <cmath>
#include <cstring>
#include <vector>

#include "moments.hpp"

namespace truenorm {

// The one place where eps and ddof are applied: 0 where there is no variance to divide by.
inline double inverse_deviation(const Problem& p, const Moments& m) {
    if (!(m.count > p.ddof)) return 0;
    const double var = m.m2 / (m.count - p.ddof);
    const double deviation = p.eps_outside ? std::sqrt(var) + p.eps : std::sqrt(var + p.eps);
    return deviation == 0 ? 0 : 1 / deviation;
}

// Sums over the elements of one statistic.
struct Sums {
    double dxhat = 0, dxhat_xhat = 0;
};

// What of dx is shared by a statistic's elements: dx = scale * dy - s * (through_mean + (x - mean) * through_var).
struct Shared {
    double through_mean = 0, through_var = 0;
};

inline Shared shared_of(const Problem& p, const Moments& m, const Sums* sums, double rstd) {
    Shared found;
    if (!sums) return found;  // given moments are constants
    if (p.center && m.count > 0) found.through_mean = rstd * (sums->dxhat / m.count);
    if (m.count > p.ddof) {
        double factor = 1;
        if (p.eps_outside) {
            const double std = std::sqrt(m.m2 / (m.count - p.ddof));
            factor = std > 0 ? (std + p.eps) / std : 0;
        }
        found.through_var = rstd * (rstd * (factor * (sums->dxhat_xhat / (m.count - p.ddof))));
    }
    return found;
}

// Whether float can hold a coefficient with all its digits. What is not finite is computed in double, and stays visible.
template <class A>
inline bool holds(double value) {
    if (sizeof(A) == sizeof(double) || value == 0) return true;
    const double size = std::fabs(value);
    return size > 1e-30 && size < 1e30;
}

// A statistic as a loop needs it: the mean in two parts, and 1 / deviation.
template <class A>
struct Fixed {
    A hi, lo, rstd;
    bool fits;

    Fixed(double mean, double rstd_) {
        hi = static_cast<A>(mean);
        const double rest = mean - static_cast<double>(hi);
        lo = sizeof(A) == sizeof(double) ? A(0) : static_cast<A>(rest);
        rstd = static_cast<A>(rstd_);
        fits = holds<A>(mean) && holds<A>(rstd_);
    }
};

// weight and bias, or 1 and 0 where there are none.
struct Affine {
    const double* weight;  // (W) or null
    const double* bias;    // (W) or null

    double scale(std::int64_t c) const { return weight ? weight[c] : 1.0; }
    double shift(std::int64_t c) const { return bias ? bias[c] : 0.0; }
};

// Rows start to start + length, columns c to c + w, of what is not valid: 0, or what `from` holds.
template <class T>
void fill_gap(T* to, const T* from, std::int64_t start, std::int64_t length, std::int64_t width, std::int64_t c,
              std::int64_t w) {
    if (length <= 0 || w <= 0) return;
    if (w == width) {
        const std::size_t bytes = static_cast<std::size_t>(length * width) * sizeof(T);
        if (from) std::memcpy(to + start * width, from + start * width, bytes);
        else std::memset(static_cast<void*>(to + start * width), 0, bytes);
        return;
    }
    for (std::int64_t row = start; row < start + length; ++row) {
        const std::size_t bytes = static_cast<std::size_t>(w) * sizeof(T);
        if (from) std::memcpy(to + row * width + c, from + row * width + c, bytes);
        else std::memset(static_cast<void*>(to + row * width + c), 0, bytes);
    }
}

// ---- columns ----

// The coefficients of w columns.
template <class A>
struct Tile {
    A hi[WIDE_TILE], lo[WIDE_TILE], scale[WIDE_TILE], bias[WIDE_TILE], through_mean[WIDE_TILE], through_var[WIDE_TILE];
    bool fits = true;

    void fixed(int k, double mean, double factor) {
        const Fixed<A> one(mean, factor);
        hi[k] = one.hi;
        lo[k] = one.lo;
        scale[k] = one.rstd;
        fits = fits && one.fits;
    }
    void also(A* to, int k, double value) {
        to[k] = static_cast<A>(value);
        fits = fits && holds<A>(value);
    }
};

// use(tile) with the coefficients in A where it holds them all, in double where it does not.
template <class A, class Fill, class Use>
void with_tile(bool narrow, Fill fill, Use use) {
    if (narrow && sizeof(A) != sizeof(double)) {
        Tile<A> tile;
        fill(tile);
        if (tile.fits) return use(tile);
    }
    Tile<double> tile;
    fill(tile);
    use(tile);
}

// row(row, tile, c, w) for every valid row, tile by tile; what is not valid in between is filled.
template <class T, class A, class Fill, class Row>
void sweep_columns(const Problem& p, const Runs& runs, T* to, const T* from, Fill fill, Row row) {
    const std::int64_t width = p.width(), tiles = (width + WIDE_TILE - 1) / WIDE_TILE;
    const std::vector<Chunk> chunks = chunks_of(runs, CHUNK_ROWS);
    auto item = [&](std::int64_t index) {
        const Chunk& chunk = chunks[index / tiles];
        const std::int64_t c = index % tiles * WIDE_TILE;
        const int w = static_cast<int>(width - c < WIDE_TILE ? width - c : WIDE_TILE);
        with_tile<A>(
            !p.sample_weight, [&](auto& tile) { fill(tile, chunk.list, c, w); },
            [&](auto& tile) {
                runs.walk(chunk.list, chunk.from, chunk.to, [&](std::int64_t start, std::int64_t length, std::int64_t i) {
                    if (start == runs.runs[i].start)
                        fill_gap(to, from, runs.end_before(i), start - runs.end_before(i), width, c, w);
                    for (std::int64_t r = start; r < start + length; ++r) row(r, tile, c, w);
                });
            });
    };
    parallel(static_cast<std::int64_t>(chunks.size()) * tiles, p.rows * width, item);
    const std::int64_t end = runs.end_before(static_cast<std::int64_t>(runs.runs.size()));
    fill_gap(to, from, end, p.rows - end, width, 0, width);
}

template <class T, class A>
void forward_columns(const Problem& p, const Runs& runs, const T* x, T* y, const Moments* found, const double* rstd,
                     const Affine& affine) {
    const std::int64_t width = p.width();
    sweep_columns<T, A>(
        p, runs, y, p.keep_padding ? x : nullptr,
        [&](auto& tile, std::int64_t o, std::int64_t c, int w) {
            for (int k = 0; k < w; ++k) {
                const std::int64_t i = o * p.kept + (c + k) / p.channels;
                tile.fixed(k, found[i].mean, rstd[i] * affine.scale(c + k));
                tile.also(tile.bias, k, affine.shift(c + k));
            }
        },
        [&](std::int64_t r, auto& tile, std::int64_t c, int w) {
            using B = std::remove_reference_t<decltype(tile.hi[0])>;
            const std::int64_t at = r * width + c;
            loops<T, B>().column_forward(x + at, y + at, w, tile.hi, tile.lo, tile.scale, tile.bias);
        });
}

template <class T, class A>
void sums_columns(const Problem& p, const Runs& runs, const T* x, const T* dy, const Moments* found, const double* rstd,
                  const Affine& affine, Sums* sums, double* dweight, double* dbias) {
    const std::int64_t width = p.width(), tiles = (width + TILE - 1) / TILE;
    const std::vector<Chunk> chunks = chunks_of(runs, CHUNK_ROWS);
    std::vector<double> plain(chunks.size() * width), product(chunks.size() * width);
    auto item = [&](std::int64_t index) {
        const Chunk& chunk = chunks[index / tiles];
        const std::int64_t c = index % tiles * TILE;
        const int w = static_cast<int>(width - c < TILE ? width - c : TILE);
        double *into_plain = &plain[index / tiles * width + c], *into_product = &product[index / tiles * width + c];
        with_tile<A>(
            true,
            [&](auto& tile) {
                for (int k = 0; k < w; ++k) {
                    const std::int64_t i = chunk.list * p.kept + (c + k) / p.channels;
                    tile.fixed(k, found[i].mean, rstd[i]);
                }
            },
            [&](auto& tile) {
                using B = std::remove_reference_t<decltype(tile.hi[0])>;
                const T *xs[BLOCK_ROWS], *dys[BLOCK_ROWS];
                double here[TILE], here_product[TILE];
                int n = 0;
                const auto flush = [&] {
                    if (n == 0) return;
                    loops<T, B>().column_sums(xs, dys, n, w, tile.hi, tile.lo, tile.scale, here, here_product);
                    bool finite = true;
                    for (int k = 0; k < w; ++k) finite = finite && std::isfinite(here[k]) && std::isfinite(here_product[k]);
                    if (!finite && sizeof(B) != sizeof(double)) {  // float overflowed: once more in double
                        double hi[TILE], lo[TILE] = {}, factor[TILE];
                        for (int k = 0; k < w; ++k) {
                            const std::int64_t i = chunk.list * p.kept + (c + k) / p.channels;
                            hi[k] = found[i].mean;
                            factor[k] = rstd[i];
                        }
                        loops<T, double>().column_sums(xs, dys, n, w, hi, lo, factor, here, here_product);
                    }
                    for (int k = 0; k < w; ++k) into_plain[k] += here[k], into_product[k] += here_product[k];
                    n = 0;
                };
                runs.walk(chunk.list, chunk.from, chunk.to, [&](std::int64_t start, std::int64_t length, std::int64_t) {
                    for (std::int64_t r = start; r < start + length; ++r) {
                        xs[n] = x + r * width + c;
                        dys[n] = dy + r * width + c;
                        if (++n == BLOCK_ROWS) flush();
                    }
                });
                flush();
            });
    };
    parallel(static_cast<std::int64_t>(chunks.size()) * tiles, p.rows * width, item);
    for (std::size_t k = 0; k < chunks.size(); ++k) {
        for (std::int64_t c = 0; c < width; ++c) {
            Sums& into = sums[chunks[k].list * p.kept + c / p.channels];
            const double one = plain[k * width + c], two = product[k * width + c];
            dbias[c] += one;
            dweight[c] += two;
            into.dxhat += affine.scale(c) * one;
            into.dxhat_xhat += affine.scale(c) * two;
        }
    }
}

template <class T, class A>
void backward_columns(const Problem& p, const Runs& runs, const T* x, const T* dy, T* dx, const Moments* found,
                      const double* rstd, const Affine& affine, const Sums* sums) {
    const std::int64_t width = p.width();
    sweep_columns<T, A>(
        p, runs, dx, p.keep_padding ? dy : nullptr,
        [&](auto& tile, std::int64_t o, std::int64_t c, int w) {
            for (int k = 0; k < w; ++k) {
                const std::int64_t i = o * p.kept + (c + k) / p.channels;
                const Shared shared = shared_of(p, found[i], sums ? sums + i : nullptr, rstd[i]);
                tile.fixed(k, found[i].mean, rstd[i] * affine.scale(c + k));
                tile.also(tile.through_mean, k, shared.through_mean);
                tile.also(tile.through_var, k, shared.through_var);
            }
        },
        [&](std::int64_t r, auto& tile, std::int64_t c, int w) {
            using B = std::remove_reference_t<decltype(tile.hi[0])>;
            const std::int64_t at = r * width + c;
            const B s = static_cast<B>(p.sample_weight ? p.sample_weight[r] : 1.0);
            loops<T, B>().column_backward(x + at, dy + at, dx + at, w, tile.hi, tile.lo, tile.scale, tile.through_mean,
                                          tile.through_var, s);
        });
}

// ---- rows ----

// weight and bias in what a row is computed with.
template <class A>
struct RowAffine {
    std::vector<A> weight, bias;
    bool fits = true;

    RowAffine(const Affine& affine, std::int64_t width) : weight(width), bias(width) {
        for (std::int64_t c = 0; c < width; ++c) {
            weight[c] = static_cast<A>(affine.scale(c));
            bias[c] = static_cast<A>(affine.shift(c));
            fits = fits && holds<A>(affine.scale(c)) && holds<A>(affine.shift(c));
        }
    }
};

// chunk(from, to) for BLOCK_ROWS valid rows at a time; what is not valid is filled.
template <class T, class Row>
void sweep_rows(const Problem& p, const Runs& runs, const std::vector<Chunk>& chunks, T* to, const T* from, Row row) {
    const std::int64_t width = p.width();
    auto item = [&](std::int64_t index) {
        const Chunk& chunk = chunks[index];
        runs.walk(0, chunk.from, chunk.to, [&](std::int64_t start, std::int64_t length, std::int64_t i) {
            if (to && start == runs.runs[i].start)
                fill_gap(to, from, runs.end_before(i), start - runs.end_before(i), width, 0, width);
            for (std::int64_t r = start; r < start + length; ++r) row(r, index);
        });
    };
    parallel(static_cast<std::int64_t>(chunks.size()), p.rows * width, item);
    const std::int64_t end = runs.end_before(static_cast<std::int64_t>(runs.runs.size()));
    if (to) fill_gap(to, from, end, p.rows - end, width, 0, width);
}

// given: the moments are there already; otherwise each row is measured while it is in the cache.
template <class T, class A>
void forward_rows(const Problem& p, const Runs& runs, const T* x, T* y, Moments* found, bool given, const Affine& affine) {
    const RowAffine<A> narrow(affine, p.width());
    const RowAffine<double> wide(affine, p.width());
    if (!given)
        for (std::int64_t i = 0; i < p.statistics(); ++i) found[i] = Moments{};
    sweep_rows(p, runs, chunks_of(runs, BLOCK_ROWS), y, p.keep_padding ? x : nullptr, [&](std::int64_t r, std::int64_t) {
        for (std::int64_t k = 0; k < p.kept; ++k) {
            const std::int64_t i = r * p.kept + k, at = i * p.channels, c = k * p.channels;
            if (!given) found[i] = measure_row<T, A>(p, x + at, r);
            const double rstd = inverse_deviation(p, found[i]);
            const Fixed<A> one(found[i].mean, rstd);
            if (one.fits && narrow.fits) {
                loops<T, A>().row_forward(x + at, y + at, p.channels, one.hi, one.lo, one.rstd, &narrow.weight[c],
                                          &narrow.bias[c]);
            } else {
                loops<T, double>().row_forward(x + at, y + at, p.channels, found[i].mean, 0.0, rstd, &wide.weight[c],
                                               &wide.bias[c]);
            }
        }
    });
}

// dx null: only the sums. `given` sums: only dx. Neither: both, row by row.
template <class T, class A>
void backward_rows(const Problem& p, const Runs& runs, const T* x, const T* dy, T* dx, const Moments* found,
                   const Affine& affine, const Sums* given, bool constant, Sums* sums, double* dweight, double* dbias) {
    const std::int64_t width = p.width();
    const RowAffine<A> narrow(affine, width);
    const RowAffine<double> wide(affine, width);
    const std::vector<Chunk> chunks = chunks_of(runs, BLOCK_ROWS);
    std::vector<A> parts(given ? 0 : chunks.size() * 2 * width);
    sweep_rows(p, runs, chunks, dx, p.keep_padding ? dy : nullptr, [&](std::int64_t r, std::int64_t chunk) {
        for (std::int64_t k = 0; k < p.kept; ++k) {
            const std::int64_t i = r * p.kept + k, at = i * p.channels, c = k * p.channels;
            const double rstd = inverse_deviation(p, found[i]);
            const Fixed<A> one(found[i].mean, rstd);
            const bool fits = one.fits && narrow.fits;
            Sums here = given ? given[i] : Sums{};
            if (!given) {
                A *into_weight = &parts[chunk * 2 * width + c], *into_bias = into_weight + width;
                for (std::int64_t j = 0; j < p.channels; j += BLOCK) {
                    const std::int64_t n = p.channels - j < BLOCK ? p.channels - j : BLOCK;
                    double dxhat = 0, dxhat_xhat = 0;
                    bool done = fits;
                    if (fits) {
                        loops<T, A>().row_sums(x + at + j, dy + at + j, n, one.hi, one.lo, one.rstd, &narrow.weight[c + j],
                                               &dxhat, &dxhat_xhat, into_weight + j, into_bias + j);
                        done = std::isfinite(dxhat) && std::isfinite(dxhat_xhat);
                    }
                    if (!done) {  // beyond float
                        double more_weight[BLOCK] = {}, more_bias[BLOCK] = {};
                        loops<T, double>().row_sums(x + at + j, dy + at + j, n, found[i].mean, 0.0, rstd,
                                                    &wide.weight[c + j], &dxhat, &dxhat_xhat, more_weight, more_bias);
                        for (std::int64_t m = 0; !fits && m < n; ++m) {
                            into_weight[j + m] += static_cast<A>(more_weight[m]);
                            into_bias[j + m] += static_cast<A>(more_bias[m]);
                        }
                    }
                    here.dxhat += dxhat;
                    here.dxhat_xhat += dxhat_xhat;
                }
                if (sums) sums[i] = here;
            }
            if (!dx) continue;
            const double s = p.sample_weight ? p.sample_weight[r] : 1.0;
            Shared shared = shared_of(p, found[i], constant ? nullptr : &here, rstd);
            shared.through_mean *= s;
            shared.through_var *= s;
            if (fits && holds<A>(shared.through_mean) && holds<A>(shared.through_var)) {
                loops<T, A>().row_backward(x + at, dy + at, dx + at, p.channels, one.hi, one.lo, one.rstd,
                                           &narrow.weight[c], static_cast<A>(shared.through_mean),
                                           static_cast<A>(shared.through_var));
            } else {
                loops<T, double>().row_backward(x + at, dy + at, dx + at, p.channels, found[i].mean, 0.0, rstd,
                                                &wide.weight[c], shared.through_mean, shared.through_var);
            }
        }
    });
    if (given) return;
    for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) {
        for (std::int64_t c = 0; c < width; ++c) {
            double one = static_cast<double>(parts[chunk * 2 * width + c]);
            double two = static_cast<double>(parts[(chunk * 2 + 1) * width + c]);
            if (!std::isfinite(one) || !std::isfinite(two)) {  // beyond float: this column once more in double
                one = two = 0;
                runs.walk(0, chunks[chunk].from, chunks[chunk].to, [&](std::int64_t start, std::int64_t n, std::int64_t) {
                    for (std::int64_t at = start * width + c; at < (start + n) * width; at += width) {
                        const Moments& m = found[at / p.channels];
                        const double g = load<double>(dy[at]);
                        one += g * ((load<double>(x[at]) - m.mean) * inverse_deviation(p, m));
                        two += g;
                    }
                });
            }
            dweight[c] += one;
            dbias[c] += two;
        }
    }
}

// ---- planes ----

// stretch(from, to) for what is valid in a plane, fill for what is not. Offsets are inside the plane.
template <class T, class Stretch>
void sweep_plane(const Problem& p, const Runs& runs, std::int64_t q, T* to, const T* from, Stretch stretch) {
    const std::int64_t base = q * p.extent;
    std::int64_t end = 0;
    for (std::int64_t i = runs.first[q]; i < runs.first[q + 1]; ++i) {
        const std::int64_t start = runs.runs[i].start - base;
        if (to) fill_gap(to, from, end, start - end, 1, 0, 1);
        stretch(start, runs.runs[i].length);
        end = start + runs.runs[i].length;
    }
    if (to) fill_gap(to, from, end, p.positions - end, 1, 0, 1);
}

template <class T, class A>
void forward_group(const Problem& p, const Runs& runs, std::int64_t q, std::int64_t k, const T* x, T* y,
                   const Moments& found, const Affine& affine) {
    const double rstd = inverse_deviation(p, found);
    for (std::int64_t c = k * p.channels; c < (k + 1) * p.channels; ++c) {
        const std::int64_t at = (q * p.width() + c) * p.positions;
        const double scale = rstd * affine.scale(c), bias = affine.shift(c);
        const Fixed<A> one(found.mean, scale);
        const bool fits = one.fits && holds<A>(bias);
        sweep_plane(p, runs, q, y + at, p.keep_padding ? x + at : nullptr, [&](std::int64_t start, std::int64_t n) {
            const T* from = x + at + start;
            T* to = y + at + start;
            if (fits) loops<T, A>().forward(from, to, n, one.hi, one.lo, one.rstd, static_cast<A>(bias));
            else loops<T, double>().forward(from, to, n, found.mean, 0.0, scale, bias);
        });
    }
}

template <class T, class A>
void forward_planes(const Problem& p, const Runs& runs, const T* x, T* y, Moments* found, bool given,
                    const Affine& affine) {
    const bool together = p.reduced == 1;  // each group is a statistic of its own: measure it and write it at once
    if (!given && !together) measure_planes<T, A>(p, runs, x, found);
    auto item = [&](std::int64_t index) {
        const std::int64_t q = index / p.kept, k = index % p.kept, i = q / p.reduced * p.kept + k;
        if (!given && together) found[i] = measure_group<T, A>(p, runs, q, k, x);
        forward_group<T, A>(p, runs, q, k, x, y, found[i], affine);
    };
    parallel(p.sequences * p.kept, p.sequences * p.width() * p.positions, item);
}

// parts: (channels of the group) times (sum of dy, sum of dy * xhat).
template <class T, class A>
void sums_group(const Problem& p, const Runs& runs, std::int64_t q, std::int64_t k, const T* x, const T* dy,
                const Moments& found, double* parts) {
    const double rstd = inverse_deviation(p, found);
    const Fixed<A> one(found.mean, rstd);
    for (std::int64_t c = 0; c < p.channels; ++c) {
        const std::int64_t at = (q * p.width() + k * p.channels + c) * p.positions;
        double plain = 0, product = 0;
        sweep_plane<T>(p, runs, q, nullptr, nullptr, [&](std::int64_t start, std::int64_t length) {
            for (std::int64_t j = 0; j < length; j += BLOCK) {
                const std::int64_t n = length - j < BLOCK ? length - j : BLOCK;
                const T *xs = x + at + start + j, *dys = dy + at + start + j;
                double here = 0, here_product = 0;
                if (one.fits) loops<T, A>().sums(xs, dys, n, one.hi, one.lo, one.rstd, &here, &here_product);
                if (!one.fits || !std::isfinite(here) || !std::isfinite(here_product))  // beyond float
                    loops<T, double>().sums(xs, dys, n, found.mean, 0.0, rstd, &here, &here_product);
                plain += here;
                product += here_product;
            }
        });
        parts[2 * c] = plain;
        parts[2 * c + 1] = product;
    }
}

template <class T, class A>
void backward_group(const Problem& p, const Runs& runs, std::int64_t q, std::int64_t k, const T* x, const T* dy, T* dx,
                    const Moments& found, const Affine& affine, const Sums* sums) {
    const double rstd = inverse_deviation(p, found);
    const Shared shared = shared_of(p, found, sums, rstd);
    for (std::int64_t c = k * p.channels; c < (k + 1) * p.channels; ++c) {
        const std::int64_t at = (q * p.width() + c) * p.positions;
        const double scale = rstd * affine.scale(c);
        const Fixed<A> one(found.mean, scale);
        const bool fits = one.fits && holds<A>(shared.through_mean) && holds<A>(shared.through_var) && !p.sample_weight;
        sweep_plane(p, runs, q, dx + at, p.keep_padding ? dy + at : nullptr, [&](std::int64_t start, std::int64_t n) {
            const T *xs = x + at + start, *dys = dy + at + start;
            const double* s = p.sample_weight ? p.sample_weight + q * p.extent + start : nullptr;
            if (fits) {
                loops<T, A>().backward(xs, dys, dx + at + start, n, one.hi, one.lo, one.rstd,
                                       static_cast<A>(shared.through_mean), static_cast<A>(shared.through_var), nullptr);
            } else {
                loops<T, double>().backward(xs, dys, dx + at + start, n, found.mean, 0.0, scale, shared.through_mean,
                                            shared.through_var, s);
            }
        });
    }
}

template <class T, class A>
void backward_planes(const Problem& p, const Runs& runs, const T* x, const T* dy, T* dx, const Moments* found,
                     const Affine& affine, const Sums* given, bool constant, Sums* sums, double* dweight, double* dbias) {
    const std::int64_t width = p.width(), items = p.sequences * p.kept, elements = p.sequences * width * p.positions;
    const bool together = p.reduced == 1;
    std::vector<Sums> own(sums || given ? 0 : p.statistics());
    if (!sums) sums = own.data();
    const auto statistic = [&](std::int64_t index) { return index / p.kept / p.reduced * p.kept + index % p.kept; };
    const auto write = [&](std::int64_t index, const Sums* all) {
        const std::int64_t i = statistic(index);
        backward_group<T, A>(p, runs, index / p.kept, index % p.kept, x, dy, dx, found[i], affine,
                             constant ? nullptr : all + i);
    };
    if (!given) {
        std::vector<double> parts(items * p.channels * 2);
        const auto add = [&](std::int64_t index) {
            for (std::int64_t c = 0; c < p.channels; ++c) {
                const double* part = &parts[(index * p.channels + c) * 2];
                const double scale = affine.scale(index % p.kept * p.channels + c);
                sums[statistic(index)].dxhat += scale * part[0];
                sums[statistic(index)].dxhat_xhat += scale * part[1];
            }
        };
        auto item = [&](std::int64_t index) {
            sums_group<T, A>(p, runs, index / p.kept, index % p.kept, x, dy, found[statistic(index)],
                             &parts[index * p.channels * 2]);
            if (together) add(index);
            if (together && dx) write(index, sums);
        };
        parallel(items, elements, item);
        for (std::int64_t index = 0; index < items; ++index) {
            if (!together) add(index);
            for (std::int64_t c = 0; c < p.channels; ++c) {
                dbias[index % p.kept * p.channels + c] += parts[(index * p.channels + c) * 2];
                dweight[index % p.kept * p.channels + c] += parts[(index * p.channels + c) * 2 + 1];
            }
        }
        if (together || !dx) return;
    }
    auto item = [&](std::int64_t index) { write(index, given ? given : sums); };
    parallel(items, elements, item);
}

// ---- the verbs ----

// found (statistics): measured here, or given.
template <class T>
void forward(const Problem& p, const Runs& runs, const T* x, T* y, Moments* found, bool given, const Affine& affine) {
    using A = typename Computed<T>::type;
    if (p.layout == Layout::rows) return forward_rows<T, A>(p, runs, x, y, found, given, affine);
    if (p.layout == Layout::planes) return forward_planes<T, A>(p, runs, x, y, found, given, affine);
    if (!given) measure_columns<T, A>(p, runs, x, found);
    std::vector<double> rstd(p.statistics());
    for (std::int64_t i = 0; i < p.statistics(); ++i) rstd[i] = inverse_deviation(p, found[i]);
    forward_columns<T, A>(p, runs, x, y, found, rstd.data(), affine);
}

// dx null: only the sums. given: the sums of a whole that x is a part of; only dx is written. Otherwise sums (statistics),
// dweight and dbias (W), all 0 before, are written, and dx. constant: the moments do not depend on x.
template <class T>
void backward(const Problem& p, const Runs& runs, const T* x, const T* dy, T* dx, const Moments* found,
              const Affine& affine, const Sums* given, bool constant, Sums* sums, double* dweight, double* dbias) {
    using A = typename Computed<T>::type;
    if (p.layout == Layout::rows)
        return backward_rows<T, A>(p, runs, x, dy, dx, found, affine, given, constant, sums, dweight, dbias);
    if (p.layout == Layout::planes)
        return backward_planes<T, A>(p, runs, x, dy, dx, found, affine, given, constant, sums, dweight, dbias);
    std::vector<double> rstd(p.statistics());
    for (std::int64_t i = 0; i < p.statistics(); ++i) rstd[i] = inverse_deviation(p, found[i]);
    if (!given) sums_columns<T, A>(p, runs, x, dy, found, rstd.data(), affine, sums, dweight, dbias);
    if (dx) backward_columns<T, A>(p, runs, x, dy, dx, found, rstd.data(), affine, constant ? nullptr : given ? given : sums);
}

}  // namespace truenorm
