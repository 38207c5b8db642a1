// The arguments of the verbs, as every layout takes them. T is the dtype of x. All arrays are contiguous.
//
// Forward writes y and nothing else of x's size. Backward reads x, dy and the moments: one sweep sums (and gives
// dweight and dbias), one writes dx. If the elements of a statistic lie together, both happen while they are in the
// cache.
#pragma once

#include "moments.hpp"
#include "output.hpp"
#include "parameters.hpp"
#include "valid_runs.hpp"

namespace truenorm {

// weight and bias (W) in double: 1 and 0 if there are none. Rows take them as they are stored, and have no doubles: a
// few rows take no longer than reading their parameters.
struct Affine {
    const double *weight, *bias;
    Buffer stored_weight, stored_bias;
};

template <class T> struct Measure {
    const CallParams& p;
    const ValidRuns& runs;
    const T* x;        // (elements)
    Moments* moments;  // (statistics): written
};

template <class T> struct Forward {
    const CallParams& p;
    const ValidRuns& runs;
    const T* x;        // (elements)
    Output<T> y;       // (elements)
    Moments* moments;  // (statistics): read if they are given, else written
    bool given;
    Affine affine;
    const T* residual;  // (elements), or null: x + residual is normalized
    T* total;           // (elements): their sum, written

    Measure<T> measure() const { return {p, runs, x, moments}; }
};

template <class T> struct Backward {
    const CallParams& p;
    const ValidRuns& runs;
    const T *x, *dy;         // (elements)
    Output<T> dx;            // (elements); null: only the sums are written
    const Moments* moments;  // (statistics)
    Affine affine;
    bool constant;            // the moments do not depend on x
    const Sums* given;        // (statistics), or null: sums of a whole that x is a part of. Then only dx is written
    Sums* sums;               // (statistics), 0 before; rows: or null
    double *dweight, *dbias;  // (W), 0 before; null for rows, which write these:
    Buffer stored_dweight, stored_dbias;

    // Whether dy has to be multiplied by the derivative of an activation.
    bool activated() const { return p.activation != Activation::none; }
    // The sums that dx depends on, once they are known.
    const Sums* used() const { return constant ? nullptr : given ? given : sums; }
    // Whether dx depends on x.
    bool reads_x() const { return used() || activated(); }
};

}  // namespace truenorm
