// Statistics, the counterpart of moments.py, and what forward and backward compute from them.
//
//   y  = (x - mean) * rstd * weight + bias
//   dx = rstd * (dxhat - s * sum(dxhat) / N - s * xhat * sum(dxhat * xhat) / (N - ddof))
//
// Each block of valid elements is measured in two passes while it is in the cache, and blocks are merged in order. A
// block whose float sums overflow or underflow is measured again in double.
#pragma once

#include <cmath>
#include <cstdint>

#include "formulas.hpp"
#include "loops.hpp"
#include "params.hpp"

namespace truenorm {

struct Moments {
    double count = 0, mean = 0, m2 = 0;
};

// The mean of two parts. share: of the second in their count. Finite means may be further apart than double holds.
inline double merged_mean(double one, double two, double share) {
    const double delta = two - one;
    return std::isinf(delta) ? one * (1 - share) + two * share : one + delta * share;
}

// The moments of both parts, for n statistics of the same counts; exactly those of one part if the other is empty.
inline void merge_all(Moments* into, const Moments* others, std::int64_t n) {
    const double count = into->count, other_count = others->count, total = count + other_count;
    if (other_count == 0) return;
    const double share = other_count / total, both = count * share;  // one division for all of them
    for (std::int64_t k = 0; k < n; ++k) {
        Moments& one = into[k];
        const Moments& other = others[k];
        if (count == 0) {
            one = other;
            continue;
        }
        const double delta = other.mean - one.mean;
        one.mean = merged_mean(one.mean, other.mean, share);
        one.m2 += other.m2 + delta * delta * both;
        one.count = total;
    }
}
inline void merge(Moments& into, const Moments& other) { merge_all(&into, &other, 1); }

// The moments of n parts that have `count` elements each. In two passes over their means, as merging them one after
// the other takes a division for each.
inline Moments merge_equal(double count, const double* mean, const double* m2, std::int64_t n) {
    if (n == 1) return {count, mean[0], m2[0]};
    constexpr int LANES = 8;
    const auto total = [&](auto of) {
        double lanes[LANES] = {};
        std::int64_t i = 0;
        for (; i + LANES <= n; i += LANES)
            for (int lane = 0; lane < LANES; ++lane) lanes[lane] += of(i + lane);
        for (int lane = 0; i < n; ++i, ++lane) lanes[lane] += of(i);
        return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
    };
    const double parts = static_cast<double>(n), first = mean[0];
    const double about = first + total([&](std::int64_t i) { return mean[i] - first; }) / parts;
    const double within = total([&](std::int64_t i) { return m2[i]; });
    const double between = total([&](std::int64_t i) { return (mean[i] - about) * (mean[i] - about); });
    Moments found{count * parts, about, within + count * between};
    if (std::isfinite(found.m2)) return found;
    found = Moments{};  // `merge` knows more about overflow
    for (std::int64_t i = 0; i < n; ++i) merge(found, {count, mean[i], m2[i]});
    return found;
}

// Float holds squares between about 1e-38 and 1e38. Sums near these limits are taken again in double. Not even that
// holds all of them: see `measure_overflowed`.
template <class A> inline bool trusted(double m2) {
    return sizeof(A) == sizeof(double) ? std::isfinite(m2) : m2 >= 1e-30 && m2 <= 1e36;
}

// The moments of n elements at(i), of weight s[i] or 1, whose squared deviations left double. If all are finite, m2 is
// inf and the mean is still theirs: that of the elements times 2^-100, whose sums stay in range. If not, both are NaN.
template <class At>
void measure_overflowed(At at, const double* s, std::int64_t n, bool center, double* mean, double* m2) {
    if (!center) return;  // inf, or NaN, is right
    constexpr double SMALL = 0x1p-100, MOST = 1.7976931348623157e308 * SMALL;
    double scaled = at(0) * SMALL;
    for (int pass = 0; pass < 2; ++pass) {  // the second corrects the first: at(0) may be far from the mean
        double sum = 0, total = 0;
        for (std::int64_t i = 0; i < n; ++i) {
            const double times = s ? s[i] : 1;
            sum += times * (at(i) * SMALL - scaled);
            total += times;
        }
        scaled += sum / total;
    }
    *mean = std::isfinite(scaled) ? (scaled > MOST ? MOST : scaled < -MOST ? -MOST : scaled) / SMALL : NAN;
    *m2 = std::isfinite(scaled) ? INFINITY : NAN;
}

// How many stretches of n elements one loop handles: so many that they stay in the first-level cache from one pass to
// the next.
constexpr std::int64_t BATCH = 2 * BLOCK;
inline int at_once(std::int64_t n) {
    return n >= BLOCK ? 2 : static_cast<int>(n * GROUP < BATCH ? GROUP : BATCH / n / 2 * 2);  // in pairs
}

// The moments of `count` <= GROUP stretches of n elements each, in blocks. ahead: as in loops.hpp.
template <class T, class A>
void measure_stretches(const T* const* x, int count, std::int64_t n, bool center, std::int64_t ahead, Moments* found) {
    const T* at[GROUP];
    double mean[GROUP], m2[GROUP];
    for (int r = 0; r < count; ++r) found[r] = Moments{};
    for (std::int64_t i = 0; i < n; i += BLOCK) {
        const std::int64_t length = n - i < BLOCK ? n - i : BLOCK;
        for (int r = 0; r < count; ++r) at[r] = x[r] + i;
        loops<T, A>().row_moments(at, count, length, center, ahead, mean, m2);
        for (int r = 0; r < count; ++r) {
            if (!trusted<A>(m2[r])) loops<T, double>().row_moments(at + r, 1, length, center, 0, mean + r, m2 + r);
            if (!trusted<double>(m2[r]))
                measure_overflowed([&](std::int64_t j) { return load<double>(at[r][j]); }, nullptr, length, center,
                                   mean + r, m2 + r);
            merge(found[r], {static_cast<double>(length), mean[r], m2[r]});
        }
    }
}

inline double rstd_of(const CallParams& p, const Moments& m) {
    return rstd_of(m.count, m.m2, p.ddof, p.eps, p.eps_outside);
}

// The same for n statistics.
inline void rstd_of(const CallParams& p, const Moments* moments, std::int64_t n, double* rstd) {
    static_assert(sizeof(Moments) == 3 * sizeof(double));
    loop_table().rstd(&moments->count, n, p.ddof, p.eps, p.eps_outside, rstd);
}

// What is subtracted from x. Without a deviation every finite x gives exactly the bias, also where x - mean overflows.
inline double center_of(const Moments& m, double rstd) { return rstd == 0 ? 0 : m.mean; }

// Sums over the elements of one statistic.
struct Sums {
    double dxhat = 0, dxhat_xhat = 0;
};

// The part of dx that the elements of a statistic share: dx = scale * dy - s * (through_mean + (x - mean) *
// through_var).
struct Shared {
    double through_mean = 0, through_var = 0;
};

inline Shared shared_of(const CallParams& p, const Moments& m, const Sums* sums, double rstd) {
    Shared found;
    if (!sums) return found;  // given moments are constants
    if (p.center && m.count > 0) found.through_mean = rstd * (sums->dxhat / m.count);
    if (m.count > p.ddof) {
        double factor = 1;
        if (p.eps_outside) {
            const double std = std::sqrt(m.m2 / (m.count - p.ddof));
            factor = std > 0 ? 1 + p.eps / std : 0;  // not inf / inf
        }
        found.through_var = rstd * (rstd * (factor * (sums->dxhat_xhat / (m.count - p.ddof))));
    }
    return found;
}

// The factor of dy. A single element is its own mean, so its dx is exactly 0; the difference of two rounded numbers
// would not be.
inline double scale_of(const CallParams& p, const Moments& m, const Sums* sums, double rstd) {
    return sums && p.center && m.count == 1 && !p.sample_weight ? 0 : rstd;
}

// `holds` of all n values, which are compared side by side.
template <class A, class B> inline bool all_held(const B* values, std::int64_t n) {
    int others = 0;
    for (std::int64_t i = 0; i < n; ++i) {
        const B size = std::fabs(values[i]);
        others |= static_cast<int>((size != 0) & !((size > B(1e-30)) & (size < B(1e30))));
    }
    return sizeof(A) == sizeof(double) || others == 0;
}

// A statistic in the type of a loop: the mean in two parts, and rstd. fits: whether the type holds them.
template <class A> struct LoopStatistic {
    A hi, lo, rstd;
    bool fits;

    LoopStatistic(double mean, double rstd_) {
        hi = static_cast<A>(mean);
        const double rest = mean - static_cast<double>(hi);
        lo = sizeof(A) == sizeof(double) ? A(0) : static_cast<A>(rest);
        rstd = static_cast<A>(rstd_);
        fits = holds<A>(mean) && holds<A>(rstd_);
    }
};

}  // namespace truenorm
