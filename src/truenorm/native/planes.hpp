// Planes, x[sequence][W][positions]: a statistic covers the planes of a group of channels, over one or more sequences.
//
// A statistic that lies in one sequence is measured and used while it is in the cache: see plane_moments.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <memory>
#include <type_traits>
#include <vector>

#include "coefficients.hpp"
#include "plane_moments.hpp"

namespace truenorm {

// Planes of so many positions and more are written one by one where there is padding, so that all is written in the
// order of memory. For shorter ones a call for each would take longer.
constexpr std::int64_t APART = 128;
// Planes of at most so many positions have coefficients for each element, if these stay in the cache and so many
// sequences share them.
constexpr std::int64_t SHORT = 64, MOST_ELEMENTS = 4096, REPEATED = 8;

// The statistic of group k of sequence q.
inline std::int64_t statistic_of(const CallParams& p, std::int64_t q, std::int64_t k) {
    return q / p.reduced * p.kept + k;
}

// The coefficients of planes: fill(part, first, c, w) gives those of w planes from c on, whose first statistic is
// `first`. Those of statistics that several sequences share are prepared once.
template <class A, class Fill> class PlaneTiles {
public:
    PlaneTiles(const CallParams& p, bool narrow, Fill fill)
        : p(p), narrow(narrow), fill(fill), shared(p.reduced > 1 && narrow ? p.outer : 0), memory(shared, p.width()) {
        for (std::int64_t o = 0; o < shared; ++o)
            tiles.push_back(filled(memory[o], 0, p.width(), fill_from(o * p.kept)));
    }

    // The coefficients of each element of the planes of sequence q, of which `arrays` are used: short planes are then
    // rows of width * positions columns. Null where that is not worth it.
    using Array = A* Tile<A>::*;
    const Tile<A>* of_elements(std::int64_t q) const {
        const std::int64_t o = q / p.reduced;
        return elements.empty() || !tiles[o].fits ? nullptr : &elements[o];
    }
    void spread_to_elements(std::initializer_list<Array> arrays) {
        if (p.positions > SHORT || p.width() * p.positions > MOST_ELEMENTS || p.reduced < REPEATED) return;
        memory_of_elements = Tiles<A>(shared, p.width() * p.positions);
        for (std::int64_t o = 0; o < shared; ++o) {
            Tile<A> tile = memory_of_elements[o];
            tile.exact = tiles[o].exact;
            for (const Array array : arrays)
                for (std::int64_t c = 0; c < p.width(); ++c)
                    std::fill_n(tile.*array + c * p.positions, p.positions, (tiles[o].*array)[c]);
            elements.push_back(tile);
        }
    }

    // use(tile, c, w) for the planes from `from` to `to` of sequence q, w of them from c on: in A where it holds their
    // coefficients, else in double.
    template <class Use> void each(std::int64_t q, std::int64_t from, std::int64_t to, Use use) const {
        const std::int64_t o = q / p.reduced;
        if (shared && tiles[o].fits) return use(tiles[o].part(from), from, to - from);
        const auto fill_here = fill_from(o * p.kept);
        if (!shared && narrow) {
            const Tiles<A> own(1, to - from);
            const Tile<A> tile = filled(own[0], from, to - from, fill_here);
            if (tile.fits) return use(tile, from, to - from);
        }
        for (std::int64_t c = from; c < to; ++c)  // what a plane gets does not depend on those beside it
            with_tile<A>(narrow, c, 1, fill_here, [&](const auto& tile) { use(tile, c, 1); });
    }

    // use(tile) with the coefficients of plane c of sequence q in double.
    template <class Use> void in_double(std::int64_t q, std::int64_t c, Use use) const {
        with_tile<double>(false, c, 1, fill_from(q / p.reduced * p.kept), use);
    }

private:
    const CallParams& p;
    const bool narrow;
    const Fill fill;
    const std::int64_t shared;
    const Tiles<A> memory;
    Tiles<A> memory_of_elements{0, 0};
    std::vector<Tile<A>> tiles, elements;  // of each outer index

    auto fill_from(std::int64_t first) const {
        return [this, first](auto& part, std::int64_t c, int w) { fill(part, first, c, w); };
    }
};

template <class A, class Fill> PlaneTiles<A, Fill> plane_tiles(const CallParams& p, bool narrow, Fill fill) {
    return {p, narrow, fill};
}

// Writes w planes of sequence q, from c on. write(k, count, start, to, n) writes n elements of `count` planes, from
// `start` on, to `to` and so on: plane c + k is the first of them. Padding is filled. read: the arrays that `write`
// reads. whole: padding is written with the rest, and then filled.
template <class T, class Write> void write_planes(const CallParams& p, const ValidRuns& runs, const Output<T>& output,
                                                  const T* padding, std::initializer_list<const T*> read,
                                                  std::int64_t q, std::int64_t c, std::int64_t w, bool whole,
                                                  Write write) {
    const std::int64_t first = (q * p.width() + c) * p.positions;
    whole = whole && runs.count[q] > 0;
    if (whole || runs.count[q] == p.positions)
        output.put_together(first, w, p.positions,
                            [&](T* to, std::int64_t k, std::int64_t count, std::int64_t i, std::int64_t n) {
                                write(k, count, i, to, n);
                            });
    if (runs.count[q] == p.positions) return;
    const std::int64_t step = p.positions < APART ? w : 1;
    for (std::int64_t k = 0; k < w; k += step) {
        const std::int64_t begin_of = first + k * p.positions;
        T* const to = output.padded(begin_of);
        const auto gap = [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t at = 0; begin < end && at < step * p.positions; at += p.positions)
                fill(to + at + begin, padding ? padding + begin_of + at + begin : nullptr, end - begin);
        };
        sweep_plane(
            p, runs, q,
            [&](std::int64_t start, std::int64_t length) {
                if (step == 1 && k + RUNS_AHEAD < w)
                    for (const T* array : read) fetch_run(array + begin_of + RUNS_AHEAD * p.positions + start);
                if (!whole) write(k, step, start, to + start, length);
            },
            gap);
    }
}

template <class T, class A> void forward_planes(const Forward<T>& call) {
    const CallParams& p = call.p;
    Moments* const found = call.moments;
    const bool together = p.reduced == 1;  // each group is a statistic of its own: measure it and write it at once
    if (!call.given && !together) measure_planes<T, A>(call.measure());
    std::vector<double> rstd(p.statistics());
    if (!together) rstd_of(p, found, p.statistics(), rstd.data());
    using Of = Tile<A>;
    auto tiles = plane_tiles<A>(p, true, coefficients_of_y(call, rstd.data()));
    tiles.spread_to_elements({&Of::hi, &Of::lo, &Of::scale, &Of::bias});
    sweep_planes(p, [&](std::int64_t turn, std::int64_t from, std::int64_t to) {
        const std::int64_t q = p.sequences - 1 - turn,
                           first = statistic_of(p, q, 0);  // from the last: see sweep_columns
        if (!call.given && together) measure_groups<T, A>(call.measure(), q, from, to, found + first);
        if (together) rstd_of(p, found + first + from, to - from, &rstd[first + from]);
        const Of* const elements = tiles.of_elements(q);
        tiles.each(q, from * p.channels, to * p.channels, [&](const auto& tile, std::int64_t c, std::int64_t w) {
            using B = std::remove_reference_t<decltype(tile.hi[0])>;
            write_planes(p, call.runs, call.y, p.keep_padding ? call.x : nullptr, {call.x}, q, c, w, elements,
                         [&](std::int64_t k, std::int64_t count, std::int64_t start, T* y, std::int64_t n) {
                             const T* const x = call.x + (q * p.width() + c + k) * p.positions + start;
                             if (elements && n == p.positions) {
                                 const Of of = elements->part((c + k) * n);
                                 loops<T, A>().column_forward(x, y, count * n, count * n, of.hi, of.low(), of.scale,
                                                              of.bias);
                             } else {
                                 const Tile<B> of = tile.part(k);
                                 loops<T, B>().forward(x, y, count, p.positions, n, of.hi, of.low(), of.scale, of.bias);
                             }
                             if (p.activation == Activation::none) return;
                             const auto& after = loops<T, typename Accumulator<T>::type>();
                             if (n == p.positions) return after.activate(p.activation, y, count * n);
                             for (std::int64_t r = 0; r < count; ++r)
                                 after.activate(p.activation, y + r * p.positions, n);
                         });
        });
        call.y.finish();
    });
}

// z (n): dy times the derivative of the activation, for elements of plane k of a tile. scale: of the normalization,
// rstd * weight.
template <class T, class B> void derive_plane(Activation kind, const T* x, const T* dy, T* z, std::int64_t n,
                                              const Tile<B>& tile, const B* scale, std::int64_t k) {
    const Tile<B> of = tile.part(k);
    loops<T, B>().forward(x, z, 1, n, n, of.hi, of.low(), scale + k, of.bias);
    loops<T, typename Accumulator<T>::type>().derive(kind, dy, z, n);
}

// plain and product (width), from plane `from` to `to` of sequence q: the sums of dy and of dy * xhat over each plane.
template <class T, class Coefficients> void sums_planes(const Backward<T>& call, const Coefficients& tiles,
                                                        std::int64_t q, std::int64_t from, std::int64_t to,
                                                        double* plain, double* product) {
    const CallParams& p = call.p;
    std::fill(plain + from, plain + to, 0.0);
    std::fill(product + from, product + to, 0.0);
    const Stretches<T> stretches(p, call.runs, q, 1);
    if (stretches.length == 0) return;
    T room[BATCH], room_dy[BATCH];
    const int most = stretches.fit() ? at_once(stretches.length) : 1;
    tiles.each(q, from, to, [&](const auto& tile, std::int64_t of_tile, std::int64_t w) {
        using B = std::remove_reference_t<decltype(tile.hi[0])>;
        for (std::int64_t k = 0; k < w; k += most) {
            const int n = w - k < most ? static_cast<int>(w - k) : most;
            const std::int64_t c = of_tile + k;
            const auto add = [&](const T* const* xs, const T* const* dys, std::int64_t length) {
                double here[GROUP], here_product[GROUP];
                const T* derived[GROUP];
                T room_z[BATCH];
                for (int r = 0; call.activated() && r < n; ++r) {
                    T* const z = room_z + r * length;
                    derive_plane(p.activation, xs[r], dys[r], z, length, tile, tile.weighted, k + r);
                    derived[r] = z;
                }
                if (call.activated()) dys = derived;
                loops<T, B>().sums(xs, dys, n, length, tile.hi + k, tile.lo + k, tile.scale + k, here, here_product);
                for (int r = 0; r < n; ++r) {
                    if (!std::isfinite(here[r]) || !std::isfinite(here_product[r])) {  // beyond float
                        tiles.in_double(q, c + r, [&](const Tile<double>& wide) {
                            loops<T, double>().sums(xs + r, dys + r, 1, length, wide.hi, wide.lo, wide.scale, here + r,
                                                    here_product + r);
                        });
                    }
                    plain[c + r] += here[r];
                    product[c + r] += here_product[r];
                }
            };
            const std::int64_t at = (q * p.width() + c) * p.positions;
            const T *xs[GROUP], *dys[GROUP];
            if (stretches.fit()) {
                stretches.point(call.x + at, n, room, xs);
                stretches.point(call.dy + at, n, room_dy, dys);
                for (std::int64_t j = 0; j < stretches.length; j += BLOCK) {
                    add(xs, dys, stretches.length - j < BLOCK ? stretches.length - j : BLOCK);
                    for (int r = 0; r < n; ++r) xs[r] += BLOCK, dys[r] += BLOCK;
                }
            } else {  // both in step, block by block
                std::vector<T> all(static_cast<std::size_t>(stretches.length));
                std::int64_t done = 0;
                gather(p, call.runs, q, call.x + at, 1, room, [&](const T* block, std::int64_t length) {
                    std::copy_n(block, length, &all[static_cast<std::size_t>(done)]);
                    done += length;
                });
                done = 0;
                gather(p, call.runs, q, call.dy + at, 1, room_dy, [&](const T* block, std::int64_t length) {
                    const T* const x = &all[static_cast<std::size_t>(done)];
                    add(&x, &block, length);
                    done += length;
                });
            }
        }
    });
}

// dx of the planes `from` to `to` of sequence q.
template <class T, class Coefficients>
void write_dx(const Backward<T>& call, const Coefficients& tiles, std::int64_t q, std::int64_t from, std::int64_t to) {
    const CallParams& p = call.p;
    const auto* const elements = tiles.of_elements(q);
    using A = std::remove_reference_t<decltype(elements->hi[0])>;
    tiles.each(q, from, to, [&](const auto& all, std::int64_t c, std::int64_t w) {
        using B = std::remove_reference_t<decltype(all.hi[0])>;
        write_planes(p, call.runs, call.dx, p.keep_padding ? call.dy : nullptr, {call.x, call.dy}, q, c, w, elements,
                     [&](std::int64_t k, std::int64_t count, std::int64_t start, T* dx, std::int64_t n) {
                         const std::int64_t at = (q * p.width() + c + k) * p.positions + start;
                         if (elements && n == p.positions)
                             return loops<T, A>().column_backward(call.x + at, call.dy + at, dx, count * n, count * n,
                                                                  elements->part((c + k) * n).coefficients(), A(1));
                         const Tile<B> tile = all.part(k);
                         if (!call.reads_x())
                             return loops<T, B>().forward(call.dy + at, dx, count, p.positions, n, tile.hi, tile.low(),
                                                          tile.scale, tile.bias);
                         const double* const s = p.sample_weight ? p.sample_weight + q * p.extent + start : nullptr;
                         if (!call.activated())
                             return loops<T, B>().backward(call.x + at, call.dy + at, dx, count, p.positions, n,
                                                           tile.coefficients(), s);
                         T z[PIECE];
                         for (std::int64_t r = 0; r < count; ++r)
                             for (std::int64_t i = 0; i < n; i += PIECE) {
                                 const std::int64_t here = n - i < PIECE ? n - i : PIECE, from = r * p.positions + i;
                                 const T* const x = call.x + at + from;
                                 derive_plane(p.activation, x, call.dy + at + from, z, here, tile, tile.scale, r);
                                 loops<T, B>().backward(x, z, dx + from, 1, here, here, tile.part(r).coefficients(),
                                                        s ? s + i : s);
                             }
                     });
    });
    call.dx.finish();
}

template <class T, class A> void backward_planes(const Backward<T>& call) {
    const CallParams& p = call.p;
    const std::int64_t width = p.width();
    const bool together = p.reduced == 1;  // each group is a statistic of its own: sum it and write it at once
    std::vector<double> rstd(p.statistics());
    if (!together) rstd_of(p, call.moments, p.statistics(), rstd.data());
    const auto prepare = [&](std::int64_t q, std::int64_t from, std::int64_t to) {
        const std::int64_t first = statistic_of(p, q, from);
        if (together) rstd_of(p, call.moments + first, to - from, &rstd[first]);
    };
    const auto write_all = [&](const auto& tiles, std::int64_t q, std::int64_t from, std::int64_t to) {
        write_dx(call, tiles, q, from * p.channels, to * p.channels);
    };
    const bool narrow = !p.sample_weight;
    if (!call.given) {
        // Of each sequence: the sums of dy, and of dy * xhat. Not 0 before.
        const std::unique_ptr<double[]> parts(new double[p.sequences * width * 2]);
        // Adds the parts of groups of a sequence to the sums of their statistics.
        const auto add = [&](std::int64_t q, std::int64_t from, std::int64_t to, const double* part) {
            Sums* const into = call.sums + statistic_of(p, q, 0);
            for (std::int64_t k = from; k < to; ++k)
                for (std::int64_t c = k * p.channels; c < (k + 1) * p.channels; ++c) {
                    into[k].dxhat += call.affine.weight[c] * part[c];
                    into[k].dxhat_xhat += call.affine.weight[c] * part[width + c];
                }
        };
        const auto tiles = plane_tiles<A>(p, true, coefficients_of_sums(call, rstd.data()));
        const auto tiles_of_dx = plane_tiles<A>(p, narrow && together, coefficients_of_dx(call, rstd.data()));
        sweep_planes(p, [&](std::int64_t q, std::int64_t from, std::int64_t to) {
            double* const part = &parts[q * width * 2];
            prepare(q, from, to);
            sums_planes(call, tiles, q, from * p.channels, to * p.channels, part, part + width);
            if (!together) return;
            add(q, from, to, part);
            if (call.dx) write_all(tiles_of_dx, q, from, to);
        });
        for (std::int64_t q = 0; q < p.sequences; ++q) {
            const double* const part = &parts[q * width * 2];
            if (!together) add(q, 0, p.kept, part);
            for (std::int64_t c = 0; c < width; ++c) call.dbias[c] += part[c];
            for (std::int64_t c = 0; c < width; ++c) call.dweight[c] += part[width + c];
        }
        if (together || !call.dx) return;
    }
    auto tiles = plane_tiles<A>(p, narrow, coefficients_of_dx(call, rstd.data()));
    using Of = Tile<A>;
    if (call.used() && !call.activated())
        tiles.spread_to_elements({&Of::hi, &Of::lo, &Of::scale, &Of::through_mean, &Of::through_var});
    sweep_planes(p, [&](std::int64_t turn, std::int64_t from, std::int64_t to) {
        const std::int64_t q = p.sequences - 1 - turn;
        if (call.given) prepare(q, from, to);
        write_all(tiles, q, from, to);
    });
}

}  // namespace truenorm
