// Running statistics after one more batch: the counterpart of `running.py` if every channel has enough elements.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "moments.hpp"

namespace truenorm {

// next (2, channels): mean and var. False if a channel has too few elements, or moments that are not finite;
// `running.py` handles such a batch.
inline bool ema_update(const Moments* batch, const double* mean, const double* var, std::int64_t channels,
                       double momentum, int ddof, double* next) {
    bool plain = true;
    for (std::int64_t c = 0; c < channels; ++c) {
        const double freedom = batch[c].count - ddof;
        next[c] = mean[c] + momentum * (batch[c].mean - mean[c]);
        next[channels + c] = var[c] + momentum * (batch[c].m2 / freedom - var[c]);
        plain &= freedom > 0 && std::isfinite(next[c]) && std::isfinite(next[channels + c]);
    }
    return plain;
}

// `Running.update` in place. 1: updated. 0: nothing changed, as no channel has enough elements. -1: nothing changed, as
// a channel is not finite.
template <class T> int update(const Moments* batch, T* mean, T* var, std::int64_t channels, double momentum, int ddof) {
    std::vector<T> next(static_cast<std::size_t>(2 * channels));
    T *const next_mean = next.data(), *const next_var = next_mean + channels;
    bool seen = false, finite = true;
    for (std::int64_t c = 0; c < channels; ++c) {
        const Moments& one = batch[c];
        const double freedom = one.count - ddof;
        const bool enough = freedom > 0;
        const T moved_mean = static_cast<T>(mean[c] + momentum * (one.mean - mean[c]));
        const T moved_var = static_cast<T>(var[c] + momentum * (one.m2 / freedom - var[c]));
        next_mean[c] = enough ? moved_mean : mean[c];
        next_var[c] = enough ? moved_var : var[c];
        seen |= enough;
        finite &= (one.count == 0) | (std::isfinite(one.mean) & std::isfinite(one.m2));
        finite &=
            (!enough) | (std::isfinite(moved_mean) & std::isfinite(moved_var));  // they may be finite, but not in T
    }
    if (!finite) return -1;
    std::copy_n(next_mean, channels, mean);
    std::copy_n(next_var, channels, var);
    return seen;
}

}  // namespace truenorm
