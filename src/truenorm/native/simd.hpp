// Vectors of one instruction set: `Lanes`, a fixed number of bytes whatever the width of a register, and loops over
// them.
//
// Only `loops.inc` includes this file, and everything in it is local: each instruction set compiles its own copy. The
// width of a register is chosen here and nowhere else. A set between two of these (AVX without AVX2) uses the narrower
// vectors.
#pragma once

#include <cstdint>
#include <type_traits>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "load_store.hpp"

#define RESTRICT __restrict__
#define INLINE __attribute__((always_inline))

namespace truenorm {
namespace {

#if defined(__AVX512F__)
constexpr int VECTOR = 64;
#elif defined(__AVX2__)
constexpr int VECTOR = 32;
#else
constexpr int VECTOR = 16;
#endif

// The first n numbers of a vector, followed by those of `rest`. Memory after the n numbers is not read. Copying through
// an array instead, as for other types, would take as long as a whole row.
#if defined(__AVX512F__)
inline __m512 first_of(const float* values, int n, __m512 rest) {
    return _mm512_mask_loadu_ps(rest, static_cast<__mmask16>((1u << n) - 1), values);
}
inline __m512d first_of(const double* values, int n, __m512d rest) {
    return _mm512_mask_loadu_pd(rest, static_cast<__mmask8>((1u << n) - 1), values);
}
#elif defined(__AVX2__)
inline __m256 first_of(const float* values, int n, __m256 rest) {
    const __m256i there = _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    return _mm256_blendv_ps(rest, _mm256_maskload_ps(values, there), _mm256_castsi256_ps(there));
}
inline __m256d first_of(const double* values, int n, __m256d rest) {
    const __m256i there = _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3));
    return _mm256_blendv_pd(rest, _mm256_maskload_pd(values, there), _mm256_castsi256_pd(there));
}
#endif

// BYTES / sizeof(A) numbers side by side, in as many vectors as that takes.
template <class A, int BYTES> struct Lanes {
    typedef A Vector __attribute__((vector_size(VECTOR)));
    typedef A Anywhere __attribute__((vector_size(VECTOR), aligned(alignof(A)), may_alias));
    static constexpr int PARTS = BYTES / VECTOR, COUNT = BYTES / static_cast<int>(sizeof(A));
    Vector part[PARTS];

    static Lanes all(A value) {
        Lanes lanes;
        for (int k = 0; k < PARTS; ++k) lanes.part[k] = Vector{} + value;
        return lanes;
    }

    template <class T> static Lanes from(const T* RESTRICT values) {
        if constexpr (std::is_same_v<T, A>) {
            Lanes lanes;
            for (int k = 0; k < PARTS; ++k) lanes.part[k] = reinterpret_cast<const Anywhere*>(values)[k];
            return lanes;
        } else {
            A wide[COUNT];
            for (int j = 0; j < COUNT; ++j) wide[j] = load<A>(values[j]);
            return from(wide);
        }
    }

    // n <= COUNT values, followed by `rest`.
    template <class T> static Lanes some(const T* RESTRICT values, std::int64_t n, A rest) {
        if constexpr (std::is_same_v<T, A> && VECTOR > 16) {
            constexpr int WIDTH = VECTOR / static_cast<int>(sizeof(A));
            Lanes lanes;
            for (int k = 0; k < PARTS; ++k) {
                const std::int64_t left = n - k * WIDTH;
                if (left >= WIDTH) lanes.part[k] = reinterpret_cast<const Anywhere*>(values)[k];
                else if (left > 0)
                    lanes.part[k] = first_of(values + k * WIDTH, static_cast<int>(left), Vector{} + rest);
                else lanes.part[k] = Vector{} + rest;
            }
            return lanes;
        }
        A wide[COUNT];
        for (int j = 0; j < COUNT; ++j) wide[j] = rest;
        for (int j = 0; j < n; ++j) wide[j] = load<A>(values[j]);
        return from(wide);
    }

    void to(A* RESTRICT values) const {
        for (int k = 0; k < PARTS; ++k) reinterpret_cast<Anywhere*>(values)[k] = part[k];
    }
    void to(A* RESTRICT values, std::int64_t n) const {
        A all[COUNT];
        to(all);
        for (int j = 0; j < n; ++j) values[j] = all[j];
    }

    // Adds the upper half to the lower half until one lane is left: first whole vectors, then inside the last one.
    double total() const {
        Lanes sums = *this;
        for (int half = PARTS / 2; half > 0; half /= 2)
            for (int k = 0; k < half; ++k) sums.part[k] += sums.part[k + half];
        A lanes[VECTOR / sizeof(A)];
        *reinterpret_cast<Anywhere*>(lanes) = sums.part[0];
        return fold<VECTOR / static_cast<int>(sizeof(A)) / 2>(lanes);
    }

    friend Lanes operator+(const Lanes& one, const Lanes& two) {
        return each([&](int k) INLINE { return one.part[k] + two.part[k]; });
    }
    friend Lanes operator-(const Lanes& one, const Lanes& two) {
        return each([&](int k) INLINE { return one.part[k] - two.part[k]; });
    }
    friend Lanes operator*(const Lanes& one, const Lanes& two) {
        return each([&](int k) INLINE { return one.part[k] * two.part[k]; });
    }
    friend Lanes operator-(const Lanes& one, A two) {
        return each([&](int k) INLINE { return one.part[k] - two; });
    }
    friend Lanes operator*(const Lanes& one, A two) {
        return each([&](int k) INLINE { return one.part[k] * two; });
    }

private:
    template <class Part> static Lanes each(Part of) {
        Lanes lanes;
        for (int k = 0; k < PARTS; ++k) lanes.part[k] = of(k);
        return lanes;
    }

    template <int width> static double fold(A* RESTRICT lanes) {
        for (int j = 0; j < width; ++j) lanes[j] += lanes[j + width];
        if constexpr (width > 1) return fold<width / 2>(lanes);
        else return static_cast<double>(lanes[0]);
    }
};

// One sum at a time uses many lanes, to hide the latency of an addition; four sums at a time fit the registers with
// few.
template <class A> using Many = Lanes<A, 128>;
template <class A> using Few = Lanes<A, 64>;

// Prefetches the cache lines of n elements. Any address is allowed: nothing is read.
template <class T> inline void fetch(const T* from, std::int64_t n) {
    for (std::int64_t i = 0; i < n; i += 64 / static_cast<std::int64_t>(sizeof(T))) __builtin_prefetch(from + i, 0, 2);
}

// body(lanes) for n values, the last of them padded with `rest`, which must change no sum.
template <class V, class A, class T, class Body>
inline void in_lanes(const T* RESTRICT x, std::int64_t n, A rest, std::int64_t ahead, Body body) {
    std::int64_t i = 0;
    for (; i + V::COUNT <= n; i += V::COUNT) {
        if (ahead) fetch(x + i + ahead, V::COUNT);
        body(V::from(x + i));
    }
    if (i < n) body(V::some(x + i, n - i, rest));
}

// body(lanes of x, lanes of dy): the same for two arrays, dy padded with 0.
template <class V, class A, class T, class Body>
inline void in_lanes(const T* RESTRICT x, const T* RESTRICT dy, std::int64_t n, A rest, Body body) {
    std::int64_t i = 0;
    for (; i + V::COUNT <= n; i += V::COUNT) body(V::from(x + i), V::from(dy + i));
    if (i < n) body(V::some(x + i, n - i, rest), V::some(dy + i, n - i, A(0)));
}

}  // namespace
}  // namespace truenorm
