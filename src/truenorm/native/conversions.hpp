// Registers of floats from and to the dtypes that x may have: two bytes become four in a register, with no array in
// between. Each function has a form for the first n elements, which touches no memory after them.
//
// Only `simd.hpp` includes this file, for each instruction set. What they give is what `load` and `store` give.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(TRUENORM_X86)
#include <emmintrin.h>
#endif

#include "load_store.hpp"

namespace truenorm {
namespace {

#if defined(__AVX512F__)
constexpr int VECTOR = 64;
#elif defined(__AVX2__)
constexpr int VECTOR = 32;
#else
constexpr int VECTOR = 16;
#endif

// One register of numbers.
template <class A> struct Register {
    typedef A Type __attribute__((vector_size(VECTOR)));
    typedef A Anywhere __attribute__((vector_size(VECTOR), aligned(alignof(A)), may_alias));
    static constexpr int COUNT = VECTOR / static_cast<int>(sizeof(A));
};

// VECTOR bytes past the caches, to a multiple of VECTOR: in the widest stores, as few of them can be on their way.
inline void stream(char* to, const char* from) {
#if defined(__AVX512F__)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
#elif defined(__AVX2__)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif defined(TRUENORM_X86)
    _mm_stream_si128(reinterpret_cast<__m128i*>(to), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#else
    std::memcpy(to, from, VECTOR);
#endif
}

// Any dtype, through an array.
template <class A, class T> inline typename Register<A>::Type widen(const T* from, int n, A rest) {
    A wide[Register<A>::COUNT];
    for (int j = 0; j < Register<A>::COUNT; ++j) wide[j] = j < n ? load<A>(from[j]) : rest;
    return *reinterpret_cast<const typename Register<A>::Anywhere*>(wide);
}
template <class A, class T> inline typename Register<A>::Type widen(const T* from) {
    A wide[Register<A>::COUNT];
    for (int j = 0; j < Register<A>::COUNT; ++j) wide[j] = load<A>(from[j]);
    return *reinterpret_cast<const typename Register<A>::Anywhere*>(wide);
}
template <class A, class T> inline void narrow_to(T* to, int n, typename Register<A>::Type value) {
    for (int j = 0; j < n; ++j) store(to + j, static_cast<A>(value[j]));
}
template <class A, class T> inline void narrow_to(T* to, typename Register<A>::Type value) {
    A wide[Register<A>::COUNT];
    *reinterpret_cast<typename Register<A>::Anywhere*>(wide) = value;
    for (int j = 0; j < Register<A>::COUNT; ++j) store(to + j, wide[j]);
}

// Two registers, one after the other.
template <class A, class T>
inline void narrow_to(T* to, typename Register<A>::Type one, typename Register<A>::Type two) {
    narrow_to<A>(to, one);
    narrow_to<A>(to + Register<A>::COUNT, two);
}

#if defined(__AVX512F__)

// The first n <= 16. The forms of instructions that take all of them make some compilers warn of an undefined value.
inline __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1); }

inline __m512 float_of(__m256i bits, BFloat16) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_maskz_cvtepu16_epi32(first(16), bits), 16));
}
inline __m512 float_of(__m256i bits, Half) { return _mm512_maskz_cvtph_ps(first(16), bits); }

// bfloat16 in the upper halves, rounded to nearest, ties to even.
inline __m512i rounded(__m512 value) {
    const __m512i bits = _mm512_castps_si512(value);
    const __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
    const __m512i half = _mm512_mask_mov_epi32(_mm512_set1_epi32(0x7fff), odd, _mm512_set1_epi32(0x8000));
    const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    return _mm512_mask_or_epi32(_mm512_add_epi32(bits, half), nan, bits, _mm512_set1_epi32(0x400000));
}
inline __m256i bits_of(__m512 value, BFloat16) {
    return _mm512_maskz_cvtepi32_epi16(first(16), _mm512_srli_epi32(rounded(value), 16));
}
inline __m256i bits_of(__m512 value, Half) {
    return _mm512_maskz_cvtps_ph(first(16), value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

template <class T> inline __m512 widen16(const T* from) {
    return float_of(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)), T{});
}
template <class T> inline __m512 widen16(const T* from, int n, float rest) {
    const __m512 value = float_of(_mm256_maskz_loadu_epi16(first(n), from), T{});
    return _mm512_mask_mov_ps(_mm512_set1_ps(rest), first(n), value);
}
template <class T> inline void narrow16(T* to, __m512 value) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bits_of(value, T{}));
}
template <class T> inline void narrow16(T* to, int n, __m512 value) {
    _mm256_mask_storeu_epi16(to, first(n), bits_of(value, T{}));
}

template <> inline Register<float>::Type widen<float>(const float* from, int n, float rest) {
    return _mm512_mask_loadu_ps(_mm512_set1_ps(rest), first(n), from);
}
template <> inline Register<double>::Type widen<double>(const double* from, int n, double rest) {
    return _mm512_mask_loadu_pd(_mm512_set1_pd(rest), static_cast<__mmask8>(first(n)), from);
}
template <> inline void narrow_to<float>(float* to, int n, Register<float>::Type value) {
    _mm512_mask_storeu_ps(to, first(n), value);
}
template <> inline void narrow_to<double>(double* to, int n, Register<double>::Type value) {
    _mm512_mask_storeu_pd(to, static_cast<__mmask8>(first(n)), value);
}

#elif defined(__AVX2__)

inline __m256i first(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline __m256i first_wide(int n) { return _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3)); }

inline __m256 float_of(__m128i bits, BFloat16) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
inline __m256 float_of(__m128i bits, Half) { return _mm256_cvtph_ps(bits); }

// Rounds to nearest, ties to even.
inline __m128i bits_of(__m256 value, BFloat16) {
    const __m256i bits = _mm256_castps_si256(value), one = _mm256_set1_epi32(1);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), one);
    const __m256i even = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i all = _mm256_srli_epi32(_mm256_blendv_epi8(even, quiet, nan), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
}
inline __m128i bits_of(__m256 value, Half) {
    return _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

template <class T> inline __m256 widen16(const T* from) {
    return float_of(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)), T{});
}
template <class T> inline __m256 widen16(const T* from, int n, float rest) {
    T some[8] = {};
    for (int j = 0; j < n; ++j) some[j] = from[j];
    return _mm256_blendv_ps(_mm256_set1_ps(rest), widen16(some), _mm256_castsi256_ps(first(n)));
}
template <class T> inline void narrow16(T* to, __m256 value) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bits_of(value, T{}));
}
template <class T> inline void narrow16(T* to, int n, __m256 value) {
    T all[8];
    narrow16(all, value);
    for (int j = 0; j < n; ++j) to[j] = all[j];
}

template <> inline Register<float>::Type widen<float>(const float* from, int n, float rest) {
    return _mm256_blendv_ps(_mm256_set1_ps(rest), _mm256_maskload_ps(from, first(n)), _mm256_castsi256_ps(first(n)));
}
template <> inline Register<double>::Type widen<double>(const double* from, int n, double rest) {
    return _mm256_blendv_pd(_mm256_set1_pd(rest), _mm256_maskload_pd(from, first_wide(n)),
                            _mm256_castsi256_pd(first_wide(n)));
}
template <> inline void narrow_to<float>(float* to, int n, Register<float>::Type value) {
    _mm256_maskstore_ps(to, first(n), value);
}
template <> inline void narrow_to<double>(double* to, int n, Register<double>::Type value) {
    _mm256_maskstore_pd(to, first_wide(n), value);
}

#endif

template <> inline Register<float>::Type widen<float>(const float* from) {
    return *reinterpret_cast<const Register<float>::Anywhere*>(from);
}
template <> inline Register<double>::Type widen<double>(const double* from) {
    return *reinterpret_cast<const Register<double>::Anywhere*>(from);
}
template <> inline void narrow_to<float>(float* to, Register<float>::Type value) {
    *reinterpret_cast<Register<float>::Anywhere*>(to) = value;
}
template <> inline void narrow_to<double>(double* to, Register<double>::Type value) {
    *reinterpret_cast<Register<double>::Anywhere*>(to) = value;
}

#if defined(__AVX2__)
#define TRUENORM_SIXTEEN_BITS(T)                                                                           \
    template <> inline Register<float>::Type widen<float>(const T* from) { return widen16(from); }         \
    template <> inline Register<float>::Type widen<float>(const T* from, int n, float rest) {              \
        return widen16(from, n, rest);                                                                     \
    }                                                                                                      \
    template <> inline void narrow_to<float>(T * to, Register<float>::Type value) { narrow16(to, value); } \
    template <> inline void narrow_to<float>(T * to, int n, Register<float>::Type value) { narrow16(to, n, value); }
TRUENORM_SIXTEEN_BITS(BFloat16)
TRUENORM_SIXTEEN_BITS(Half)
#undef TRUENORM_SIXTEEN_BITS
#endif

#if defined(__AVX512F__)
// The upper halves of both are picked at once, which takes less than moving them down and packing each.
template <> inline void narrow_to<float>(BFloat16* to, Register<float>::Type one, Register<float>::Type two) {
    alignas(64) static constexpr std::uint16_t UPPER[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                                            23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                                            45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
    _mm512_storeu_si512(to, _mm512_permutex2var_epi16(rounded(one), _mm512_load_si512(UPPER), rounded(two)));
}
#endif

}  // namespace
}  // namespace truenorm
