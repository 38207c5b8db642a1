// Forward and backward: the twin of reference.py, where the derivation stands.
//
//   y  = (x - mean) * rstd * weight + bias
//   dx = rstd * (dxhat - s * sum(dxhat) / N - s * xhat * sum(dxhat * xhat) / (N - ddof))
//
// Forward writes y and nothing else of x's size. Backward reads x, dy and the moments: one sweep sums (and gives dweight and
// dbias), one writes dx; where a statistic's elements lie together, both happen while they are in the cache.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "moments.hpp"
#include "stream.hpp"

namespace truenorm {

// The one place where eps and ddof are applied: 0 where there is no variance to divide by.
inline double inverse_deviation(const Problem& p, const Moments& m) {
    const double var = m.m2 / (m.count - p.ddof);
    const double deviation = p.eps_outside ? std::sqrt(var) + p.eps : std::sqrt(var + p.eps);
    return m.count > p.ddof && deviation != 0 ? 1 / deviation : 0;
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

// What dy is multiplied by. A lone element is its own mean, whatever it is: its dx is 0, and exactly so, where the
// difference of two roundings would not be.
inline double scale_of(const Problem& p, const Moments& m, const Sums* sums, double rstd) {
    return sums && p.center && m.count == 1 && !p.sample_weight ? 0 : rstd;
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

// weight and bias (W) in double: 1 and 0 where there are none.
struct Affine {
    const double *weight, *bias;
};

// ---- columns ----

// The coefficients of w columns.
template <class A>
struct alignas(64) Tile {
    A hi[TILE], lo[TILE], scale[TILE], bias[TILE], through_mean[TILE], through_var[TILE];
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

// row(row, tile, c, w) for every valid row, tile by tile; what is not valid in between is filled. From the last chunk to the
// first: the sweep before this one ended there, so that much of it is still in a cache.
template <class T, class A, class Fill, class Row>
void sweep_columns(const Problem& p, const Runs& runs, const Output<T>& to, const T* from, Fill fill, Row row) {
    const std::int64_t width = p.width(), tiles = (width + TILE - 1) / TILE;
    const std::vector<Chunk> chunks = chunks_of(runs, CHUNK_ROWS);
    const std::int64_t items = static_cast<std::int64_t>(chunks.size()) * tiles;
    const auto gap = [&](std::int64_t begin, std::int64_t end, std::int64_t c, std::int64_t w) {
        if (w == width) return to.fill(from, begin * width, (end - begin) * width);
        for (std::int64_t r = begin; r < end; ++r) to.fill(from, r * width + c, w);
    };
    auto item = [&](std::int64_t turn) {
        const std::int64_t index = items - 1 - turn, c = index % tiles * TILE;
        const Chunk& chunk = chunks[index / tiles];
        const int w = static_cast<int>(width - c < TILE ? width - c : TILE);
        with_tile<A>(
            !p.sample_weight, [&](auto& tile) { fill(tile, chunk.list, c, w); },
            [&](auto& tile) {
                runs.walk(chunk.list, chunk.from, chunk.to, [&](std::int64_t start, std::int64_t length, std::int64_t i) {
                    if (start == runs.runs[i].start) gap(runs.end_before(i), start, c, w);
                    for (std::int64_t r = start; r < start + length; ++r) row(r, tile, c, w);
                });
            });
        to.finish();
    };
    p.team->share(items, item);
    gap(runs.end_before(static_cast<std::int64_t>(runs.runs.size())), p.rows, 0, width);
}

template <class T, class A>
void forward_columns(const Problem& p, const Runs& runs, const T* x, const Output<T>& y, const Moments* found,
                     const double* rstd, const Affine& affine) {
    const std::int64_t width = p.width();
    sweep_columns<T, A>(
        p, runs, y, p.keep_padding ? x : nullptr,
        [&](auto& tile, std::int64_t o, std::int64_t c, int w) {
            for (int k = 0; k < w; ++k) {
                const std::int64_t i = o * p.kept + (c + k) / p.channels;
                tile.fixed(k, found[i].mean, rstd[i] * affine.weight[c + k]);
                tile.also(tile.bias, k, affine.bias[c + k]);
            }
        },
        [&](std::int64_t r, auto& tile, std::int64_t c, int w) {
            using B = std::remove_reference_t<decltype(tile.hi[0])>;
            const std::int64_t at = r * width + c;
            y.put(at, w, [&](T* to, std::int64_t, std::int64_t) {
                loops<T, B>().column_forward(x + at, to, w, tile.hi, tile.lo, tile.scale, tile.bias);
            });
        });
}

inline void add(double* __restrict__ into, const double* __restrict__ more, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) into[i] += more[i];
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
                const ChunkRows all(p, runs, chunk, nullptr);
                const T *xs[CHUNK_ROWS], *dys[CHUNK_ROWS];
                all.point(xs, x, c);
                all.point(dys, dy, c);
                double here[TILE], here_product[TILE];
                for (int first = 0; first < all.count; first += BLOCK_ROWS) {
                    const int left = all.count - first, n = left < BLOCK_ROWS ? left : BLOCK_ROWS;
                    loops<T, B>().column_sums(xs + first, dys + first, n, left - n, w, tile.hi, tile.lo, tile.scale, here,
                                              here_product);
                    bool finite = true;
                    for (int k = 0; k < w; ++k) finite = finite && std::isfinite(here[k]) && std::isfinite(here_product[k]);
                    if (!finite && sizeof(B) != sizeof(double)) {  // float overflowed: once more in double
                        double hi[TILE], lo[TILE] = {}, factor[TILE];
                        for (int k = 0; k < w; ++k) {
                            const std::int64_t i = chunk.list * p.kept + (c + k) / p.channels;
                            hi[k] = found[i].mean;
                            factor[k] = rstd[i];
                        }
                        loops<T, double>().column_sums(xs + first, dys + first, n, 0, w, hi, lo, factor, here, here_product);
                    }
                    add(into_plain, here, w);
                    add(into_product, here_product, w);
                }
            });
    };
    p.team->share(static_cast<std::int64_t>(chunks.size()) * tiles, item);
    for (std::size_t i = 0; i < chunks.size();) {  // into the first chunk of each list
        double *one = &plain[i * width], *two = &product[i * width];
        std::size_t next = i + 1;
        for (; next < chunks.size() && chunks[next].list == chunks[i].list; ++next) {
            add(one, &plain[next * width], width);
            add(two, &product[next * width], width);
        }
        add(dbias, one, width);
        add(dweight, two, width);
        for (std::int64_t c = 0; c < width; ++c) {
            Sums& into = sums[chunks[i].list * p.kept + c / p.channels];
            into.dxhat += affine.weight[c] * one[c];
            into.dxhat_xhat += affine.weight[c] * two[c];
        }
        i = next;
    }
}

template <class T, class A>
void backward_columns(const Problem& p, const Runs& runs, const T* x, const T* dy, const Output<T>& dx, const Moments* found,
                      const double* rstd, const Affine& affine, const Sums* sums) {
    const std::int64_t width = p.width();
    sweep_columns<T, A>(
        p, runs, dx, p.keep_padding ? dy : nullptr,
        [&](auto& tile, std::int64_t o, std::int64_t c, int w) {
            for (int k = 0; k < w; ++k) {
                const std::int64_t i = o * p.kept + (c + k) / p.channels;
                const double own = scale_of(p, found[i], sums, rstd[i]);
                const Shared shared = shared_of(p, found[i], sums ? sums + i : nullptr, own);
                tile.fixed(k, found[i].mean, own * affine.weight[c + k]);
                tile.also(tile.through_mean, k, shared.through_mean);
                tile.also(tile.through_var, k, shared.through_var);
            }
        },
        [&](std::int64_t r, auto& tile, std::int64_t c, int w) {
            using B = std::remove_reference_t<decltype(tile.hi[0])>;
            const std::int64_t at = r * width + c;
            const B s = static_cast<B>(p.sample_weight ? p.sample_weight[r] : 1.0);
            dx.put(at, w, [&](T* to, std::int64_t, std::int64_t) {
                loops<T, B>().column_backward(x + at, dy + at, to, w, tile.hi, tile.lo, tile.scale, tile.through_mean,
                                              tile.through_var, s);
            });
        });
}

// ---- rows ----

// weight and bias in what a row is computed with.
template <class A>
struct RowAffine {
    std::vector<A> weight, bias;
    bool fits = true;

    RowAffine(const Affine& affine, std::int64_t width)
        : weight(affine.weight, affine.weight + width), bias(affine.bias, affine.bias + width) {
        for (std::int64_t c = 0; c < width; ++c) fits = fits && holds<A>(affine.weight[c]) && holds<A>(affine.bias[c]);
    }
};

// given: the moments are there already; otherwise rows are measured while they are in the cache.
template <class T, class A>
void forward_rows(const Problem& p, const Runs& runs, const T* x, const Output<T>& y, Moments* found, bool given,
                  const Affine& affine) {
    const std::int64_t width = p.width();
    const RowAffine<A> narrow(affine, width);
    if (!given && runs.count[0] < p.rows) std::fill_n(found, p.statistics(), Moments{});
    const auto gap = [&](std::int64_t begin, std::int64_t end) {
        y.fill(p.keep_padding ? x : nullptr, begin * width, (end - begin) * width);
    };
    const auto group = [&](const std::int64_t* rows, int n, std::int64_t) {
        for (std::int64_t k = 0; k < p.kept; ++k) {
            const std::int64_t c = k * p.channels;
            Moments here[GROUP];
            double rstd[GROUP];
            if (!given) measure_group_of_rows<T, A>(p, x, rows, n, k, here);
            for (int r = 0; r < n; ++r) {  // one after the other: roots and divisions take long, but many can run at once
                Moments& one = found[rows[r] * p.kept + k];
                if (given) here[r] = one;
                else one = here[r];
                rstd[r] = inverse_deviation(p, here[r]);
            }
            for (int r = 0; r < n; ++r) {
                const std::int64_t at = (rows[r] * p.kept + k) * p.channels;
                const Fixed<A> one(here[r].mean, rstd[r]);
                y.put(at, p.channels, [&](T* to, std::int64_t j, std::int64_t m) {
                    if (one.fits && narrow.fits) {
                        loops<T, A>().row_forward(x + at + j, to, m, one.hi, one.lo, one.rstd, &narrow.weight[c + j],
                                                  &narrow.bias[c + j]);
                    } else {
                        loops<T, double>().row_forward(x + at + j, to, m, here[r].mean, 0.0, rstd[r],
                                                       affine.weight + c + j, affine.bias + c + j);
                    }
                });
            }
        }
        y.finish();
    };
    sweep_rows(p, runs, chunks_of(runs, BLOCK_ROWS), gap, group);
}

// The statistics (row, k) of up to GROUP rows, as their sums need them.
template <class T, class A>
struct RowGroup {
    const T *x[GROUP], *dy[GROUP];
    double mean[GROUP], rstd[GROUP];
    A hi[GROUP], lo[GROUP], factor[GROUP];
    bool fits[GROUP];
    int count = 0;

    RowGroup(const Problem& p, const T* x_, const T* dy_, const Moments* found, const std::int64_t* rows, int n,
             std::int64_t k, bool narrow)
        : count(n) {
        for (int r = 0; r < n; ++r) {
            const std::int64_t i = rows[r] * p.kept + k;
            x[r] = x_ + i * p.channels;
            dy[r] = dy_ + i * p.channels;
            mean[r] = found[i].mean;
            rstd[r] = inverse_deviation(p, found[i]);
        }
        for (int r = 0; r < n; ++r) {
            const Fixed<A> one(mean[r], rstd[r]);
            hi[r] = one.hi, lo[r] = one.lo, factor[r] = one.rstd;
            fits[r] = one.fits && narrow;
        }
    }

    // The sums of the rows, each over itself; dweight, dbias (channels) are added to. weight, wide: in A and in double.
    void sum(std::int64_t channels, std::int64_t ahead, const A* weight, const double* wide, Sums* sums, A* dweight, A* dbias) const {
        double dxhat[GROUP], dxhat_xhat[GROUP];
        for (int r = 0; r < count; ++r) sums[r] = Sums{};
        for (std::int64_t j = 0; j < channels; j += BLOCK) {
            const std::int64_t n = channels - j < BLOCK ? channels - j : BLOCK;
            for (int r = 0; r < count;) {  // as many as follow each other and fit
                int end = r;
                const T *xs[GROUP], *dys[GROUP];
                for (; end < count && fits[end]; ++end) xs[end] = x[end] + j, dys[end] = dy[end] + j;
                if (end > r)
                    loops<T, A>().row_sums(xs + r, dys + r, end - r, n, hi + r, lo + r, factor + r, weight + j, ahead, dxhat + r,
                                           dxhat_xhat + r, dweight + j, dbias + j);
                for (; r < end; ++r)
                    if (!told(dxhat[r], dxhat_xhat[r]))  // beyond float, or below it
                        sum_wide(r, j, n, wide, dxhat + r, dxhat_xhat + r, nullptr, nullptr);
                if (r < count) sum_wide(r, j, n, wide, dxhat + r, dxhat_xhat + r, dweight + j, dbias + j), ++r;
            }
            for (int r = 0; r < count; ++r) sums[r].dxhat += dxhat[r], sums[r].dxhat_xhat += dxhat_xhat[r];
        }
    }

private:
    // Whether float sums are what they seem: products of small numbers vanish, those of large ones overflow.
    static bool told(double dxhat, double dxhat_xhat) {
        if (!std::isfinite(dxhat) || !std::isfinite(dxhat_xhat)) return false;
        return sizeof(A) == sizeof(double) || std::fabs(dxhat) > 1e-30 || std::fabs(dxhat_xhat) > 1e-30;
    }

    // The sums of one row's n <= BLOCK elements from j on, in double.
    void sum_wide(int r, std::int64_t j, std::int64_t n, const double* weight, double* dxhat, double* dxhat_xhat,
                  A* dweight, A* dbias) const {
        double more_weight[BLOCK] = {}, more_bias[BLOCK] = {};
        const T *xs = x[r] + j, *dys = dy[r] + j;
        const double zero = 0;
        loops<T, double>().row_sums(&xs, &dys, 1, n, mean + r, &zero, rstd + r, weight + j, 0, dxhat, dxhat_xhat, more_weight,
                                    more_bias);
        for (std::int64_t i = 0; dweight && i < n; ++i) {
            dweight[i] += static_cast<A>(more_weight[i]);
            dbias[i] += static_cast<A>(more_bias[i]);
        }
    }
};

// dx null: only the sums. `given` sums: only dx. Neither: both, row by row.
template <class T, class A>
void backward_rows(const Problem& p, const Runs& runs, const T* x, const T* dy, const Output<T>& dx, const Moments* found,
                   const Affine& affine, const Sums* given, bool constant, Sums* sums, double* dweight, double* dbias) {
    const std::int64_t width = p.width();
    const RowAffine<A> narrow(affine, width);
    const std::vector<Chunk> chunks = chunks_of(runs, BLOCK_ROWS);
    std::vector<A> parts(given ? 0 : chunks.size() * 2 * width);
    const auto gap = [&](std::int64_t begin, std::int64_t end) {
        if (dx) dx.fill(p.keep_padding ? dy : nullptr, begin * width, (end - begin) * width);
    };
    const auto group = [&](const std::int64_t* rows, int n, std::int64_t chunk) {
        for (std::int64_t k = 0; k < p.kept; ++k) {
            const std::int64_t c = k * p.channels;
            const RowGroup<T, A> all(p, x, dy, found, rows, n, k, narrow.fits);
            Sums here[GROUP];
            if (!given) {
                A* into = &parts[chunk * 2 * width + c];
                all.sum(p.channels, GROUP * width, &narrow.weight[c], affine.weight + c, here, into, into + width);
            }
            Shared shared[GROUP];
            bool lone[GROUP];
            for (int r = 0; r < n; ++r) {
                const std::int64_t i = rows[r] * p.kept + k;
                if (given) here[r] = given[i];
                lone[r] = scale_of(p, found[i], constant ? nullptr : &here[r], 1) == 0;
                if (!given && sums) sums[i] = here[r];
                const double s = p.sample_weight ? p.sample_weight[rows[r]] : 1.0;
                shared[r] = shared_of(p, found[i], constant ? nullptr : &here[r], lone[r] ? 0 : all.rstd[r]);
                shared[r].through_mean *= s;
                shared[r].through_var *= s;
            }
            for (int r = 0; dx && r < n; ++r) {
                const double through_mean = shared[r].through_mean, through_var = shared[r].through_var;
                const bool fits = all.fits[r] && holds<A>(through_mean) && holds<A>(through_var);
                const auto write = [&](T* to, std::int64_t j, std::int64_t m) {
                    if (fits) {
                        loops<T, A>().row_backward(all.x[r] + j, all.dy[r] + j, to, m, all.hi[r], all.lo[r],
                                                   lone[r] ? 0 : all.factor[r], &narrow.weight[c + j], static_cast<A>(through_mean),
                                                   static_cast<A>(through_var));
                    } else {
                        loops<T, double>().row_backward(all.x[r] + j, all.dy[r] + j, to, m, all.mean[r], 0.0,
                                                        lone[r] ? 0 : all.rstd[r], affine.weight + c + j, through_mean, through_var);
                    }
                };
                dx.put((rows[r] * p.kept + k) * p.channels, p.channels, write);
            }
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
                const double g = load<double>(dy[at]);
                exact.dxhat_xhat += g * ((load<double>(x[at]) - m.mean) * inverse_deviation(p, m));
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
                    dweight[c] += static_cast<double>(one[c]);
                    dbias[c] += static_cast<double>(two[c]);
                } else {
                    const Sums exact = again(chunks[chunk], c);
                    dweight[c] += exact.dxhat_xhat;
                    dbias[c] += exact.dxhat;
                }
            }
        }
    };
    p.team->share((width + TILE - 1) / TILE, columns);
}

// ---- planes ----

// stretch(start, length) for what is valid in a plane, gap(begin, end) for what is not. Offsets are inside the plane.
template <class Stretch, class Gap>
void sweep_plane(const Problem& p, const Runs& runs, std::int64_t q, Stretch stretch, Gap gap) {
    const std::int64_t base = q * p.extent;
    std::int64_t end = 0;
    for (std::int64_t i = runs.first[q]; i < runs.first[q + 1]; ++i) {
        const std::int64_t start = runs.runs[i].start - base;
        gap(end, start);
        stretch(start, runs.runs[i].length);
        end = start + runs.runs[i].length;
    }
    gap(end, p.positions);
}

template <class T, class A>
void forward_group(const Problem& p, const Runs& runs, std::int64_t q, std::int64_t k, const T* x, const Output<T>& y,
                   const Moments& found, double rstd, const Affine& affine) {
    for (std::int64_t c = k * p.channels; c < (k + 1) * p.channels; ++c) {
        const std::int64_t plane = (q * p.width() + c) * p.positions;
        const double scale = rstd * affine.weight[c], bias = affine.bias[c];
        const Fixed<A> one(found.mean, scale);
        const bool fits = one.fits && holds<A>(bias);
        const auto stretch = [&](std::int64_t start, std::int64_t length) {
            const T* from = x + plane + start;
            y.put(plane + start, length, [&](T* to, std::int64_t i, std::int64_t n) {
                if (fits) loops<T, A>().forward(from + i, to, n, one.hi, one.lo, one.rstd, static_cast<A>(bias));
                else loops<T, double>().forward(from + i, to, n, found.mean, 0.0, scale, bias);
            });
        };
        sweep_plane(p, runs, q, stretch, [&](std::int64_t begin, std::int64_t end) {
            y.fill(p.keep_padding ? x : nullptr, plane + begin, end - begin);
        });
    }
}

template <class T, class A>
void forward_planes(const Problem& p, const Runs& runs, const T* x, const Output<T>& y, Moments* found, bool given,
                    const Affine& affine) {
    const bool together = p.reduced == 1;  // each group is a statistic of its own: measure it and write it at once
    if (!given && !together) measure_planes<T, A>(p, runs, x, found);
    std::vector<double> rstd(p.statistics());
    const auto settle = [&](std::int64_t i) { rstd[i] = inverse_deviation(p, found[i]); };
    for (std::int64_t i = 0; (given || !together) && i < p.statistics(); ++i) settle(i);
    sweep_planes(p, [&](std::int64_t turn, std::int64_t from, std::int64_t to) {
        const std::int64_t q = p.sequences - 1 - turn, first = q / p.reduced * p.kept;  // from the last: see sweep_columns
        if (!given && together) {
            measure_groups<T, A>(p, runs, q, from, to, x, found + first);
            for (std::int64_t k = from; k < to; ++k) settle(first + k);
        }
        for (std::int64_t k = from; k < to; ++k)
            forward_group<T, A>(p, runs, q, k, x, y, found[first + k], rstd[first + k], affine);
        y.finish();
    });
}

// parts: (channels of the group) times (sum of dy, sum of dy * xhat).
template <class T, class A>
void sums_group(const Problem& p, const Runs& runs, std::int64_t q, std::int64_t k, const T* x, const T* dy,
                const Moments& found, double rstd, double* parts) {
    const Fixed<A> one(found.mean, rstd);
    for (std::int64_t c = 0; c < p.channels; ++c) {
        const std::int64_t at = (q * p.width() + k * p.channels + c) * p.positions;
        double plain = 0, product = 0;
        const auto stretch = [&](std::int64_t start, std::int64_t length) {
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
        };
        sweep_plane(p, runs, q, stretch, [](std::int64_t, std::int64_t) {});
        parts[2 * c] = plain;
        parts[2 * c + 1] = product;
    }
}

template <class T, class A>
void backward_group(const Problem& p, const Runs& runs, std::int64_t q, std::int64_t k, const T* x, const T* dy,
                    const Output<T>& dx, const Moments& found, double rstd, const Affine& affine, const Shared& shared) {
    for (std::int64_t c = k * p.channels; c < (k + 1) * p.channels; ++c) {
        const std::int64_t plane = (q * p.width() + c) * p.positions;
        const double scale = rstd * affine.weight[c];
        const Fixed<A> one(found.mean, scale);
        const bool fits = one.fits && holds<A>(shared.through_mean) && holds<A>(shared.through_var) && !p.sample_weight;
        const auto stretch = [&](std::int64_t start, std::int64_t length) {
            const T *xs = x + plane + start, *dys = dy + plane + start;
            const double* s = p.sample_weight ? p.sample_weight + q * p.extent + start : nullptr;
            dx.put(plane + start, length, [&](T* to, std::int64_t i, std::int64_t n) {
                if (fits) {
                    loops<T, A>().backward(xs + i, dys + i, to, n, one.hi, one.lo, one.rstd,
                                           static_cast<A>(shared.through_mean), static_cast<A>(shared.through_var), nullptr);
                } else {
                    loops<T, double>().backward(xs + i, dys + i, to, n, found.mean, 0.0, scale, shared.through_mean,
                                                shared.through_var, s ? s + i : nullptr);
                }
            });
        };
        sweep_plane(p, runs, q, stretch, [&](std::int64_t begin, std::int64_t end) {
            dx.fill(p.keep_padding ? dy : nullptr, plane + begin, end - begin);
        });
    }
}

template <class T, class A>
void backward_planes(const Problem& p, const Runs& runs, const T* x, const T* dy, const Output<T>& dx,
                     const Moments* found, const Affine& affine, const Sums* given, bool constant, Sums* sums,
                     double* dweight, double* dbias) {
    const bool together = p.reduced == 1;
    std::vector<Sums> own(sums || given ? 0 : p.statistics());
    if (!sums) sums = own.data();
    std::vector<double> rstd(p.statistics()), scale(p.statistics());
    std::vector<Shared> shared(p.statistics());
    for (std::int64_t i = 0; i < p.statistics(); ++i) rstd[i] = inverse_deviation(p, found[i]);
    const auto first = [&](std::int64_t q) { return q / p.reduced * p.kept; };  // statistic of a sequence
    const auto settle = [&](std::int64_t i) {
        const Sums* all = constant ? nullptr : (given ? given : sums) + i;
        scale[i] = scale_of(p, found[i], all, rstd[i]);
        shared[i] = shared_of(p, found[i], all, scale[i]);
    };
    const auto write = [&](std::int64_t q, std::int64_t from, std::int64_t to) {
        for (std::int64_t k = from, i = first(q) + from; k < to; ++k, ++i)
            backward_group<T, A>(p, runs, q, k, x, dy, dx, found[i], scale[i], affine, shared[i]);
        dx.finish();
    };
    if (!given) {
        std::vector<double> parts(p.sequences * p.width() * 2);
        // Of group k of a sequence, whose parts these are, to statistic i.
        const auto add = [&](std::int64_t k, std::int64_t i, const double* part) {
            for (std::int64_t c = k * p.channels; c < (k + 1) * p.channels; ++c, part += 2) {
                sums[i].dxhat += affine.weight[c] * part[0];
                sums[i].dxhat_xhat += affine.weight[c] * part[1];
            }
        };
        sweep_planes(p, [&](std::int64_t q, std::int64_t from, std::int64_t to) {
            double* part = &parts[(q * p.kept + from) * p.channels * 2];
            for (std::int64_t k = from, i = first(q) + from; k < to; ++k, ++i, part += p.channels * 2) {
                sums_group<T, A>(p, runs, q, k, x, dy, found[i], rstd[i], part);
                if (!together) continue;
                add(k, i, part);
                settle(i);
            }
            if (together && dx) write(q, from, to);
        });
        for (std::int64_t q = 0; q < p.sequences; ++q) {
            const double* part = &parts[q * p.width() * 2];
            for (std::int64_t k = 0, i = first(q); !together && k < p.kept; ++k, ++i) add(k, i, part + k * p.channels * 2);
            for (std::int64_t c = 0; c < p.width(); ++c) {
                dbias[c] += part[2 * c];
                dweight[c] += part[2 * c + 1];
            }
        }
        if (together || !dx) return;
    }
    for (std::int64_t i = 0; i < p.statistics(); ++i) settle(i);
    sweep_planes(p, [&](std::int64_t turn, std::int64_t from, std::int64_t to) {
        write(p.sequences - 1 - turn, from, to);
    });
}

// ---- the verbs ----

// found (statistics): measured here, or given.
template <class T>
void forward(const Problem& p, const Runs& runs, const T* x, T* to, Moments* found, bool given, const Affine& affine) {
    const Output<T> y(to, p.elements());
    using A = typename Computed<T>::type;
    if (p.layout == Layout::rows) return forward_rows<T, A>(p, runs, x, y, found, given, affine);
    if (p.layout == Layout::planes) return forward_planes<T, A>(p, runs, x, y, found, given, affine);
    if (!given) measure_columns<T, A>(p, runs, x, found);
    std::vector<double> rstd(p.statistics());
    for (std::int64_t i = 0; i < p.statistics(); ++i) rstd[i] = inverse_deviation(p, found[i]);
    forward_columns<T, A>(p, runs, x, y, found, rstd.data(), affine);
}

// to null: only the sums. given: the sums of a whole that x is a part of; only dx is written. Otherwise sums (statistics),
// dweight and dbias (W), all 0 before, are written, and dx. constant: the moments do not depend on x.
template <class T>
void backward(const Problem& p, const Runs& runs, const T* x, const T* dy, T* to, const Moments* found,
              const Affine& affine, const Sums* given, bool constant, Sums* sums, double* dweight, double* dbias) {
    const Output<T> dx(to, p.elements());
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
