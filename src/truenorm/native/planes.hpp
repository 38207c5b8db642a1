// Planes, x[sequence][W][positions]: a statistic covers the planes of a group of channels, over one or more sequences.
//
// A statistic that lies in one sequence is measured and used while it is in the cache.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "verb_arguments.hpp"

namespace truenorm {

// One plane whose valid elements do not lie together, or have sample weights: they are gathered into full blocks.
template <class T, class A>
Moments measure_scattered(const CallParams& p, const ValidRuns& runs, std::int64_t q, const T* plane) {
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
            if (!trusted<double>(here.m2))
                measure_overflowed([&](std::int64_t i) { return load<double>(gathered[i]); }, weights, n, p.center,
                                   &here.mean, &here.m2);
        } else {
            measure_stretches<T, A>(&only, 1, n, p.center, 0, &here);
        }
        merge(found, here);
        n = 0;
    };
    runs.walk(q, 0, runs.count[q], [&](std::int64_t start, std::int64_t length, std::int64_t) {
        for (std::int64_t i = start; i < start + length; ++i) {
            const double s = p.sample_weight ? p.sample_weight[i] : 1.0;
            if (s == 0) continue;  // an element of weight 0 is not read
            gathered[n] = plane[i - q * p.extent];
            weights[n] = s;
            if (++n == BLOCK) flush();
        }
    });
    flush();
    return found;
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

// The statistic (sequence q, kept k) over its channels.
template <class T, class A> Moments measure_group(const Measure<T>& call, std::int64_t q, std::int64_t k) {
    const CallParams& p = call.p;
    const ValidRuns& runs = call.runs;
    Moments found;
    const T* planes = call.x + (q * p.kept + k) * p.channels * p.positions;
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

// found (kept), from `from` to `to`: these groups of sequence q. Groups of one plane each are measured together, like
// rows.
template <class T, class A>
void measure_groups(const Measure<T>& call, std::int64_t q, std::int64_t from, std::int64_t to, Moments* found) {
    const CallParams& p = call.p;
    const ValidRuns& runs = call.runs;
    const bool plain = p.channels == 1 && !p.sample_weight && runs.first[q + 1] - runs.first[q] == 1;
    if (!plain) {
        for (std::int64_t k = from; k < to; ++k) found[k] = measure_group<T, A>(call, q, k);
        return;
    }
    const T* first = call.x + q * p.kept * p.positions + runs.runs[runs.first[q]].start - q * p.extent;
    for (std::int64_t k = from; k < to; k += GROUP) {
        const T* at[GROUP];
        const int n = static_cast<int>(to - k < GROUP ? to - k : GROUP);
        for (int r = 0; r < n; ++r) at[r] = first + (k + r) * p.positions;
        measure_stretches<T, A>(at, n, runs.count[q], p.center, 0, found + k);
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

// The statistic of group k of sequence q. The functions of a group take it as i.
inline std::int64_t statistic_of(const CallParams& p, std::int64_t q, std::int64_t k) {
    return q / p.reduced * p.kept + k;
}

template <class T, class A>
void forward_group(const Forward<T>& call, std::int64_t q, std::int64_t k, std::int64_t i, double rstd) {
    const CallParams& p = call.p;
    const T* const x = call.x;
    const Affine& affine = call.affine;
    const Moments& found = call.moments[i];
    for (std::int64_t c = k * p.channels; c < (k + 1) * p.channels; ++c) {
        const std::int64_t plane = (q * p.width() + c) * p.positions;
        const double scale = rstd * affine.weight[c], bias = affine.bias[c];
        const double middle = center_of(found, rstd);
        const LoopStatistic<A> one(middle, scale);
        const bool fits = one.fits && holds<A>(bias);
        const auto stretch = [&](std::int64_t start, std::int64_t length) {
            const T* from = x + plane + start;
            call.y.put(plane + start, length, [&](T* to, std::int64_t i, std::int64_t n) {
                if (fits) loops<T, A>().forward(from + i, to, n, one.hi, one.lo, one.rstd, static_cast<A>(bias));
                else loops<T, double>().forward(from + i, to, n, middle, 0.0, scale, bias);
            });
        };
        sweep_plane(p, call.runs, q, stretch, [&](std::int64_t begin, std::int64_t end) {
            call.y.fill(p.keep_padding ? x : nullptr, plane + begin, end - begin);
        });
    }
}

template <class T, class A> void forward_planes(const Forward<T>& call) {
    const CallParams& p = call.p;
    Moments* const found = call.moments;
    const bool given = call.given;
    const bool together = p.reduced == 1;  // each group is a statistic of its own: measure it and write it at once
    if (!given && !together) measure_planes<T, A>(call.measure());
    std::vector<double> rstd(p.statistics());
    const auto settle = [&](std::int64_t i) { rstd[i] = rstd_of(p, found[i]); };
    for (std::int64_t i = 0; (given || !together) && i < p.statistics(); ++i) settle(i);
    sweep_planes(p, [&](std::int64_t turn, std::int64_t from, std::int64_t to) {
        const std::int64_t q = p.sequences - 1 - turn,
                           first = statistic_of(p, q, 0);  // from the last: see sweep_columns
        if (!given && together) {
            measure_groups<T, A>(call.measure(), q, from, to, found + first);
            for (std::int64_t k = from; k < to; ++k) settle(first + k);
        }
        for (std::int64_t k = from; k < to; ++k) forward_group<T, A>(call, q, k, first + k, rstd[first + k]);
        call.y.finish();
    });
}

// parts (channels, 2): the sums of dy and of dy * xhat over each plane of the group. Valid elements that do not lie
// together are gathered into full blocks, so that the gaps between them change no bit.
template <class T, class A>
void sums_group(const Backward<T>& call, std::int64_t q, std::int64_t k, std::int64_t i, double rstd, double* parts) {
    const CallParams& p = call.p;
    const Moments& found = call.moments[i];
    const double middle = center_of(found, rstd);
    const LoopStatistic<A> one(middle, rstd);
    const bool scattered = call.runs.first[q + 1] - call.runs.first[q] > 1;
    for (std::int64_t c = 0; c < p.channels; ++c) {
        const std::int64_t at = (q * p.width() + k * p.channels + c) * p.positions;
        double plain = 0, product = 0;
        const auto add = [&](const T* xs, const T* dys, std::int64_t n) {
            double here = 0, here_product = 0;
            if (one.fits) loops<T, A>().sums(xs, dys, n, one.hi, one.lo, one.rstd, &here, &here_product);
            if (!one.fits || !std::isfinite(here) || !std::isfinite(here_product))  // beyond float
                loops<T, double>().sums(xs, dys, n, middle, 0.0, rstd, &here, &here_product);
            plain += here;
            product += here_product;
        };
        T gathered_x[BLOCK], gathered_dy[BLOCK];
        std::int64_t gathered = 0;
        const auto stretch = [&](std::int64_t start, std::int64_t length) {
            const T *xs = call.x + at + start, *dys = call.dy + at + start;
            for (std::int64_t j = 0; !scattered && j < length; j += BLOCK)
                add(xs + j, dys + j, length - j < BLOCK ? length - j : BLOCK);
            for (std::int64_t j = 0; scattered && j < length; ++j) {
                gathered_x[gathered] = xs[j];
                gathered_dy[gathered] = dys[j];
                if (++gathered < BLOCK) continue;
                add(gathered_x, gathered_dy, gathered);
                gathered = 0;
            }
        };
        sweep_plane(p, call.runs, q, stretch, [](std::int64_t, std::int64_t) {});
        if (gathered) add(gathered_x, gathered_dy, gathered);
        parts[2 * c] = plain;
        parts[2 * c + 1] = product;
    }
}

template <class T, class A> void backward_group(const Backward<T>& call, std::int64_t q, std::int64_t k, std::int64_t i,
                                                double rstd, const Shared& shared) {
    const CallParams& p = call.p;
    const double* const weight = call.weight;
    const Moments& found = call.moments[i];
    for (std::int64_t c = k * p.channels; c < (k + 1) * p.channels; ++c) {
        const std::int64_t plane = (q * p.width() + c) * p.positions;
        const double scale = rstd * weight[c];
        const double middle = center_of(found, rstd);
        const LoopStatistic<A> one(middle, scale);
        const bool fits = one.fits && holds<A>(shared.through_mean) && holds<A>(shared.through_var) && !p.sample_weight;
        const auto stretch = [&](std::int64_t start, std::int64_t length) {
            const T *xs = call.x + plane + start, *dys = call.dy + plane + start;
            const double* s = p.sample_weight ? p.sample_weight + q * p.extent + start : nullptr;
            call.dx.put(plane + start, length, [&](T* to, std::int64_t i, std::int64_t n) {
                if (!call.used()) {  // the moments are constants: x is not read
                    if (fits) loops<T, A>().forward(dys + i, to, n, 0, 0, one.rstd, 0);
                    else loops<T, double>().forward(dys + i, to, n, 0.0, 0.0, scale, 0.0);
                } else if (fits) {
                    loops<T, A>().backward(xs + i, dys + i, to, n, one.hi, one.lo, one.rstd,
                                           static_cast<A>(shared.through_mean), static_cast<A>(shared.through_var),
                                           nullptr);
                } else {
                    loops<T, double>().backward(xs + i, dys + i, to, n, middle, 0.0, scale, shared.through_mean,
                                                shared.through_var, s ? s + i : nullptr);
                }
            });
        };
        sweep_plane(p, call.runs, q, stretch, [&](std::int64_t begin, std::int64_t end) {
            call.dx.fill(p.keep_padding ? call.dy : nullptr, plane + begin, end - begin);
        });
    }
}

template <class T, class A> void backward_planes(const Backward<T>& call) {
    const CallParams& p = call.p;
    const double* const weight = call.weight;
    const Moments* const found = call.moments;
    const bool together = p.reduced == 1;
    std::vector<double> rstd(p.statistics()), scale(p.statistics());
    std::vector<Shared> shared(p.statistics());
    for (std::int64_t i = 0; i < p.statistics(); ++i) rstd[i] = rstd_of(p, found[i]);
    const auto settle = [&](std::int64_t i) {
        const Sums* all = call.used() ? call.used() + i : nullptr;
        scale[i] = scale_of(p, found[i], all, rstd[i]);
        shared[i] = shared_of(p, found[i], all, scale[i]);
    };
    const auto write = [&](std::int64_t q, std::int64_t from, std::int64_t to) {
        for (std::int64_t k = from, i = statistic_of(p, q, from); k < to; ++k, ++i)
            backward_group<T, A>(call, q, k, i, scale[i], shared[i]);
        call.dx.finish();
    };
    if (!call.given) {
        std::vector<double> parts(p.sequences * p.width() * 2);
        // Adds the parts of group k of a sequence to the sums of statistic i.
        const auto add = [&](std::int64_t k, std::int64_t i, const double* part) {
            for (std::int64_t c = k * p.channels; c < (k + 1) * p.channels; ++c, part += 2) {
                call.sums[i].dxhat += weight[c] * part[0];
                call.sums[i].dxhat_xhat += weight[c] * part[1];
            }
        };
        sweep_planes(p, [&](std::int64_t q, std::int64_t from, std::int64_t to) {
            double* part = &parts[(q * p.kept + from) * p.channels * 2];
            for (std::int64_t k = from, i = statistic_of(p, q, from); k < to; ++k, ++i, part += p.channels * 2) {
                sums_group<T, A>(call, q, k, i, rstd[i], part);
                if (!together) continue;
                add(k, i, part);
                settle(i);
            }
            if (together && call.dx) write(q, from, to);
        });
        for (std::int64_t q = 0; q < p.sequences; ++q) {
            const double* part = &parts[q * p.width() * 2];
            for (std::int64_t k = 0, i = statistic_of(p, q, 0); !together && k < p.kept; ++k, ++i)
                add(k, i, part + k * p.channels * 2);
            for (std::int64_t c = 0; c < p.width(); ++c) {
                call.dbias[c] += part[2 * c];
                call.dweight[c] += part[2 * c + 1];
            }
        }
        if (together || !call.dx) return;
    }
    for (std::int64_t i = 0; i < p.statistics(); ++i) settle(i);
    sweep_planes(
        p, [&](std::int64_t turn, std::int64_t from, std::int64_t to) { write(p.sequences - 1 - turn, from, to); });
}

}  // namespace truenorm
