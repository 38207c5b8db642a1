// Running statistics after one more batch: the usual case of `running.py`.
#pragma once

#include <cmath>
#include <cstdint>

#include "moments.hpp"

namespace truenorm {

// next = mean and then var of each channel. False, where a channel has too few elements or moments that are not finite:
// such a batch needs more care than this.
inline bool blend(const Moments* batch, const double* mean, const double* var, std::int64_t channels, double momentum,
                  int ddof, double* next) {
    bool usual = true;
    for (std::int64_t c = 0; c < channels; ++c) {
        const double freedom = batch[c].count - ddof;
        next[c] = mean[c] + momentum * (batch[c].mean - mean[c]);
        next[channels + c] = var[c] + momentum * (batch[c].m2 / freedom - var[c]);
        usual &= freedom > 0 && std::isfinite(next[c]) && std::isfinite(next[channels + c]);
    }
    return usual;
}

// `Running.update` for a layer's own buffers. 1: moved. 0: no channel has enough elements, so nothing was. -1: a channel is
// not finite, so nothing was.
template <class T>
int update(const Moments* batch, T* mean, T* var, std::int64_t channels, double momentum, int ddof) {
    const auto next_mean = [&](std::int64_t c) { return static_cast<T>(mean[c] + momentum * (batch[c].mean - mean[c])); };
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
