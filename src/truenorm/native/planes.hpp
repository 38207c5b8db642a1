// Planes, x[sequence][W][positions]: a statistic covers the planes of a group of channels, over one or more sequences.
//
// A statistic that lies in one sequence is measured and used while it is in the cache. The valid elements of a group
// are measured in their order, plane after plane, so short planes fill blocks together.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

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
                std::copy_n(from, here, into + n);
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
        const std::int64_t start = together ? runs.runs[runs.first[q]].start - q * p.extent : 0;
        for (int r = 0; r < n; ++r, plane += each * p.positions) {
            at[r] = together ? plane + start : room + r * length;
            if (!together) gather(p, runs, q, plane, each, room + r * length, [](T*, std::int64_t) {});
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
        for (std::int64_t k = 0; k < p.kept; ++k) merge(into[k], parts[q * p.kept + k]);
    }
}

// The statistic of group k of sequence q.
inline std::int64_t statistic_of(const CallParams& p, std::int64_t q, std::int64_t k) {
    return q / p.reduced * p.kept + k;
}

// Writes the planes `from` to `to` of sequence q. write(c, start, to, n) writes n elements of plane c, from `start` on;
// padding is filled.
template <class T, class Write> void write_planes(const CallParams& p, const ValidRuns& runs, const Output<T>& output,
                                                  const T* padding, std::int64_t q, std::int64_t from, std::int64_t to,
                                                  Write write) {
    const std::int64_t first = (q * p.width() + from) * p.positions;
    if (runs.count[q] == p.positions)
        return output.put_rows(
            first, to - from, p.positions,
            [&](T* into, std::int64_t row, std::int64_t i, std::int64_t n) { write(from + row, i, into, n); });
    for (std::int64_t c = from, at = first; c < to; ++c, at += p.positions) {
        const auto stretch = [&](std::int64_t start, std::int64_t length) {
            output.put(at + start, length,
                       [&](T* into, std::int64_t i, std::int64_t n) { write(c, start + i, into, n); });
        };
        sweep_plane(p, runs, q, stretch,
                    [&](std::int64_t begin, std::int64_t end) { output.fill(padding, at + begin, end - begin); });
    }
}

// y of group k of sequence q, whose statistic is i.
template <class T, class A>
void forward_group(const Forward<T>& call, std::int64_t q, std::int64_t k, std::int64_t i, double rstd) {
    const CallParams& p = call.p;
    const Affine& affine = call.affine;
    const double middle = center_of(call.moments[i], rstd);
    const auto write = [&](std::int64_t c, std::int64_t start, T* to, std::int64_t n) {
        const double scale = rstd * affine.weight[c], bias = affine.bias[c];
        const LoopStatistic<A> one(middle, scale);
        const T* x = call.x + (q * p.width() + c) * p.positions + start;
        if (one.fits && holds<A>(bias)) loops<T, A>().forward(x, to, n, one.hi, one.lo, one.rstd, static_cast<A>(bias));
        else loops<T, double>().forward(x, to, n, middle, 0.0, scale, bias);
    };
    write_planes(p, call.runs, call.y, p.keep_padding ? call.x : nullptr, q, k * p.channels, (k + 1) * p.channels,
                 write);
}

template <class T, class A> void forward_planes(const Forward<T>& call) {
    const CallParams& p = call.p;
    Moments* const found = call.moments;
    const bool together = p.reduced == 1;  // each group is a statistic of its own: measure it and write it at once
    if (!call.given && !together) measure_planes<T, A>(call.measure());
    std::vector<double> rstd(together ? 0 : p.statistics());
    for (std::size_t i = 0; i < rstd.size(); ++i) rstd[i] = rstd_of(p, found[i]);
    sweep_planes(p, [&](std::int64_t turn, std::int64_t from, std::int64_t to) {
        const std::int64_t q = p.sequences - 1 - turn,
                           first = statistic_of(p, q, 0);  // from the last: see sweep_columns
        if (!call.given && together) measure_groups<T, A>(call.measure(), q, from, to, found + first);
        for (std::int64_t k = from; k < to; ++k)
            forward_group<T, A>(call, q, k, first + k, together ? rstd_of(p, found[first + k]) : rstd[first + k]);
        call.y.finish();
    });
}

// plain and product (width), from plane `from` to `to` of sequence q: the sums of dy and of dy * xhat over each plane.
// rstd(i): of statistic i.
template <class T, class A, class Rstd> void sums_planes(const Backward<T>& call, std::int64_t q, std::int64_t from,
                                                         std::int64_t to, Rstd rstd, double* plain, double* product) {
    const CallParams& p = call.p;
    std::fill(plain + from, plain + to, 0.0);
    std::fill(product + from, product + to, 0.0);
    const Stretches<T> stretches(p, call.runs, q, 1);
    if (stretches.length == 0) return;
    T room[BATCH], room_dy[BATCH];
    const std::int64_t first = statistic_of(p, q, 0);
    const int most = stretches.fit() ? at_once(stretches.length) : 1;
    for (std::int64_t c = from; c < to; c += most) {
        const int n = static_cast<int>(to - c < most ? to - c : most);
        double mean[GROUP], factor[GROUP];
        A hi[GROUP], lo[GROUP], narrow[GROUP];
        bool fits[GROUP];
        std::int64_t k = c / p.channels, end = c;  // the group of a plane, and where it ends
        for (int r = 0; r < n; ++r) {
            if (c + r < end) {
                factor[r] = factor[r - 1], mean[r] = mean[r - 1];
                hi[r] = hi[r - 1], lo[r] = lo[r - 1], narrow[r] = narrow[r - 1], fits[r] = fits[r - 1];
                continue;
            }
            factor[r] = rstd(first + k);
            mean[r] = center_of(call.moments[first + k], factor[r]);
            const LoopStatistic<A> one(mean[r], factor[r]);
            hi[r] = one.hi, lo[r] = one.lo, narrow[r] = one.rstd, fits[r] = one.fits;
            end = ++k * p.channels;
        }
        const auto add = [&](const T* const* xs, const T* const* dys, std::int64_t length) {
            double here[GROUP], here_product[GROUP];
            loops<T, A>().sums(xs, dys, n, length, hi, lo, narrow, here, here_product);
            for (int r = 0; r < n; ++r) {
                const double zero = 0;
                if (!fits[r] || !std::isfinite(here[r]) || !std::isfinite(here_product[r]))  // beyond float
                    loops<T, double>().sums(xs + r, dys + r, 1, length, mean + r, &zero, factor + r, here + r,
                                            here_product + r);
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
}

// dx of group k of sequence q, whose statistic is i.
template <class T, class A> void backward_group(const Backward<T>& call, std::int64_t q, std::int64_t k, std::int64_t i,
                                                double rstd, const Shared& shared) {
    const CallParams& p = call.p;
    const double middle = center_of(call.moments[i], rstd);
    const bool narrow = holds<A>(shared.through_mean) && holds<A>(shared.through_var) && !p.sample_weight;
    const auto write = [&](std::int64_t c, std::int64_t start, T* to, std::int64_t n) {
        const double scale = rstd * call.weight[c];
        const LoopStatistic<A> one(middle, scale);
        const bool fits = one.fits && narrow;
        const std::int64_t at = (q * p.width() + c) * p.positions + start;
        const T *x = call.x + at, *dy = call.dy + at;
        if (!call.used()) {  // the moments are constants: x is not read
            if (fits) loops<T, A>().forward(dy, to, n, 0, 0, one.rstd, 0);
            else loops<T, double>().forward(dy, to, n, 0.0, 0.0, scale, 0.0);
        } else if (fits) {
            loops<T, A>().backward(x, dy, to, n, one.hi, one.lo, one.rstd, static_cast<A>(shared.through_mean),
                                   static_cast<A>(shared.through_var), nullptr);
        } else {
            const double* s = p.sample_weight ? p.sample_weight + q * p.extent + start : nullptr;
            loops<T, double>().backward(x, dy, to, n, middle, 0.0, scale, shared.through_mean, shared.through_var, s);
        }
    };
    write_planes(p, call.runs, call.dx, p.keep_padding ? call.dy : nullptr, q, k * p.channels, (k + 1) * p.channels,
                 write);
}

template <class T, class A> void backward_planes(const Backward<T>& call) {
    const CallParams& p = call.p;
    const double* const weight = call.weight;
    const std::int64_t width = p.width();
    const bool together = p.reduced == 1;  // each group is a statistic of its own: sum it and write it at once
    std::vector<double> all_rstd(together ? 0 : p.statistics());
    for (std::size_t i = 0; i < all_rstd.size(); ++i) all_rstd[i] = rstd_of(p, call.moments[i]);
    const auto rstd = [&](std::int64_t i) { return together ? rstd_of(p, call.moments[i]) : all_rstd[i]; };
    const auto write = [&](std::int64_t q, std::int64_t from, std::int64_t to) {
        for (std::int64_t k = from, i = statistic_of(p, q, from); k < to; ++k, ++i) {
            const Sums* const sums = call.used() ? call.used() + i : nullptr;
            const double scale = scale_of(p, call.moments[i], sums, rstd(i));
            backward_group<T, A>(call, q, k, i, scale, shared_of(p, call.moments[i], sums, scale));
        }
        call.dx.finish();
    };
    if (!call.given) {
        std::vector<double> parts(p.sequences * width * 2);  // of each sequence: the sums of dy, and of dy * xhat
        // Adds the parts of groups of a sequence to the sums of their statistics.
        const auto add = [&](std::int64_t q, std::int64_t from, std::int64_t to, const double* part) {
            Sums* const into = call.sums + statistic_of(p, q, 0);
            for (std::int64_t k = from; k < to; ++k)
                for (std::int64_t c = k * p.channels; c < (k + 1) * p.channels; ++c) {
                    into[k].dxhat += weight[c] * part[c];
                    into[k].dxhat_xhat += weight[c] * part[width + c];
                }
        };
        sweep_planes(p, [&](std::int64_t q, std::int64_t from, std::int64_t to) {
            double* const part = &parts[q * width * 2];
            sums_planes<T, A>(call, q, from * p.channels, to * p.channels, rstd, part, part + width);
            if (!together) return;
            add(q, from, to, part);
            if (call.dx) write(q, from, to);
        });
        for (std::int64_t q = 0; q < p.sequences; ++q) {
            const double* const part = &parts[q * width * 2];
            if (!together) add(q, 0, p.kept, part);
            for (std::int64_t c = 0; c < width; ++c) call.dbias[c] += part[c];
            for (std::int64_t c = 0; c < width; ++c) call.dweight[c] += part[width + c];
        }
        if (together || !call.dx) return;
    }
    sweep_planes(
        p, [&](std::int64_t turn, std::int64_t from, std::int64_t to) { write(p.sequences - 1 - turn, from, to); });
}

}  // namespace truenorm
