// Activations and their derivatives, a register at a time.
//
//   relu  max(z, 0)       silu  z * s, s = e^z / (1 + e^z)       tanh  tanh(z)       gelu  z * P(z)
//
// P is the normal distribution, (1 + erf(z / sqrt(2))) / 2. Each of them takes one exp and one division. They use
// additions, multiplications, divisions and shifts, which round alike on every instruction set. Values are within 5
// units in the last place, unless they are next to underflow; derivatives, which are differences near their zeros,
// within 2.5 machine epsilons: tests/native/test_activations.py.
#pragma once

#include <cstdint>

#include "activation.hpp"
#include "simd.hpp"

namespace truenorm {
namespace {

// exp(x) is computed times LARGE, so that it can become the smallest number in one step, at the end.
//
//   EXP    exp(r) = 1 + r + r^2 (EXP[0] + EXP[1] r + ...), |r| <= log(2) / 2
//   TAIL   P(-a) exp(a^2 / 2) (a + CENTER) = TAIL[0] + TAIL[1] t + ..., 0 <= a <= FAR,
//          with t = (a - CENTER) / (a + CENTER) = 2 a / (a + CENTER) - 1
//
// Both were fitted for the least relative error: below 1e-8, and 1e-17 in double.
template <class A> struct Constants;

template <> struct Constants<float> {
    using Bits = std::uint32_t;
    static constexpr Bits SIGN = 0x80000000u, HIGH = 0xfffff000u;  // HIGH: half of the mantissa, with an exact square
    static constexpr int MANTISSA = 23;
    static constexpr float LARGE = 0x1p64f, SMALL = 0x1p-64f;
    static constexpr float LOG2E = 0x1.715476p0f, ROUND = 0x1.8p23f + 64 + 127;  // LARGE, and the exponents' bias
    static constexpr float LN2 = 0x1.62e4p-1f, LN2_REST = 0x1.7f7d1cp-20f;       // LN2 * n is exact
    static constexpr float LEAST = -104.0f, MOST = 25.0f;  // exp(LEAST) is 0, 1 + MOST exp(-MOST) is 1
    static constexpr float FAR = 15.0f;                    // P(-FAR) is 0
    static constexpr float EXP[] = {0.50000000937f, 0.16666518838f, 0.041666209857f, 0.0083688882168f,
                                    0.0013950252036f};
    static constexpr float CENTER = 4.0f;
    static constexpr float TAIL[] = {0.7552851355f,    -0.6078965848f,   0.3871369002f,    -0.1865235547f,
                                     0.0604037062f,    -0.007524489586f, -0.003511247266f, 0.00156883767f,
                                     0.0001762702249f, -0.0001334631992f};
};

template <> struct Constants<double> {
    using Bits = std::uint64_t;
    static constexpr Bits SIGN = 0x8000000000000000u, HIGH = 0xfffffffff8000000u;
    static constexpr int MANTISSA = 52;
    static constexpr double LARGE = 0x1p100, SMALL = 0x1p-100;
    static constexpr double LOG2E = 0x1.71547652b82fep0, ROUND = 0x1.8p52 + 100 + 1023;
    static constexpr double LN2 = 0x1.62e42feep-1, LN2_REST = 0x1.a39ef35793c76p-33;
    static constexpr double LEAST = -746.0, MOST = 50.0;
    static constexpr double FAR = 39.0;
    static constexpr double EXP[] = {0.50000000000000126721,   0.16666666666666690563,   0.041666666666516234163,
                                     0.0083333333333122218596, 0.0013888888946778255637, 0.00019841269907222921084,
                                     2.4801490196999522356e-5, 2.7557224878017345435e-6, 2.7631188956167283e-7,
                                     2.5115275029781367929e-8};
    static constexpr double CENTER = 5.0;
    static constexpr double TAIL[] = {
        0.7691930497500629554,     -0.6653825028900567889,   0.4953056159699774505,      -0.313533156671295474,
        0.1650203661703294259,     -0.06911863870659147121,  0.02079506680099956591,     -0.00299337676638858612,
        -0.0007978694096632022953, 0.0005448990306322552688, -0.00005937566517901362228, -0.00004976263972248047429,
        0.00001668100778678123729, 3.980330520077954625e-6,  -2.768883345615850207e-6,   -3.354128502132714607e-7,
        4.32806758130096554e-7,    4.070397974444544691e-8,  -6.598285265169407984e-8,   -8.154166867814155294e-9,
        7.965054764213657656e-9,   1.383965653432709326e-9,  -3.219027571130331719e-10};
};

// One register of numbers of type A.
template <class A> struct Numbers : Constants<A> {
    using C = Constants<A>;
    using V = typename Register<A>::Type;
    typedef typename C::Bits Bits __attribute__((vector_size(VECTOR)));

    INLINE static V size(V z) { return (V)((Bits)z & ~C::SIGN); }
    INLINE static V at_least(A limit, V z) { return limit > z ? V{} + limit : z; }  // NaN stays NaN
    INLINE static V at_most(A limit, V z) { return limit < z ? V{} + limit : z; }

    // of[0] + of[1] x + of[2] x^2 + ...; even and odd powers by themselves, which halves the roundings in a row.
    template <int count> INLINE static V polynomial(const A (&of)[count], V x) {
        const V square = x * x;
        V sums[] = {V{} + of[count - 1], V{} + of[count - 2]};
        for (int k = count - 3; k >= 0; --k) {
            V& sum = sums[(count - 1 - k) % 2];
            sum = sum * square + of[k];
        }
        return sums[(count - 1) % 2] + sums[count % 2] * x;
    }

    // exp(x) * LARGE = (1 + rest) * scale, for x of which this is an ordinary number.
    struct Power {
        V rest, scale;

        INLINE explicit Power(V x) : Power(x, x, [](V r) INLINE { return r; }) {}
        // Of x + more, which no number holds.
        INLINE Power(V x, V more) : Power(x + more, x, [&](V r) INLINE { return r + more; }) {}
        INLINE V exp() const { return rest * scale + scale; }

    private:
        template <class Correct> INLINE Power(V about, V x, Correct correct) {
            const V rounded = about * C::LOG2E + C::ROUND, n = rounded - C::ROUND;
            const V r = correct((x - n * C::LN2) - n * C::LN2_REST);
            rest = r + r * r * polynomial(C::EXP, r);
            scale = (V)((Bits)rounded << C::MANTISSA);
        }
    };

    // tanh: exp(-2 |z|).
    INLINE static Power twice(V z) { return Power(at_least(C::LEAST, size(z) * A(-2))); }

    // gelu: of a = |z|, density = exp(-a^2 / 2) * LARGE, and P(-a) * LARGE = density * tail / (a + CENTER).
    struct Normal {
        V a, density, share, tail;  // share: a / (a + CENTER)

        INLINE explicit Normal(V z) : a(at_most(C::FAR, size(z))) {
            // a^2 in two parts: what its rounding is off by would be multiplied by a^2.
            const V high = (V)((Bits)a & C::HIGH);
            density = Power(high * high * A(-0.5), (a - high) * (a + high) * A(-0.5)).exp();
            share = a / (a + C::CENTER);
            tail = polynomial(C::TAIL, share * A(2) - A(1));
        }
    };

    INLINE static V relu(V z) { return at_least(0, z); }
    INLINE static V gelu(V z) {  // of z > 0: z - z P(-z)
        const Normal normal(z);
        return relu(z) - normal.density * (normal.share * normal.tail) * C::SMALL;
    }
    INLINE static V silu(V z) {
        z = at_least(C::LEAST, z);  // of -inf, 0
        const V e = Power(at_most(C::MOST, z)).exp();
        return z * (e / (e + C::LARGE));
    }
    INLINE static V tanh(V z) {
        const Power power = twice(z);
        const V m = (power.rest * power.scale + (power.scale - C::LARGE)) * C::SMALL;  // exp(-2 |z|) - 1
        return (V)((Bits)(-m / (m + A(2))) | ((Bits)z & C::SIGN));
    }

    // dy times the derivative at z.
    INLINE static V through_relu(V dy, V z) { return z <= A(0) ? V{} : dy; }
    INLINE static V through_gelu(V dy, V z) {  // P(z) + z * density(z)
        const Normal normal(z);
        const V tail = (A(1) - normal.share) * (normal.tail * (1 / C::CENTER));
        const V below = normal.density * (tail - normal.a * A(0.39894228040143267794)) * C::SMALL;  // at -a
        return dy * (z < A(0) ? below : A(1) - below);
    }
    INLINE static V through_silu(V dy, V z) {
        z = at_most(C::MOST, at_least(C::LEAST, z));  // beyond them it is 0 or 1 to the last digit
        const V e = Power(z).exp(), factor = A(1) / (e + C::LARGE);
        return dy * (e * factor * (z * (factor * C::LARGE) + A(1)));
    }
    INLINE static V through_tanh(V dy, V z) {  // 1 - tanh^2
        const V e = twice(z).exp() * C::SMALL, sum = e + A(1);
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
