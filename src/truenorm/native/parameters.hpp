// Parameters and their gradients, from and to the dtypes in which they are stored.
#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "dtype.hpp"
#include "loops.hpp"

namespace truenorm {

// A parameter (size) in A; `otherwise` if it is not given.
template <class A> std::vector<A> widened(const Buffer& from, std::int64_t size, A otherwise) {
    std::vector<A> to(static_cast<std::size_t>(size), otherwise);
    if (!from.data) return to;
    with_elements(from, [&](const auto* values) {
        using T = std::remove_const_t<std::remove_pointer_t<decltype(values)>>;
        if constexpr (sizeof(T) == 2) loops<T, A>().widen(values, to.data(), size);
        else std::transform(values, values + size, to.begin(), [](T one) { return load<A>(one); });
    });
    return to;
}

// The gradient of a parameter (size), rounded to its dtype; written nowhere if it is not asked for.
inline void narrow(const double* from, std::int64_t size, const Buffer& to) {
    if (!to.data) return;
    with_elements(to, [&](auto* values) {
        using T = std::remove_pointer_t<decltype(values)>;
        if constexpr (sizeof(T) == 2) {
            const std::vector<float> some(from, from + size);
            loops<T, float>().narrow(some.data(), values, size);
        } else {
            std::transform(from, from + size, values, [](double one) { return static_cast<T>(one); });
        }
    });
}

}  // namespace truenorm
