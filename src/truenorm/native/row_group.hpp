// Up to GROUP rows at a time: their parameters and statistics in the type of the loops, and their sums.
//
// A row whose numbers that type does not hold is computed in double, by itself: the rows beside it change no bit of it.
#pragma once

#include <cmath>
#include <vector>

#include "verb_arguments.hpp"

namespace truenorm {

// A parameter (W) in the type of the loops, where it is stored if it is stored so. fits: whether the type holds it.
template <class A> class RowParameter {
public:
    bool fits;

    RowParameter(const Buffer& stored, std::int64_t width, double otherwise)
        : stored(stored), otherwise(otherwise), values(stored.at<A>()) {
        if (!stored.data || stored.letter != (sizeof(A) == sizeof(double) ? 'd' : 'f')) {
            copy = widened<A>(stored, width, static_cast<A>(otherwise));
            values = copy.data();
        }
        fits =
            stored.data && stored.letter == 'd' ? all_held<A>(stored.at<double>(), width) : all_held<A>(values, width);
    }
    RowParameter(const RowParameter&) = delete;

    const A* at(std::int64_t c) const { return values + c; }
    // n of them, from column c on.
    std::vector<double> wide(std::int64_t c, std::int64_t n) const { return widened(stored.from(c), n, otherwise); }

private:
    const Buffer stored;
    const double otherwise;
    std::vector<A> copy;
    const A* values;
};

// stretch(first, count) for those of n rows that lie one after another in memory.
template <class Stretch> void each_stretch(const CallParams& p, const std::int64_t* rows, int n, Stretch stretch) {
    for (int first = 0, end; first < n; first = end) {
        for (end = first + 1; p.kept == 1 && end < n && rows[end] == rows[end - 1] + 1;) ++end;
        stretch(first, end - first);
    }
}

// use(first, count) for `count` rows from `first` on: all at once if all of them fit, else one by one.
template <class Use> void together_or_alone(const bool* fits, int first, int count, Use use) {
    bool all = true;
    for (int r = first; r < first + count; ++r) all &= fits[r];
    if (all) return use(first, count);
    for (int r = first; r < first + count; ++r) use(r, 1);
}

// The statistics of up to GROUP rows.
template <class A> struct RowStatistics {
    double mean[GROUP], rstd[GROUP];
    A hi[GROUP], lo[GROUP], factor[GROUP];
    bool fits[GROUP];

    RowStatistics(const CallParams& p, const Moments* moments, int n) {
        rstd_of(p, moments, n, rstd);
        for (int r = 0; r < n; ++r) mean[r] = center_of(moments[r], rstd[r]);
        for (int r = 0; r < n; ++r) {
            const LoopStatistic<A> one(mean[r], rstd[r]);
            hi[r] = one.hi, lo[r] = one.lo, factor[r] = one.rstd, fits[r] = one.fits;
        }
    }

    // The same rstd with a mean of 0.
    RowStatistics about_zero() const {
        RowStatistics found = *this;
        for (int r = 0; r < GROUP; ++r) found.mean[r] = 0, found.hi[r] = found.lo[r] = 0;
        return found;
    }

    // y of n elements each of `count` rows from `first` on. The first of them belongs to column c of the parameters.
    template <class T> void normalize(const T* x, T* y, int first, int count, std::int64_t n,
                                      const RowParameter<A>& weight, const RowParameter<A>& bias,
                                      std::int64_t c) const {
        together_or_alone(fits, first, count, [&](int r, int rows) {
            const std::int64_t at = (r - first) * n;
            if (fits[r] && weight.fits && bias.fits)
                return loops<T, A>().row_forward(x + at, y + at, rows, n, hi + r, lo + r, factor + r, weight.at(c),
                                                 bias.at(c));
            const double none[GROUP] = {};
            const std::vector<double> wide_weight = weight.wide(c, n), wide_bias = bias.wide(c, n);
            loops<T, double>().row_forward(x + at, y + at, rows, n, mean + r, none, rstd + r, wide_weight.data(),
                                           wide_bias.data());
        });
    }
};

// What dx of up to GROUP rows is computed with, beside their statistics.
template <class A> struct RowGradient {
    double scale[GROUP], through_mean[GROUP], through_var[GROUP];
    A narrow_scale[GROUP], narrow_mean[GROUP], narrow_var[GROUP];
    bool fits[GROUP];

    // Of row r. s: its sample weight.
    void set(int r, double scale_, const Shared& shared, double s) {
        scale[r] = scale_, through_mean[r] = shared.through_mean * s, through_var[r] = shared.through_var * s;
        narrow_scale[r] = static_cast<A>(scale[r]);
        narrow_mean[r] = static_cast<A>(through_mean[r]);
        narrow_var[r] = static_cast<A>(through_var[r]);
        fits[r] = holds<A>(through_mean[r]) & holds<A>(through_var[r]);
    }

    // dx of n elements each of `count` rows from `first` on, as by `RowStatistics.normalize`.
    template <class T> void differentiate(const RowStatistics<A>& of, const T* x, const T* dy, T* dx, int first,
                                          int count, std::int64_t n, const RowParameter<A>& weight,
                                          std::int64_t c) const {
        together_or_alone(fits, first, count, [&](int r, int rows) {
            const std::int64_t at = (r - first) * n;
            if (fits[r] && of.fits[r] && weight.fits)
                return loops<T, A>().row_backward(
                    x + at, dy + at, dx + at, rows, n,
                    {of.hi + r, of.lo + r, narrow_scale + r, narrow_mean + r, narrow_var + r}, weight.at(c));
            const double none[GROUP] = {};
            const std::vector<double> wide = weight.wide(c, n);
            loops<T, double>().row_backward(x + at, dy + at, dx + at, rows, n,
                                            {of.mean + r, none, scale + r, through_mean + r, through_var + r},
                                            wide.data());
        });
    }
};

// Sums over each of up to GROUP rows.
template <class T, class A> struct RowGroup {
    const RowStatistics<A>& of;
    const T *const *x, *const *dy;
    const int count;

    // sums: written. dweight, dbias (channels): added to; they and weight begin at column c. ahead: as in loops.hpp.
    void sum(std::int64_t channels, std::int64_t ahead, const RowParameter<A>& weight, std::int64_t c, Sums* sums,
             A* dweight, A* dbias) const {
        double dxhat[GROUP], dxhat_xhat[GROUP];
        for (int r = 0; r < count; ++r) sums[r] = Sums{};
        for (std::int64_t j = 0; j < channels; j += BLOCK) {
            const std::int64_t n = channels - j < BLOCK ? channels - j : BLOCK;
            const auto wide = [&](int r, A* more_weight, A* more_bias) {
                sum_wide(r, j, n, weight.wide(c + j, n), dxhat + r, dxhat_xhat + r, more_weight, more_bias);
            };
            for (int r = 0; r < count;) {  // as many as follow each other and fit
                int end = r;
                const T *xs[GROUP], *dys[GROUP];
                for (; end < count && weight.fits && of.fits[end]; ++end) xs[end] = x[end] + j, dys[end] = dy[end] + j;
                RowSums<T, A> some;
                some.x = xs + r, some.dy = dys + r, some.rows = end - r, some.n = n;
                some.hi = of.hi + r, some.lo = of.lo + r, some.rstd = of.factor + r;
                some.weight = weight.at(c + j), some.ahead = ahead;
                some.dxhat = dxhat + r, some.dxhat_xhat = dxhat_xhat + r;
                some.dweight = dweight + j, some.dbias = dbias + j;
                if (end > r) loops<T, A>().row_sums(some);
                for (; r < end; ++r)
                    if (!reliable(dxhat[r], dxhat_xhat[r])) wide(r, nullptr, nullptr);  // overflow or underflow
                if (r < count) wide(r, dweight + j, dbias + j), ++r;
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

    // The sums of one row's n <= BLOCK elements from j on, in double. weight: (n).
    void sum_wide(int r, std::int64_t j, std::int64_t n, const std::vector<double>& weight, double* dxhat,
                  double* dxhat_xhat, A* dweight, A* dbias) const {
        double more_weight[BLOCK] = {}, more_bias[BLOCK] = {};
        const T *xs = x[r] + j, *dys = dy[r] + j;
        const double zero = 0;
        RowSums<T, double> some;
        some.x = &xs, some.dy = &dys, some.rows = 1, some.n = n;
        some.hi = of.mean + r, some.lo = &zero, some.rstd = of.rstd + r, some.weight = weight.data(), some.ahead = 0;
        some.dxhat = dxhat, some.dxhat_xhat = dxhat_xhat, some.dweight = more_weight, some.dbias = more_bias;
        loops<T, double>().row_sums(some);
        for (std::int64_t i = 0; dweight && i < n; ++i) {
            dweight[i] += static_cast<A>(more_weight[i]);
            dbias[i] += static_cast<A>(more_bias[i]);
        }
    }
};

}  // namespace truenorm
