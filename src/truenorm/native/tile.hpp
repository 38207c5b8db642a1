// The coefficients of neighbouring columns or planes, in the type of the loops.
#pragma once

#include <cmath>
#include <cstdint>

#include "moments.hpp"

namespace truenorm {

// A parameter (W) in double, and the limits of its sizes: whether a type holds its multiples is asked of these alone.
struct Parameter {
    const double* values;
    double least, most;  // of those that are not 0; NaN if one is not finite

    Parameter(const double* values, std::int64_t width) : values(values), least(INFINITY), most(0) {
        bool finite = true;
        for (std::int64_t c = 0; c < width; ++c) {
            const double size = std::fabs(values[c]);
            finite = finite && std::isfinite(size);
            most = size > most ? size : most;
            least = size != 0 && size < least ? size : least;
        }
        if (!finite) least = most = NAN;
        else if (most == 0) least = 0;
    }
};

template <class A> struct alignas(64) Tile {
    A hi[TILE], lo[TILE], scale[TILE], bias[TILE], through_mean[TILE], through_var[TILE];
    A weighted[TILE];  // rstd * weight, if scale is rstd alone
    bool fits = true;  // whether A holds them all

    // Columns `begin` to `end`, which share a mean.
    void center(int begin, int end, double mean) {
        const LoopStatistic<A> one(mean, 0);
        for (int k = begin; k < end; ++k) hi[k] = one.hi, lo[k] = one.lo;
        fits = fits && one.fits;
    }
    void spread(A* to, int begin, int end, double value) {
        for (int k = begin; k < end; ++k) to[k] = static_cast<A>(value);
        fits = fits && holds<A>(value);
    }
    // Column 0 is column c of the parameter.
    void multiply(A* to, int begin, int end, double factor, const Parameter& by, std::int64_t c) {
        for (int k = begin; k < end; ++k) to[k] = static_cast<A>(factor * by.values[c + k]);
        fits = fits && holds<A>(factor * by.least) && holds<A>(factor * by.most);
    }
};

// use(tile) with the coefficients in A if it holds them all, else in double.
template <class A, class Fill, class Use> void with_tile(bool narrow, Fill fill, Use use) {
    if (narrow && sizeof(A) != sizeof(double)) {
        Tile<A> tile;
        fill(tile);
        if (tile.fits) return use(tile);
    }
    Tile<double> tile;
    fill(tile);
    use(tile);
}

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

}  // namespace truenorm
