// What is computed for each statistic or coefficient, without branches: for thousands of them in one loop.
//
// All functions are `static`: each instruction set compiles its own copy, as in load_store.hpp.
#pragma once

#include <cmath>

namespace truenorm {

// The one place where eps and ddof are applied. 0 if there is no variance to divide by.
static inline double rstd_of(double count, double m2, int ddof, double eps, bool eps_outside) {
    const double freedom = count - ddof, var = m2 / freedom;
    const double deviation = eps_outside ? std::sqrt(var) + eps : std::sqrt(var + eps);
    const double rstd = 1 / deviation;
    return (freedom > 0) & (deviation != 0) ? rstd : 0;
}

// Whether float holds a coefficient with all its digits. If it is not finite, double is used: inf and NaN stay visible.
template <class A> static inline bool holds(double value) {
    const double size = std::fabs(value);
    return sizeof(A) == sizeof(double) || (size == 0) | ((size > 1e-30) & (size < 1e30));
}

}  // namespace truenorm
