// What may follow a normalization: y = activation(xhat * weight + bias).
#pragma once

#include <cstring>

namespace truenorm {

enum class Activation { none, relu, gelu, silu, tanh };

constexpr struct {
    const char* name;
    Activation kind;
} ACTIVATIONS[] = {
    {"", Activation::none},     {"relu", Activation::relu}, {"gelu", Activation::gelu},
    {"silu", Activation::silu}, {"tanh", Activation::tanh},
};

// The activation of this name. False if there is none.
inline bool find_activation(const char* name, Activation& kind) {
    for (const auto& one : ACTIVATIONS)
        if (std::strcmp(one.name, name) == 0) return kind = one.kind, true;
    return false;
}

}  // namespace truenorm
