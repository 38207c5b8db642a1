// What the loops over columns and planes multiply and add, from the statistics and the parameters.
//
// Each function gives a fill(part, first, c, w): the coefficients of w <= TILE columns from c on, whose first statistic
// is number `first`. rstd: of each statistic.
#pragma once

#include "tile.hpp"
#include "verb_arguments.hpp"

namespace truenorm {

// each(begin, end, k) for those of the w columns from c on that belong to group k: columns `begin` to `end` of w.
template <class Each> void each_group(const CallParams& p, std::int64_t c, int w, Each each) {
    std::int64_t k = c / p.channels;
    for (int begin = 0; begin < w; ++k) {
        const std::int64_t left = (k + 1) * p.channels - c;
        const int end = static_cast<int>(left < w ? left : w);
        each(begin, end, k);
        begin = end;
    }
}

inline void spread(double* to, int begin, int end, double value) {
    for (int k = begin; k < end; ++k) to[k] = value;
}

// The center, and rstd of each column.
template <class A> void center(Tile<A>& part, const CallParams& p, const Moments* found, const double* rstd,
                               std::int64_t c, int w, double* scale) {
    double middle[TILE];
    each_group(p, c, w, [&](int begin, int end, std::int64_t k) {
        spread(middle, begin, end, center_of(found[k], rstd[k]));
        spread(scale, begin, end, rstd[k]);
    });
    part.center(middle, w);
}

// y = (x - mean) * scale + bias
template <class T> auto coefficients_of_y(const Forward<T>& call, const double* rstd) {
    return [&call, rstd](auto& part, std::int64_t first, std::int64_t c, int w) {
        double scale[TILE];
        center(part, call.p, call.moments + first, rstd + first, c, w, scale);
        part.multiply(part.scale, scale, call.affine.weight + c, w);
        part.set(part.bias, call.affine.bias + c, w);
    };
}

// xhat = (x - mean) * scale; y, if there is an activation, with `weighted` and bias
template <class T> auto coefficients_of_sums(const Backward<T>& call, const double* rstd) {
    return [&call, rstd](auto& part, std::int64_t first, std::int64_t c, int w) {
        double scale[TILE];
        center(part, call.p, call.moments + first, rstd + first, c, w, scale);
        part.set(part.scale, scale, w);
        if (!call.activated()) return;
        part.multiply(part.weighted, scale, call.affine.weight + c, w);
        part.set(part.bias, call.affine.bias + c, w);
    };
}

// dx = scale * dy - s * (through_mean + (x - mean) * through_var); y, if there is an activation, with bias
template <class T> auto coefficients_of_dx(const Backward<T>& call, const double* rstd) {
    return [&call, rstd](auto& part, std::int64_t first, std::int64_t c, int w) {
        const CallParams& p = call.p;
        const Sums* const used = call.used();
        double middle[TILE], scale[TILE], through_mean[TILE], through_var[TILE];
        each_group(p, c, w, [&](int begin, int end, std::int64_t k) {
            const Moments& moments = call.moments[first + k];
            const Sums* const sums = used ? used + first + k : nullptr;
            const double own = scale_of(p, moments, sums, rstd[first + k]);
            const Shared shared = shared_of(p, moments, sums, own);
            spread(middle, begin, end, call.reads_x() ? center_of(moments, own) : 0);
            spread(scale, begin, end, own);
            spread(through_mean, begin, end, shared.through_mean);
            spread(through_var, begin, end, shared.through_var);
        });
        part.center(middle, w);
        part.multiply(part.scale, scale, call.affine.weight + c, w);
        part.set(part.through_mean, through_mean, w);
        part.set(part.through_var, through_var, w);
        if (call.activated()) part.set(part.bias, call.affine.bias + c, w);
        else if (!used) std::fill_n(part.bias, w, 0);
    };
}

}  // namespace truenorm
