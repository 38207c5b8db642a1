// How numbers are stored, and how they are widened for the computation: float16 and bfloat16 are summed in float.
//
// All functions are `static`: each instruction set compiles its own copy, so that the linker can never hand
// a processor code that it does not have.
#pragma once

#include <cstdint>
#include <cstring>

namespace truenorm {

struct Half {
    std::uint16_t bits;
};
struct BFloat16 {  // bfloat16: the upper half of a float
    std::uint16_t bits;
};

static inline float float_of_bits(std::uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

static inline std::uint32_t bits_of_float(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

template <class A> static inline A load(float value) { return static_cast<A>(value); }

template <class A> static inline A load(double value) { return static_cast<A>(value); }

template <class A> static inline A load(BFloat16 value) {
    return static_cast<A>(float_of_bits(static_cast<std::uint32_t>(value.bits) << 16));
}

template <class A> static inline A load(Half value) {
    const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
    const std::uint32_t rest = value.bits & 0x7fffu;
    // Subnormals are their mantissa times 2^-24, which is exact; the others only need the exponent's new bias.
    const float subnormal = static_cast<float>(rest) * 5.9604644775390625e-8f;
    const std::uint32_t bias = rest >= 0x7c00u ? 224u << 23 : 112u << 23;  // inf and NaN stay inf and NaN
    const std::uint32_t normal = (rest << 13) + bias;
    const std::uint32_t bits = rest < 0x0400u ? bits_of_float(subnormal) : normal;
    return static_cast<A>(float_of_bits(bits | sign));
}

static inline void store(float* to, double value) { *to = static_cast<float>(value); }
static inline void store(float* to, float value) { *to = value; }
static inline void store(double* to, double value) { *to = value; }

static inline void store(BFloat16* to, float value) {
    const std::uint32_t bits = bits_of_float(value);
    const std::uint32_t even = bits + 0x7fffu + ((bits >> 16) & 1u);  // round to nearest, ties to even
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    to->bits = static_cast<std::uint16_t>(nan ? (bits >> 16) | 0x40u : even >> 16);
}

static inline void store(Half* to, float value) {
    const std::uint32_t bits = bits_of_float(value), rest = bits & 0x7fffffffu;
    std::uint32_t half;
    if (rest > 0x7f800000u) {
        half = 0x7e00u | ((rest >> 13) & 0x1ffu);  // as processors do
    } else if (rest >= 0x477ff000u) {              // 65520 and more round to inf
        half = 0x7c00u;
    } else if (rest < 0x38800000u) {  // below 2^-14: adding 1/2 rounds to a multiple of 2^-24
        half = bits_of_float(float_of_bits(rest) + 0.5f) - 0x3f000000u;
    } else {
        half = (rest + 0xfffu + ((rest >> 13) & 1u) - 0x38000000u) >> 13;
    }
    to->bits = static_cast<std::uint16_t>(half | ((bits >> 16) & 0x8000u));
}

static inline void store(Half* to, double value) { store(to, static_cast<float>(value)); }
static inline void store(BFloat16* to, double value) { store(to, static_cast<float>(value)); }

}  // namespace truenorm
