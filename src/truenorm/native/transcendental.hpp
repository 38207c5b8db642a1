// Activations and their derivatives, a register at a time.
//
//   relu  max(z, 0)       silu  z * s, s = 1 / (1 + exp(-z))       tanh  tanh(z)       gelu  z * P(z)
//
// P is the normal distribution, (1 + erf(z / sqrt(2))) / 2. All of them need exp at numbers <= 0 alone, which does not
// overflow. It uses additions, multiplications, divisions and shifts, which round alike on every instruction set.
// Values are within 5 units in the last place, unless they are next to underflow; derivatives, which are differences
// near their zeros, within 2.5 machine epsilons: tests/native/test_activations.py.
#pragma once

#include <cstdint>

#include "activation.hpp"
#include "simd.hpp"

namespace truenorm {
namespace {

template <class A> struct Constants;

template <> struct Constants<float> {
    using Bits = std::uint32_t;
    static constexpr Bits SIGN = 0x80000000u, HIGH = 0xfffff000u;  // HIGH: half of the mantissa, with an exact square
    static constexpr int MANTISSA = 23, BIAS = 127, EXTRA = 64, TERMS = 7;
    static constexpr float LOG2E = 0x1.715476p0f, ROUND = 0x1.8p23f, LEAST = -104.0f;  // exp(LEAST) is 0
    static constexpr float LN2 = 0x1.62e4p-1f, LN2_REST = 0x1.7f7d1cp-20f;             // LN2 * n is exact
    static constexpr float FAR = 15.0f;                                                // P(-FAR) is 0
    static constexpr float CENTER = 4.0f;
    static constexpr float TAIL[] = {0.4720532064f,    -0.09670346798f,  0.01399963659f,   0.0286000328f,
                                     -0.03219781535f,  0.01793944948f,   -0.005002140853f, -0.0002999187613f,
                                     0.0006908448556f, -6.673718492e-5f, -7.437454417e-5f};
};

template <> struct Constants<double> {
    using Bits = std::uint64_t;
    static constexpr Bits SIGN = 0x8000000000000000u, HIGH = 0xfffffffff8000000u;
    static constexpr int MANTISSA = 52, BIAS = 1023, EXTRA = 100, TERMS = 14;
    static constexpr double LOG2E = 0x1.71547652b82fep0, ROUND = 0x1.8p52, LEAST = -746.0;
    static constexpr double LN2 = 0x1.62e42feep-1, LN2_REST = 0x1.a39ef35793c76p-33;
    static constexpr double FAR = 40.0;
    static constexpr double CENTER = 5.0;
    static constexpr double TAIL[] = {
        0.461515829850037776,    -0.0915522818340089246, 0.0310303684259628781,   0.0100023523852176505,
        -0.0264010429662693083,  0.0245369632440467495,  -0.0151704154032234904,  0.00652200066240866966,
        -0.00167607233803663018, 7.79164151574781758e-6, 0.000182334111089481861, -0.0000536078054242355929,
        -9.89599384223788689e-6, 9.06057008481061835e-6, -7.05169600202779627e-8, -1.30910508427312225e-6,
        1.27942513889622009e-7,  1.98731815188690663e-7, -2.59871123950372811e-8, -3.32883619092777979e-8,
        3.01614719805219617e-9,  5.6997771378686386e-9,  2.17390162416741907e-10, -7.02796711534144707e-10,
        -1.5850740312377902e-10};
};

// One register of numbers of type A.
template <class A> struct Numbers : Constants<A> {
    using C = Constants<A>;
    using V = typename Register<A>::Type;
    typedef typename C::Bits Bits __attribute__((vector_size(VECTOR)));

    INLINE static V choose(Bits where, V one, V other) { return (V)((where & (Bits)one) | (~where & (Bits)other)); }
    INLINE static V size(V z) { return (V)((Bits)z & ~C::SIGN); }
    INLINE static V at_least(A limit, V z) { return choose((Bits)(z < limit), V{} + limit, z); }  // NaN stays NaN
    INLINE static V at_most(A limit, V z) { return choose((Bits)(z > limit), V{} + limit, z); }

    static constexpr A one_over_factorial(int k) {
        double product = 1;
        for (; k > 1; --k) product *= k;
        return static_cast<A>(1 / product);
    }

    // exp(x) = (1 + rest) * 2^n. Powers down to the smallest number are multiplied by in two steps.
    struct Power {
        V rest, scale;

        INLINE V times(V factor) const {
            constexpr A small = C::EXTRA == 64 ? A(0x1p-64) : A(0x1p-100);
            return (factor * scale) * small;
        }
        INLINE V exp() const { return times(rest + A(1)); }
        INLINE V expm1() const { return times(rest) + (times(V{} + A(1)) - A(1)); }
    };

    // x <= 0; more: what x is off by, much smaller.
    INLINE static Power power(V x, V more = V{}) {
        x = at_least(C::LEAST, x);
        const V rounded = x * C::LOG2E + C::ROUND, n = rounded - C::ROUND;
        const V r = ((x - n * C::LN2) - n * C::LN2_REST) + more;
        // exp(r) - 1 = r + r^2 / 2! + r^3 / 3! + ...
        V sum = V{} + one_over_factorial(C::TERMS);
        for (int k = C::TERMS - 1; k > 1; --k) sum = sum * r + one_over_factorial(k);
        const Bits exponent = (Bits)rounded - (Bits)(V{} + C::ROUND) + (C::BIAS + C::EXTRA);
        return {r + r * r * sum, (V)(exponent << C::MANTISSA)};
    }

    // silu: s and 1 - s, both without cancellation.
    struct Sigmoid {
        V s, other;

        INLINE explicit Sigmoid(V z) {
            const V e = power(-size(z)).exp(), large = A(1) / (e + A(1)), small = e * large;
            const Bits negative = (Bits)(z < A(0));
            s = choose(negative, small, large);
            other = choose(negative, large, small);
        }
    };

    // gelu: P, and its derivative, the density.
    struct Normal {
        V p, density;

        INLINE explicit Normal(V z) {
            const V a = at_most(C::FAR, size(z)), high = (V)((Bits)a & C::HIGH);
            // exp(-a^2 / 2), with a^2 in two parts: what its rounding is off by would be multiplied by a^2.
            const V e = power(high * high * A(-0.5), (a - high) * (a + high) * A(-0.5)).exp();
            // P(-a) / e falls smoothly from 1/2 to about 0.4 / a: a polynomial after division by 1 + a.
            const V t = (a - C::CENTER) / (a + C::CENTER);
            constexpr int degree = sizeof(C::TAIL) / sizeof(A) - 1;
            V tail = V{} + C::TAIL[degree];
            for (int k = degree - 1; k >= 0; --k) tail = tail * t + C::TAIL[k];
            tail = e * tail / (a + A(1));
            p = choose((Bits)(z < A(0)), tail, A(1) - tail);
            density = e * A(0.39894228040143267794);
        }
    };

    INLINE static V relu(V z) { return choose((Bits)(z < A(0)), V{}, z); }
    INLINE static V gelu(V z) { return z * Normal(z).p; }
    INLINE static V silu(V z) { return z * Sigmoid(z).s; }
    INLINE static V tanh(V z) {
        const V m = power(size(z) * A(-2)).expm1();
        return (V)((Bits)(-m / (m + A(2))) | ((Bits)z & C::SIGN));
    }

    // dy times the derivative at z.
    INLINE static V through_relu(V dy, V z) { return choose((Bits)(z <= A(0)), V{}, dy); }
    INLINE static V through_gelu(V dy, V z) {
        const Normal normal(z);
        return dy * (normal.p + z * normal.density);
    }
    INLINE static V through_silu(V dy, V z) {
        const Sigmoid sigmoid(z);
        return dy * (sigmoid.s * (z * sigmoid.other + A(1)));
    }
    INLINE static V through_tanh(V dy, V z) {  // 1 - tanh^2
        const V e = power(size(z) * A(-2)).exp(), sum = e + A(1);
        return dy * (e * A(4) / (sum * sum));
    }
};

// z[i] = of(z[i])
template <class A, class T, class Of> inline void in_place(T* RESTRICT z, std::int64_t n, Of of) {
    using V = Lanes<A, VECTOR>;
    in_lanes<V>(n, [&](std::int64_t i, auto count) INLINE {
        V lanes = V::from(z + i, count);
        lanes.part[0] = of(lanes.part[0]);
        lanes.to(z + i, count);
    });
}

// z[i] = of(dy[i], z[i])
template <class A, class T, class Of> inline void in_place(const T* RESTRICT dy, T* RESTRICT z, std::int64_t n, Of of) {
    using V = Lanes<A, VECTOR>;
    in_lanes<V>(n, [&](std::int64_t i, auto count) INLINE {
        V lanes = V::from(z + i, count);
        lanes.part[0] = of(V::from(dy + i, count).part[0], lanes.part[0]);
        lanes.to(z + i, count);
    });
}

template <class T, class A> void activate(Activation kind, T* z, std::int64_t n) {
    using N = Numbers<A>;
    using V = typename N::V;
    switch (kind) {
        case Activation::none: return;
        case Activation::relu: return in_place<A>(z, n, [](V one) INLINE { return N::relu(one); });
        case Activation::gelu: return in_place<A>(z, n, [](V one) INLINE { return N::gelu(one); });
        case Activation::silu: return in_place<A>(z, n, [](V one) INLINE { return N::silu(one); });
        case Activation::tanh: return in_place<A>(z, n, [](V one) INLINE { return N::tanh(one); });
    }
}

template <class T, class A> void derive(Activation kind, const T* dy, T* z, std::int64_t n) {
    using N = Numbers<A>;
    using V = typename N::V;
    switch (kind) {
        case Activation::none: return;
        case Activation::relu: return in_place<A>(dy, z, n, [](V g, V one) INLINE { return N::through_relu(g, one); });
        case Activation::gelu: return in_place<A>(dy, z, n, [](V g, V one) INLINE { return N::through_gelu(g, one); });
        case Activation::silu: return in_place<A>(dy, z, n, [](V g, V one) INLINE { return N::through_silu(g, one); });
        case Activation::tanh: return in_place<A>(dy, z, n, [](V g, V one) INLINE { return N::through_tanh(g, one); });
    }
}

// to[i] = one[i] + two[i]; `to` may be one of them.
template <class T, class A> void add(const T* one, const T* two, T* to, std::int64_t n) {
    using V = Few<A>;
    in_lanes<V>(n, [&](std::int64_t i, auto count)
                       INLINE { (V::from(one + i, count) + V::from(two + i, count)).to(to + i, count); });
}

}  // namespace
}  // namespace truenorm
