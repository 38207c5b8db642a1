// Vectors of one instruction set: `Lanes`, a fixed number of bytes whatever the width of a register, and loops over
// them.
//
// Only `loops.inc` includes this file, and everything in it is local: each instruction set compiles its own copy. A set
// between two of these (AVX without AVX2) uses the narrower vectors.
#pragma once

#include <cstdint>
#include <utility>

#include "conversions.hpp"

#define RESTRICT __restrict__
#define INLINE __attribute__((always_inline))

namespace truenorm {
namespace {

// The count of a whole vector, where a number would be that of its last part.
struct Whole {};

// BYTES / sizeof(A) numbers side by side, in as many registers as that takes.
template <class A, int BYTES> struct Lanes {
    using Vector = typename Register<A>::Type;
    static constexpr int WIDTH = Register<A>::COUNT, PARTS = BYTES / VECTOR;
    static constexpr int COUNT = BYTES / static_cast<int>(sizeof(A));
    Vector part[PARTS];

    static Lanes all(A value) {
        return each([&](int) INLINE { return Vector{} + value; });
    }

    // COUNT numbers in the type of the lanes.
    template <class T> static Lanes from(const T* values, Whole = {}, A = 0) {
        return each([&](int k) INLINE { return widen<A>(values + k * WIDTH); });
    }
    // n < COUNT numbers, followed by `rest`. Memory after them is not read.
    template <class T> static Lanes from(const T* values, std::int64_t n, A rest = 0) {
        return each([&](int k) INLINE {
            const std::int64_t left = n - k * WIDTH;
            return left >= WIDTH ? widen<A>(values + k * WIDTH)
                   : left > 0    ? widen<A>(values + k * WIDTH, static_cast<int>(left), rest)
                                 : Vector{} + rest;
        });
    }

    template <class T> void to(T* values, Whole = {}) const {
        if constexpr (PARTS == 1) narrow_to<A>(values, part[0]);
        else
            for (int k = 0; k < PARTS; k += 2) narrow_to<A>(values + k * WIDTH, part[k], part[k + 1]);
    }
    template <class T> void to(T* values, std::int64_t n) const {
        for (int k = 0; k < PARTS; ++k) {
            const std::int64_t left = n - k * WIDTH;
            if (left >= WIDTH) narrow_to<A>(values + k * WIDTH, part[k]);
            else if (left > 0) narrow_to<A>(values + k * WIDTH, static_cast<int>(left), part[k]);
        }
    }

    // One register: the upper half of them is added to the lower half until one is left.
    Vector folded() const {
        Lanes sums = *this;
        for (int half = PARTS / 2; half > 0; half /= 2)
            for (int k = 0; k < half; ++k) sums.part[k] += sums.part[k + half];
        return sums.part[0];
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
    friend Lanes operator+(const Lanes& one, A two) {
        return each([&](int k) INLINE { return one.part[k] + two; });
    }
    friend Lanes operator-(const Lanes& one, A two) {
        return each([&](int k) INLINE { return one.part[k] - two; });
    }
    friend Lanes operator*(const Lanes& one, A two) {
        return each([&](int k) INLINE { return one.part[k] * two; });
    }

private:
    template <class Part> INLINE static Lanes each(Part of) {
        Lanes lanes;
        for (int k = 0; k < PARTS; ++k) lanes.part[k] = of(k);
        return lanes;
    }
};

// One sum at a time uses many lanes, to hide the latency of an addition; several sums at a time fit the registers with
// few.
template <class A> using Many = Lanes<A, 128>;
template <class A> using Few = Lanes<A, 64>;

// body(V{}) with the lanes for sums of n elements one at a time. Those of a few elements have the same bits in both.
template <class A, class Body> INLINE inline void with_lanes(std::int64_t n, Body body) {
    if (n <= Few<A>::COUNT) body(Few<A>{});
    else body(Many<A>{});
}

// ---- the totals of several registers ----

template <class A> using Index = std::conditional_t<sizeof(A) == 8, std::int64_t, std::int32_t>;

// Both registers consist of pieces of `length` lanes. The lower halves of these pieces of one and of two in turn, plus
// their upper halves.
template <class A, int length, int... lane>
inline typename Register<A>::Type fold_pair(typename Register<A>::Type one, typename Register<A>::Type two,
                                            std::integer_sequence<int, lane...>) {
    constexpr int half = length / 2, count = Register<A>::COUNT;
#define TRUENORM_LANE(upper) (lane / length * length + lane % half + (lane % length < half ? 0 : count) + upper)
#if defined(__clang__)
    return __builtin_shufflevector(one, two, TRUENORM_LANE(0)...) +
           __builtin_shufflevector(one, two, TRUENORM_LANE(half)...);
#else
    typedef Index<A> Places __attribute__((vector_size(VECTOR)));
    return __builtin_shuffle(one, two, Places{TRUENORM_LANE(0)...}) +
           __builtin_shuffle(one, two, Places{TRUENORM_LANE(half)...});
#endif
#undef TRUENORM_LANE
}

template <class A, int length> inline void fold_all(typename Register<A>::Type* registers) {
    for (int i = 0; i < length / 2; ++i)
        registers[i] = fold_pair<A, length>(registers[i], registers[i + length / 2],
                                            std::make_integer_sequence<int, Register<A>::COUNT>{});
    if constexpr (length > 2) fold_all<A, length / 2>(registers);
}

// sums[i]: all lanes of register i, the upper half added to the lower half until one lane is left. All registers at
// once: a step of one takes as long. sums has room for a multiple of COUNT numbers.
template <class A> inline void totals(const typename Register<A>::Type* registers, int n, A* sums) {
    constexpr int COUNT = Register<A>::COUNT;
    for (int i = 0; i < n; i += COUNT) {
        typename Register<A>::Type some[COUNT] = {};
        for (int j = 0; j < COUNT && i + j < n; ++j) some[j] = registers[i + j];
        fold_all<A, COUNT>(some);
        narrow_to<A>(sums + i, some[0]);
    }
}

// ---- loops ----

// Prefetches the cache lines of n elements. Any address is allowed: nothing is read.
template <class T> inline void fetch(const T* from, std::int64_t n) {
    for (std::int64_t i = 0; i < n; i += 64 / static_cast<std::int64_t>(sizeof(T))) __builtin_prefetch(from + i, 0, 2);
}

// body(i, count) for n elements: count is Whole for the V::COUNT elements from i on, and a number for the last of them.
template <class V, class Body> INLINE inline void in_lanes(std::int64_t n, Body body) {
    std::int64_t i = 0;
    for (; i + V::COUNT <= n; i += V::COUNT) body(i, Whole{});
    if (i < n) body(i, n - i);
}

// body(V{}, i, count) for n elements that do not depend on each other: the same, with as many lanes as there are
// elements left.
template <class A, class Body> INLINE inline void in_wide_lanes(std::int64_t n, Body body) {
    std::int64_t i = 0;
    for (; i + Many<A>::COUNT <= n; i += Many<A>::COUNT) body(Many<A>{}, i, Whole{});
    if (i + Few<A>::COUNT <= n) body(Few<A>{}, i, Whole{}), i += Few<A>::COUNT;
    if (i < n) body(Few<A>{}, i, n - i);
}

}  // namespace
}  // namespace truenorm
