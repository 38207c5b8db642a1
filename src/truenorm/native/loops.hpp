// The innermost loops, the only code that depends on an instruction set. `loops.inc` is compiled into one table of them
// for each set; `loops()` picks the best that the processor has. Everything else is plain C++.
//
// T is the dtype of x, A the type of the computation. `hi + lo` is a mean in two parts: in float, (x - hi) - lo keeps
// the digits of a mean that float cannot hold. All sums inside a loop have a fixed order, the same for every set.
#pragma once

#include <cstdint>

#include "activation.hpp"
#include "load_store.hpp"

namespace truenorm {

constexpr int TILE = 512;              // columns of one item of work: their coefficients stay in the first-level cache
constexpr int BLOCK_ROWS = 64;         // rows of a block: with TILE columns it stays in the second-level cache
constexpr int BLOCK = 2048;            // elements of a block along a contiguous axis
constexpr int PIECE_OF_PLANES = 8192;  // elements of planes in one item of work
constexpr int GROUP = 16;  // stretches with statistics of their own that one loop handles; divides BLOCK_ROWS

// What the loop over rows with statistics of their own reads and writes. rows <= GROUP.
template <class T, class A> struct RowSums {
    const T *const *x, *const *dy;  // (rows) pointers to n elements
    int rows;
    std::int64_t n;
    const A *hi, *lo, *rstd;     // (rows)
    const A* weight;             // (n), shared by the rows
    std::int64_t ahead;          // elements so many further on are prefetched; 0: none
    double *dxhat, *dxhat_xhat;  // (rows): written
    A *dweight, *dbias;          // (n): added to
};

// What dx is computed with, one of each for a column, plane or row. lo: null if it is 0, but of rows.
template <class A> struct Coefficients {
    const A *hi, *lo, *scale, *through_mean, *through_var;
};

template <class T, class A> struct Loops {
    // Columns: one statistic for each of w <= TILE columns. rows, x, dy: (n) pointers to the first of these columns,
    // followed by `more` others, which are prefetched. s: (n) sample weights, or null. All other arrays: (w).
    void (*column_moments)(const T* const* rows, const double* s, int n, int more, int w, bool center, double* mean,
                           double* m2);
    void (*column_sums)(const T* const* x, const T* const* dy, int n, int more, int w, const A* hi, const A* lo,
                        const A* rstd, double* dy_sum, double* dy_xhat_sum);
    // x, y, dy, dx: n elements of rows of w columns that lie one after another, the last of which may be a part of one.
    // lo: null if it is 0.
    void (*column_forward)(const T* x, T* y, std::int64_t n, std::int64_t w, const A* hi, const A* lo, const A* scale,
                           const A* bias);
    void (*column_backward)(const T* x, const T* dy, T* dx, std::int64_t n, std::int64_t w, const Coefficients<A>& of,
                            A s);

    // Stretches: n contiguous elements of one statistic. x: (n). s: (n) sample weights. Sums are of `rows` <= GROUP
    // stretches: x and dy are (rows) pointers to n elements, all other arrays (rows).
    void (*weighted_moments)(const T* x, const double* s, std::int64_t n, bool center, double* mean, double* m2);
    void (*sums)(const T* const* x, const T* const* dy, int rows, std::int64_t n, const A* hi, const A* lo,
                 const A* rstd, double* dy_sum, double* dy_xhat_sum);

    // Planes: n elements of each of `planes`, which begin `stride` elements apart. s: (n) sample weights; null: all 1.
    // lo: null if it is 0. All other arrays: (planes).
    void (*forward)(const T* x, T* y, std::int64_t planes, std::int64_t stride, std::int64_t n, const A* hi,
                    const A* lo, const A* scale, const A* bias);
    void (*backward)(const T* x, const T* dy, T* dx, std::int64_t planes, std::int64_t stride, std::int64_t n,
                     const Coefficients<A>& of, const double* s);

    // Rows: `rows` <= GROUP stretches of n elements, each with a statistic of its own. x: (rows) pointers to n
    // elements; mean, m2: (rows). Elements `ahead` further on are prefetched; 0: none.
    void (*row_moments)(const T* const* x, int rows, std::int64_t n, bool center, std::int64_t ahead, double* mean,
                        double* m2);
    void (*row_sums)(const RowSums<T, A>& of);
    // The same rows, which follow one another in memory. of, hi, lo, rstd: (rows); weight, bias: (n).
    void (*row_forward)(const T* x, T* y, int rows, std::int64_t n, const A* hi, const A* lo, const A* rstd,
                        const A* weight, const A* bias);
    void (*row_backward)(const T* x, const T* dy, T* dx, int rows, std::int64_t n, const Coefficients<A>& of,
                         const A* weight);

    // Coefficients from double; false if A does not hold them all with all their digits. split: hi + lo = mean.
    // product: to = one * two, or one if two is null.
    bool (*split)(const double* mean, std::int64_t n, A* hi, A* lo);
    bool (*product)(const double* one, const double* two, std::int64_t n, A* to);

    // What comes before and after, on n numbers that are in a cache. activate: y = activation(y). derive: z = dy times
    // the activation's derivative at z. add: to = one + two, where `to` may be one of them.
    void (*activate)(Activation kind, T* y, std::int64_t n);
    void (*derive)(Activation kind, const T* dy, T* z, std::int64_t n);
    void (*add)(const T* one, const T* two, T* to, std::int64_t n);

    // n numbers from and to the type of the computation.
    void (*widen)(const T* from, A* to, std::int64_t n);
    void (*narrow)(const A* from, T* to, std::int64_t n);
};

struct LoopTable {
    const char* name;
    // Writes whole lines of the cache, `bytes` from an address that is a multiple of a line on, past the caches.
    void (*write_lines)(char* to, const char* from, std::size_t bytes);
    // rstd (n) of moments (n, 3): count, mean and m2.
    void (*rstd)(const double* moments, std::int64_t n, int ddof, double eps, bool eps_outside, double* rstd);
    Loops<float, float> float_float;
    Loops<float, double> float_double;
    Loops<double, double> double_double;
    Loops<Half, float> half_float;
    Loops<Half, double> half_double;
    Loops<BFloat16, float> bfloat16_float;
    Loops<BFloat16, double> bfloat16_double;
};

const LoopTable& loop_table_baseline();
#if defined(TRUENORM_X86)
const LoopTable& loop_table_avx2();
const LoopTable& loop_table_avx512();
#endif

// The tables this processor can run, best first; `select_loops` makes one of them the one in use.
const LoopTable& loop_table();
bool select_loops(const char* name);

template <class T, class A> const Loops<T, A>& loops();
template <> inline const Loops<float, float>& loops() { return loop_table().float_float; }
template <> inline const Loops<float, double>& loops() { return loop_table().float_double; }
template <> inline const Loops<double, double>& loops() { return loop_table().double_double; }
template <> inline const Loops<Half, float>& loops() { return loop_table().half_float; }
template <> inline const Loops<Half, double>& loops() { return loop_table().half_double; }
template <> inline const Loops<BFloat16, float>& loops() { return loop_table().bfloat16_float; }
template <> inline const Loops<BFloat16, double>& loops() { return loop_table().bfloat16_double; }

// The type in which elements of type T are summed.
template <class T> struct Accumulator {
    using type = float;
};
template <> struct Accumulator<double> {
    using type = double;
};

}  // namespace truenorm
