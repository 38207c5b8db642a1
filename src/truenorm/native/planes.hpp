// Planes, x[sequence][W][positions]: a statistic covers the planes of a group of channels, over one or more sequences.
//
// A statistic that lies in one sequence is measured and used while it is in the cache. The valid elements of a group
// are measured in their order, plane after plane, so short planes fill blocks together.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <type_traits>
#include <vector>

#include "tile.hpp"
#include "verb_arguments.hpp"

namespace truenorm {

// One plane with sample weights: its elements are gathered into full blocks.
template <class T>
Moments measure_weighted(const CallParams& p, const ValidRuns& runs, std::int64_t q, const T* plane) {
    Moments found;
    T gathered[BLOCK];
    double weights[BLOCK];
    std::int64_t n = 0;
    const auto flush = [&] {
        if (n == 0) return;
        Moments here;
        for (std::int64_t i = 0; i < n; ++i) here.count += weights[i];
        loops<T, double>().weighted_moments(gathered, weights, n, p.center, &here.mean, &here.m2);
        if (!trusted<double>(here.m2))
            measure_overflowed([&](std::int64_t i) { return load<double>(gathered[i]); }, weights, n, p.center,
                               &here.mean, &here.m2);
        merge(found, here);
        n = 0;
    };
    runs.walk(q, 0, runs.count[q], [&](std::int64_t start, std::int64_t length, std::int64_t) {
        for (std::int64_t i = start; i < start + length; ++i) {
            const double s = p.sample_weight[i];
            if (s == 0) continue;  // an element of weight 0 is not read
            gathered[n] = plane[i - q * p.extent];
            weights[n] = s;
            if (++n == BLOCK) flush();
        }
    });
    flush();
    return found;
}

// stretch(start, length) for each valid run of a plane, gap(begin, end) for the padding. Offsets are inside the plane.
template <class Stretch, class Gap>
void sweep_plane(const CallParams& p, const ValidRuns& runs, std::int64_t q, Stretch stretch, Gap gap) {
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

// body(q, from, to) for the groups `from` to `to` of sequence q: so many at once that it is worth a thread.
template <class Body> void sweep_planes(const CallParams& p, Body body) {
    const std::int64_t fitting = PIECE_OF_PLANES / (p.channels * p.positions), most = fitting < 1 ? 1 : fitting;
    const std::int64_t each = most < p.kept ? most : p.kept, pieces = (p.kept + each - 1) / each;
    auto item = [&](std::int64_t index) {
        const std::int64_t from = index % pieces * each, to = from + each;
        body(index / pieces, from, to < p.kept ? to : p.kept);
    };
    p.team->share(p.sequences * pieces, item);
}

// Copies the valid elements of neighbouring planes of sequence q one after another. block(elements, n) takes each BLOCK
// of them, and the last ones.
template <class T, class Block> void gather(const CallParams& p, const ValidRuns& runs, std::int64_t q, const T* plane,
                                            std::int64_t planes, T* into, Block block) {
    std::int64_t n = 0;
    for (std::int64_t c = 0; c < planes; ++c, plane += p.positions) {
        const auto stretch = [&](std::int64_t start, std::int64_t length) {
            for (const T* from = plane + start; length > 0;) {
                const std::int64_t here = length < BLOCK - n ? length : BLOCK - n;
                fill(into + n, from, here);
                from += here, length -= here, n += here;
                if (n == BLOCK) block(into, n), n = 0;
            }
        };
        sweep_plane(p, runs, q, stretch, [](std::int64_t, std::int64_t) {});
    }
    if (n) block(into, n);
}

// Neighbouring planes of sequence q, `each` of them at a time, as stretches: in place if their valid elements lie
// together, else gathered.
template <class T> class Stretches {
public:
    std::int64_t length;  // of each
    bool whole, together;

    Stretches(const CallParams& p, const ValidRuns& runs, std::int64_t q, std::int64_t each)
        : length(each * runs.count[q]),
          whole(runs.count[q] == p.positions),
          together(whole || (each == 1 && runs.first[q + 1] - runs.first[q] == 1)),
          p(p),
          runs(runs),
          q(q),
          each(each) {}

    // Whether `point` can be used.
    bool fit() const { return together || length <= BLOCK; }

    // at (n): n <= at_once(length) stretches from a plane on. room: BATCH elements.
    void point(const T* plane, int n, T* room, const T** at) const {
        const std::int64_t base = q * p.extent, begin = runs.first[q], end = runs.first[q + 1];
        for (int r = 0; r < n; ++r, plane += each * p.positions) {
            at[r] = together ? plane + (runs.runs[begin].start - base) : room;
            for (std::int64_t c = 0; !together && c < each; ++c)
                for (std::int64_t i = begin; i < end; ++i) {
                    const Run& run = runs.runs[i];
                    fill(room, plane + c * p.positions + (run.start - base), run.length);
                    room += run.length;
                }
        }
    }

private:
    const CallParams& p;
    const ValidRuns& runs;
    const std::int64_t q, each;
};

// found (kept), from `from` to `to`: these groups of sequence q.
template <class T, class A>
void measure_groups(const Measure<T>& call, std::int64_t q, std::int64_t from, std::int64_t to, Moments* found) {
    const CallParams& p = call.p;
    std::fill(found + from, found + to, Moments{});
    const Stretches<T> stretches(p, call.runs, q, p.channels);
    if (stretches.length == 0) return;
    const auto planes = [&](std::int64_t k) { return call.x + (q * p.kept + k) * p.channels * p.positions; };
    T room[BATCH];
    if (p.sample_weight) {
        for (std::int64_t k = from; k < to; ++k)
            for (std::int64_t c = 0; c < p.channels; ++c)
                merge(found[k], measure_weighted(p, call.runs, q, planes(k) + c * p.positions));
        return;
    }
    if (!stretches.fit()) {
        for (std::int64_t k = from; k < to; ++k)
            gather(p, call.runs, q, planes(k), p.channels, room, [&](const T* block, std::int64_t n) {
                Moments here;
                measure_stretches<T, A>(&block, 1, n, p.center, 0, &here);
                merge(found[k], here);
            });
        return;
    }
    const int most = at_once(stretches.length);
    for (std::int64_t k = from; k < to; k += most) {
        const T* at[GROUP];
        const int n = static_cast<int>(to - k < most ? to - k : most);
        stretches.point(planes(k), n, room, at);
        measure_stretches<T, A>(at, n, stretches.length, p.center, 0, found + k);
    }
}

template <class T, class A> void measure_planes(const Measure<T>& call) {
    const CallParams& p = call.p;
    Moments* const found = call.moments;
    std::vector<Moments> parts(p.sequences * p.kept);
    sweep_planes(p, [&](std::int64_t q, std::int64_t from, std::int64_t to) {
        measure_groups<T, A>(call, q, from, to, &parts[q * p.kept]);
    });
    std::fill_n(found, p.statistics(), Moments{});
    for (std::int64_t q = 0; q < p.sequences; ++q) {  // in the order of memory
        Moments* into = found + q / p.reduced * p.kept;
        merge_all(into, &parts[q * p.kept], p.kept);
    }
}

// The statistic of group k of sequence q.
inline std::int64_t statistic_of(const CallParams& p, std::int64_t q, std::int64_t k) {
    return q / p.reduced * p.kept + k;
}

// use(tile, c, w) for the planes from `from` to `to`, w of them from c on, whose coefficients fill(tile, c, w) gives:
// in A where it holds those of a plane, else in double.
template <class A, class Fill, class Use>
void each_tile(std::int64_t from, std::int64_t to, bool narrow, Fill fill, Use use) {
    for (std::int64_t c = from; c < to; c += TILE) {
        const int w = static_cast<int>(to - c < TILE ? to - c : TILE);
        if (narrow) {
            Tile<A> tile;
            fill(tile, c, w);
            if (tile.fits) {
                use(tile, c, w);
                continue;
            }
        }
        for (std::int64_t one = c; one < c + w; ++one)  // what a plane gets does not depend on those beside it
            with_tile<A>(narrow, [&](auto& tile) { fill(tile, one, 1); }, [&](auto& tile) { use(tile, one, 1); });
    }
}

// Writes w planes of sequence q, from c on. write(k, count, start, to, n) writes n elements of `count` planes, from
// `start` on, to `to` and so on: plane c + k is the first of them. Padding is filled.
template <class T, class Write> void write_planes(const CallParams& p, const ValidRuns& runs, const Output<T>& output,
                                                  const T* padding, std::int64_t q, std::int64_t c, int w,
                                                  Write write) {
    const std::int64_t first = (q * p.width() + c) * p.positions, base = q * p.extent;
    const auto begin_of = runs.runs.begin() + runs.first[q], end_of = runs.runs.begin() + runs.first[q + 1];
    output.put_together(first, w, p.positions,
                        [&](T* to, std::int64_t k, std::int64_t count, std::int64_t i, std::int64_t n) {
                            const auto gap = [&](std::int64_t begin, std::int64_t end) {
                                const T* const from = padding ? padding + first + k * p.positions : nullptr;
                                for (std::int64_t at = 0; begin < end && at < count * p.positions; at += p.positions)
                                    fill(to + at + begin - i, from ? from + at + begin : nullptr, end - begin);
                            };
                            std::int64_t at = i;
                            auto run = std::partition_point(
                                begin_of, end_of, [&](const Run& one) { return one.start + one.length - base <= i; });
                            for (; run != end_of && run->start - base < i + n; ++run) {
                                const std::int64_t start = std::max(run->start - base, i),
                                                   end = std::min(run->start - base + run->length, i + n);
                                gap(at, start);
                                write(k, static_cast<int>(count), start, to + start - i, end - start);
                                at = end;
                            }
                            gap(at, i + n);
                        });
}

template <class T, class A> void forward_planes(const Forward<T>& call) {
    const CallParams& p = call.p;
    const Parameter weight(call.affine.weight, p.width()), bias(call.affine.bias, p.width());
    Moments* const found = call.moments;
    const bool together = p.reduced == 1;  // each group is a statistic of its own: measure it and write it at once
    if (!call.given && !together) measure_planes<T, A>(call.measure());
    std::vector<double> rstd(p.statistics());
    if (!together) rstd_of(p, found, p.statistics(), rstd.data());
    sweep_planes(p, [&](std::int64_t turn, std::int64_t from, std::int64_t to) {
        const std::int64_t q = p.sequences - 1 - turn,
                           first = statistic_of(p, q, 0);  // from the last: see sweep_columns
        if (!call.given && together) measure_groups<T, A>(call.measure(), q, from, to, found + first);
        if (together) rstd_of(p, found + first + from, to - from, &rstd[first + from]);
        const auto fill = [&](auto& tile, std::int64_t c, int w) {
            each_group(p, c, w, [&](int begin, int end, std::int64_t k) {
                const double factor = rstd[first + k];
                tile.center(begin, end, center_of(found[first + k], factor));
                tile.multiply(tile.scale, begin, end, factor, weight, c);
            });
            tile.multiply(tile.bias, 0, w, 1, bias, c);
        };
        each_tile<A>(from * p.channels, to * p.channels, true, fill, [&](auto& tile, std::int64_t c, int w) {
            using B = std::remove_reference_t<decltype(tile.hi[0])>;
            write_planes(p, call.runs, call.y, p.keep_padding ? call.x : nullptr, q, c, w,
                         [&](std::int64_t k, int count, std::int64_t start, T* y, std::int64_t n) {
                             const T* const x = call.x + (q * p.width() + c + k) * p.positions + start;
                             loops<T, B>().forward(x, y, count, p.positions, n, tile.hi + k, tile.lo + k,
                                                   tile.scale + k, tile.bias + k);
                             if (p.activation == Activation::none) return;
                             const auto& after = loops<T, typename Accumulator<T>::type>();
                             if (n == p.positions) return after.activate(p.activation, y, count * n);
                             for (int r = 0; r < count; ++r) after.activate(p.activation, y + r * p.positions, n);
                         });
        });
        call.y.finish();
    });
}

// z (n): dy times the derivative of the activation, for elements of plane k of a tile. scale: of the normalization,
// rstd * weight.
template <class T, class B> void derive_plane(Activation kind, const T* x, const T* dy, T* z, std::int64_t n,
                                              const Tile<B>& tile, const B* scale, std::int64_t k) {
    loops<T, B>().forward(x, z, 1, n, n, tile.hi + k, tile.lo + k, scale + k, tile.bias + k);
    loops<T, typename Accumulator<T>::type>().derive(kind, dy, z, n);
}

// plain and product (width), from plane `from` to `to` of sequence q: the sums of dy and of dy * xhat over each plane.
// rstd: of each statistic.
template <class T, class A> void sums_planes(const Backward<T>& call, std::int64_t q, std::int64_t from,
                                             std::int64_t to, const double* rstd, const Parameter& weight,
                                             const Parameter& bias, double* plain, double* product) {
    const CallParams& p = call.p;
    std::fill(plain + from, plain + to, 0.0);
    std::fill(product + from, product + to, 0.0);
    const Stretches<T> stretches(p, call.runs, q, 1);
    if (stretches.length == 0) return;
    T room[BATCH], room_dy[BATCH];
    const std::int64_t first = statistic_of(p, q, 0);
    const int most = stretches.fit() ? at_once(stretches.length) : 1;
    const auto fill = [&](auto& tile, std::int64_t c, int w) {
        each_group(p, c, w, [&](int begin, int end, std::int64_t k) {
            tile.center(begin, end, center_of(call.moments[first + k], rstd[first + k]));
            tile.spread(tile.scale, begin, end, rstd[first + k]);
            if (call.activated()) tile.multiply(tile.weighted, begin, end, rstd[first + k], weight, c);
        });
        if (call.activated()) tile.multiply(tile.bias, 0, w, 1, bias, c);
    };
    each_tile<A>(from, to, true, fill, [&](auto& tile, std::int64_t of_tile, int w) {
        using B = std::remove_reference_t<decltype(tile.hi[0])>;
        for (int k = 0; k < w; k += most) {
            const int n = w - k < most ? w - k : most;
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
                        Tile<double> wide;
                        fill(wide, c + r, 1);
                        loops<T, double>().sums(xs + r, dys + r, 1, length, wide.hi, wide.lo, wide.scale, here + r,
                                                here_product + r);
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

// dx of the groups `from` to `to` of sequence q.
template <class T, class A> void backward_groups(const Backward<T>& call, std::int64_t q, std::int64_t from,
                                                 std::int64_t to, const double* rstd, const Parameter& weight,
                                                 const Parameter& bias) {
    const CallParams& p = call.p;
    const Sums* const used = call.used();
    const std::int64_t first = statistic_of(p, q, 0);
    const auto fill = [&](auto& tile, std::int64_t c, int w) {
        each_group(p, c, w, [&](int begin, int end, std::int64_t k) {
            const Moments& moments = call.moments[first + k];
            const Sums* const sums = used ? used + first + k : nullptr;
            const double scale = scale_of(p, moments, sums, rstd[first + k]);
            const Shared shared = shared_of(p, moments, sums, scale);
            tile.center(begin, end, sums || call.activated() ? center_of(moments, scale) : 0);
            tile.multiply(tile.scale, begin, end, scale, weight, c);
            tile.spread(tile.through_mean, begin, end, shared.through_mean);
            tile.spread(tile.through_var, begin, end, shared.through_var);
        });
        if (call.activated()) tile.multiply(tile.bias, 0, w, 1, bias, c);
        else if (!used) tile.spread(tile.bias, 0, w, 0);
    };
    const bool narrow = !p.sample_weight;
    each_tile<A>(from * p.channels, to * p.channels, narrow, fill, [&](auto& tile, std::int64_t c, int w) {
        using B = std::remove_reference_t<decltype(tile.hi[0])>;
        write_planes(p, call.runs, call.dx, p.keep_padding ? call.dy : nullptr, q, c, w,
                     [&](std::int64_t k, int count, std::int64_t start, T* dx, std::int64_t n) {
                         const std::int64_t at = (q * p.width() + c + k) * p.positions + start;
                         if (!used && !call.activated())  // the moments are constants: x is not read
                             return loops<T, B>().forward(call.dy + at, dx, count, p.positions, n, tile.hi + k,
                                                          tile.lo + k, tile.scale + k, tile.bias + k);
                         const PlaneCoefficients<B> of{tile.hi + k, tile.lo + k, tile.scale + k, tile.through_mean + k,
                                                       tile.through_var + k};
                         const double* const s = p.sample_weight ? p.sample_weight + q * p.extent + start : nullptr;
                         if (!call.activated())
                             return loops<T, B>().backward(call.x + at, call.dy + at, dx, count, p.positions, n, of, s);
                         T z[PIECE];
                         for (int r = 0; r < count; ++r)
                             for (std::int64_t i = 0; i < n; i += PIECE) {
                                 const std::int64_t here = n - i < PIECE ? n - i : PIECE, from = r * p.positions + i;
                                 const T* const x = call.x + at + from;
                                 derive_plane(p.activation, x, call.dy + at + from, z, here, tile, tile.scale, k + r);
                                 loops<T, B>().backward(x, z, dx + from, 1, here, here, of.plane(r), s ? s + i : s);
                             }
                     });
    });
    call.dx.finish();
}

template <class T, class A> void backward_planes(const Backward<T>& call) {
    const CallParams& p = call.p;
    const std::int64_t width = p.width();
    const Parameter weight(call.affine.weight, width), bias(call.affine.bias, width);
    const bool together = p.reduced == 1;  // each group is a statistic of its own: sum it and write it at once
    std::vector<double> rstd(p.statistics());
    if (!together) rstd_of(p, call.moments, p.statistics(), rstd.data());
    const auto prepare = [&](std::int64_t q, std::int64_t from, std::int64_t to) {
        const std::int64_t first = statistic_of(p, q, from);
        if (together) rstd_of(p, call.moments + first, to - from, &rstd[first]);
    };
    if (!call.given) {
        // Of each sequence: the sums of dy, and of dy * xhat. Not 0 before.
        const std::unique_ptr<double[]> parts(new double[p.sequences * width * 2]);
        // Adds the parts of groups of a sequence to the sums of their statistics.
        const auto add = [&](std::int64_t q, std::int64_t from, std::int64_t to, const double* part) {
            Sums* const into = call.sums + statistic_of(p, q, 0);
            for (std::int64_t k = from; k < to; ++k)
                for (std::int64_t c = k * p.channels; c < (k + 1) * p.channels; ++c) {
                    into[k].dxhat += weight.values[c] * part[c];
                    into[k].dxhat_xhat += weight.values[c] * part[width + c];
                }
        };
        sweep_planes(p, [&](std::int64_t q, std::int64_t from, std::int64_t to) {
            double* const part = &parts[q * width * 2];
            prepare(q, from, to);
            sums_planes<T, A>(call, q, from * p.channels, to * p.channels, rstd.data(), weight, bias, part,
                              part + width);
            if (!together) return;
            add(q, from, to, part);
            if (call.dx) backward_groups<T, A>(call, q, from, to, rstd.data(), weight, bias);
        });
        for (std::int64_t q = 0; q < p.sequences; ++q) {
            const double* const part = &parts[q * width * 2];
            if (!together) add(q, 0, p.kept, part);
            for (std::int64_t c = 0; c < width; ++c) call.dbias[c] += part[c];
            for (std::int64_t c = 0; c < width; ++c) call.dweight[c] += part[width + c];
        }
        if (together || !call.dx) return;
    }
    sweep_planes(p, [&](std::int64_t turn, std::int64_t from, std::int64_t to) {
        const std::int64_t q = p.sequences - 1 - turn;
        if (call.given) prepare(q, from, to);
        backward_groups<T, A>(call, q, from, to, rstd.data(), weight, bias);
    });
}

}  // namespace truenorm
