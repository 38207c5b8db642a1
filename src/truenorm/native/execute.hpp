// The one place where a verb runs: parameters are widened, threads called, dtype and layout chosen, gradients narrowed.
//
// Everything was checked before. Nothing of Python is used: the caller has released the interpreter.
#pragma once

#include <algorithm>
#include <vector>

#include "columns.hpp"
#include "planes.hpp"
#include "rows.hpp"
#include "threads.hpp"

namespace truenorm {

struct MeasureBuffers {
    const void* x;     // (elements), of the plan's dtype
    Moments* moments;  // (statistics)
};

struct ForwardBuffers {
    const void* x;        // (elements), of the plan's dtype
    void* y;              // the same
    Moments* moments;     // (statistics)
    bool given;           // the moments are read, not written
    Buffer weight, bias;  // (W), or null
    // (elements), or null: what is normalized is x + residual, which is written to `total`. Rows only.
    const void* residual;
    void* total;
};

struct BackwardBuffers {
    const void *x, *dy;      // (elements), of the plan's dtype
    void* dx;                // the same; null: only the sums
    const Moments* moments;  // (statistics)
    bool constant;           // the moments do not depend on x
    Sums* sums;              // (statistics), or null: not asked for
    bool given;              // the sums are read, not written; only dx is written
    Buffer weight, bias;     // (W), or null
    Buffer dweight, dbias;   // (W), or null
    const void* dtotal;      // (elements), or null: added to dx
};

// verb(T{}) with threads, for the dtype of x.
template <class Verb> void run(CallParams& p, Dtype dtype, Verb verb) {
    Team team(p.elements());
    p.team = &team;
    with_type(dtype, verb);
}

inline void measure(CallParams p, const ValidRuns& runs, Dtype dtype, const MeasureBuffers& buffers) {
    run(p, dtype, [&](auto t) {
        using T = decltype(t);
        using A = typename Accumulator<T>::type;
        const Measure<T> call{p, runs, static_cast<const T*>(buffers.x), buffers.moments};
        switch (p.layout) {
            case Layout::columns: return measure_columns<T, A>(call);
            case Layout::rows: return measure_rows<T, A>(call);
            case Layout::planes: return measure_planes<T, A>(call);
        }
    });
}

inline void forward(CallParams p, const ValidRuns& runs, Dtype dtype, const ForwardBuffers& buffers) {
    const std::int64_t width = p.layout == Layout::rows ? 0 : p.width();
    const std::vector<double> weight = widened(buffers.weight, width, 1.0), bias = widened(buffers.bias, width, 0.0);
    run(p, dtype, [&](auto t) {
        using T = decltype(t);
        using A = typename Accumulator<T>::type;
        const Forward<T> call{p,
                              runs,
                              static_cast<const T*>(buffers.x),
                              Output<T>(static_cast<T*>(buffers.y), p.elements(), runs.padded(p), p.activation),
                              buffers.moments,
                              buffers.given,
                              {weight.data(), bias.data(), buffers.weight, buffers.bias},
                              static_cast<const T*>(buffers.residual),
                              static_cast<T*>(buffers.total)};
        switch (p.layout) {
            case Layout::columns: return forward_columns<T, A>(call);
            case Layout::rows: return forward_rows<T, A>(call);
            case Layout::planes: return forward_planes<T, A>(call);
        }
    });
}

inline void backward(CallParams p, const ValidRuns& runs, Dtype dtype, const BackwardBuffers& buffers) {
    const bool rows = p.layout == Layout::rows;
    const std::int64_t width = rows ? 0 : p.width();
    const std::vector<double> weight = widened(buffers.weight, width, 1.0), bias = widened(buffers.bias, width, 0.0);
    std::vector<double> dweight(weight.size()), dbias(weight.size());
    std::vector<Sums> some(rows || buffers.sums ? 0 : static_cast<std::size_t>(p.statistics()));
    Sums* const sums = rows || buffers.sums ? buffers.sums : some.data();
    if (sums && !buffers.given) std::fill_n(sums, p.statistics(), Sums{});
    run(p, dtype, [&](auto t) {
        using T = decltype(t);
        using A = typename Accumulator<T>::type;
        const Backward<T> call{p,
                               runs,
                               static_cast<const T*>(buffers.x),
                               static_cast<const T*>(buffers.dy),
                               Output<T>(static_cast<T*>(buffers.dx), p.elements(), runs.padded(p), Activation::none,
                                         static_cast<const T*>(buffers.dtotal)),
                               buffers.moments,
                               {weight.data(), bias.data(), buffers.weight, buffers.bias},
                               buffers.constant,
                               buffers.given ? sums : nullptr,
                               buffers.given ? nullptr : sums,
                               dweight.data(),
                               dbias.data(),
                               buffers.dweight,
                               buffers.dbias};
        switch (p.layout) {
            case Layout::columns: return backward_columns<T, A>(call);
            case Layout::rows: return backward_rows<T, A>(call);
            case Layout::planes: return backward_planes<T, A>(call);
        }
    });
    if (buffers.given) return;
    narrow(dweight.data(), width, buffers.dweight);
    narrow(dbias.data(), width, buffers.dbias);
}

}  // namespace truenorm
