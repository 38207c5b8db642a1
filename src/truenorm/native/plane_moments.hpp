// The valid elements of planes, and their moments.
//
// Those of a group are measured in their order, plane after plane, so short planes fill blocks together.
#pragma once

#include <algorithm>
#include <cstdint>
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

}  // namespace truenorm
