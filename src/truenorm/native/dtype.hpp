// The dtypes that cross from Python: one table of their letters in the buffer protocol, sizes and names.
#pragma once

#include <cstddef>
#include <cstdint>

#include "load_store.hpp"

namespace truenorm {

enum class Dtype { float16, float32, float64, bfloat16, int64, boolean };

struct DtypeInfo {
    Dtype dtype;
    const char* letter;  // as text; H is bfloat16, which the buffer protocol does not have
    int size;            // bytes
    const char* name;    // of a dtype that a plan can have, else null
};

constexpr DtypeInfo DTYPES[] = {
    {Dtype::float32, "f", 4, "float32"},   {Dtype::float64, "d", 8, "float64"}, {Dtype::float16, "e", 2, "float16"},
    {Dtype::bfloat16, "H", 2, "bfloat16"}, {Dtype::int64, "l", 8, nullptr},     {Dtype::int64, "q", 8, nullptr},
    {Dtype::boolean, "?", 1, nullptr},     {Dtype::boolean, "B", 1, nullptr},
};
constexpr const char *FLOATS = "dfeH", *INTEGERS = "lq", *BOOLEANS = "?B";

inline const DtypeInfo& dtype_info(Dtype dtype) {
    for (const DtypeInfo& info : DTYPES)
        if (info.dtype == dtype) return info;
    return DTYPES[0];
}

inline int size_of(char letter) {
    for (const DtypeInfo& info : DTYPES)
        if (*info.letter == letter) return info.size;
    return 0;
}

// call(T{}) with the type of a plan's dtype.
template <class Call> void with_type(Dtype dtype, Call call) {
    switch (dtype) {
        case Dtype::float64: return call(double{});
        case Dtype::float16: return call(Half{});
        case Dtype::bfloat16: return call(BFloat16{});
        default: return call(float{});
    }
}

// An array of floats of any dtype, as it is stored. Null if it is not given.
struct Buffer {
    void* data;
    char letter;

    template <class T> T* at() const { return static_cast<T*>(data); }
    // From element i on.
    Buffer from(std::int64_t i) const { return {data ? at<char>() + i * size_of(letter) : nullptr, letter}; }
};

// use(pointer) with the type of the elements.
template <class Use> void with_elements(const Buffer& of, Use use) {
    switch (of.letter) {
        case 'f': return use(of.at<float>());
        case 'e': return use(of.at<Half>());
        case 'H': return use(of.at<BFloat16>());
        default: return use(of.at<double>());
    }
}

}  // namespace truenorm
