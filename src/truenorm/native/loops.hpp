// The innermost loops, which are all that knows an instruction set. One table of them for each set is compiled
// from `loops.inc`; `loops()` picks the best that the processor has. Everything else is plain C++.
//
// T is what is stored, A what is computed with. `hi + lo` is a mean in two parts: in float, (x - hi) - lo keeps the
// digits of a mean that float cannot hold. All sums inside a loop have a fixed order, the same for every set.
#pragma once

#include <cstdint>

#include "storage.hpp"

namespace truenorm {

constexpr int TILE = 512;       // columns that are worked on together: their coefficients stay in the first-level cache
constexpr int BLOCK_ROWS = 64;  // rows of them that are summed together: such a block stays in the second level
constexpr int BLOCK = 2048;     // elements of a block along a contiguous axis
constexpr int PIECE_OF_PLANES = 8192;  // elements of planes that a thread takes at once
constexpr int GROUP = 8;        // rows with statistics of their own that are worked on together; divides BLOCK_ROWS

template <class T, class A>
struct Loops {
    // Columns: one statistic for each of w <= TILE columns; rows[r] points at the first of them. s: (n), or null. Behind
    // the n rows, `more` others follow in the list, which are fetched while there is something to compute.
    void (*column_moments)(const T* const* rows, const double* s, int n, int more, int w, bool center, double* mean,
                           double* m2);
    void (*column_sums)(const T* const* x, const T* const* dy, int n, int more, int w, const A* hi, const A* lo,
                        const A* rstd, double* dy_sum, double* dy_xhat_sum);
    void (*column_forward)(const T* x, T* y, std::int64_t w, const A* hi, const A* lo, const A* scale, const A* bias);
    void (*column_backward)(const T* x, const T* dy, T* dx, std::int64_t w, const A* hi, const A* lo, const A* scale,
                            const A* through_mean, const A* through_var, A s);

    // Stretches: n contiguous elements of one statistic. s: (n).
    void (*weighted_moments)(const T* x, const double* s, std::int64_t n, bool center, double* mean, double* m2);
    void (*sums)(const T* x, const T* dy, std::int64_t n, A hi, A lo, A rstd, double* dy_sum, double* dy_xhat_sum);
    void (*forward)(const T* x, T* y, std::int64_t n, A hi, A lo, A scale, A bias);
    void (*backward)(const T* x, const T* dy, T* dx, std::int64_t n, A hi, A lo, A scale, A through_mean, A through_var,
                     const double* s);

    // Rows: `rows` <= GROUP stretches of n elements each, every one with a statistic of its own. What lies `ahead` elements
    // further on is fetched meanwhile; 0: nothing.
    void (*row_moments)(const T* const* x, int rows, std::int64_t n, bool center, std::int64_t ahead, double* mean,
                        double* m2);
    // weight (n) is theirs together; dweight, dbias (n) are added to.
    void (*row_sums)(const T* const* x, const T* const* dy, int rows, std::int64_t n, const A* hi, const A* lo,
                     const A* rstd, const A* weight, std::int64_t ahead, double* dxhat, double* dxhat_xhat, A* dweight,
                     A* dbias);
    void (*row_forward)(const T* x, T* y, std::int64_t n, A hi, A lo, A rstd, const A* weight, const A* bias);
    void (*row_backward)(const T* x, const T* dy, T* dx, std::int64_t n, A hi, A lo, A rstd, const A* weight,
                         A through_mean, A through_var);
};

struct LoopTable {
    const char* name;
    Loops<float, float> float_float;
    Loops<float, double> float_double;
    Loops<double, double> double_double;
    Loops<Half, float> half_float;
    Loops<Half, double> half_double;
    Loops<Brain, float> brain_float;
    Loops<Brain, double> brain_double;
};

const LoopTable& loop_table_baseline();
#if defined(TRUENORM_X86)
const LoopTable& loop_table_avx2();
const LoopTable& loop_table_avx512();
#endif

// The tables this processor can run, best first; `select_loops` makes one of them the one in use.
const LoopTable& loop_table();
bool select_loops(const char* name);

template <class T, class A>
const Loops<T, A>& loops();
template <>
inline const Loops<float, float>& loops() { return loop_table().float_float; }
template <>
inline const Loops<float, double>& loops() { return loop_table().float_double; }
template <>
inline const Loops<double, double>& loops() { return loop_table().double_double; }
template <>
inline const Loops<Half, float>& loops() { return loop_table().half_float; }
template <>
inline const Loops<Half, double>& loops() { return loop_table().half_double; }
template <>
inline const Loops<Brain, float>& loops() { return loop_table().brain_float; }
template <>
inline const Loops<Brain, double>& loops() { return loop_table().brain_double; }

// What a type is summed in.
template <class T>
struct Computed {
    using type = float;
};
template <>
struct Computed<double> {
    using type = double;
};

}  // namespace truenorm
