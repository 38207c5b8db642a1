// Running statistics after one more batch: the counterpart of `running.py` if every channel has enough elements.
#pragma once

#include <cmath>
#include <cstdint>

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
    const auto next_mean = [&](std::int64_t c) {
        return static_cast<T>(mean[c] + momentum * (batch[c].mean - mean[c]));
    };
    const auto next_var = [&](std::int64_t c) {
        return static_cast<T>(var[c] + momentum * (batch[c].m2 / (batch[c].count - ddof) - var[c]));
    };
    bool seen = false;
    for (std::int64_t c = 0; c < channels; ++c) {
        if (batch[c].count > 0 && !(std::isfinite(batch[c].mean) && std::isfinite(batch[c].m2))) return -1;
        if (!(batch[c].count > ddof)) continue;
        seen = true;
        if (!std::isfinite(next_mean(c)) || !std::isfinite(next_var(c))) return -1;  // finite, but not in T
    }
    for (std::int64_t c = 0; c < channels; ++c) {
        if (!(batch[c].count > ddof)) continue;
        mean[c] = next_mean(c);
        var[c] = next_var(c);
    }
    return seen;
}

}  // namespace truenorm
