// The coefficients of neighbouring columns or planes, in the type of the loops.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>

#include "moments.hpp"

namespace truenorm {

// Coefficients of w columns, in memory of a `Tiles`.
template <class A> struct Tile {
    A *hi, *lo, *scale, *bias, *through_mean, *through_var;
    A* weighted;        // rstd * weight, if scale is rstd alone
    bool fits = true;   // whether A holds them all
    bool exact = true;  // whether `hi` is all of the means, and `lo` is 0

    // lo for the loops, which save its subtraction if there is none.
    const A* low() const { return exact ? nullptr : lo; }

    void center(const double* mean, std::int64_t w) {
        fits &= loops<float, A>().split(mean, w, hi, lo);
        exact = exact && std::all_of(lo, lo + w, [](A rest) { return rest == 0; });
    }
    void set(A* to, const double* values, std::int64_t w) { fits &= loops<float, A>().product(values, nullptr, w, to); }
    void multiply(A* to, const double* factor, const double* by, std::int64_t w) {
        fits &= loops<float, A>().product(factor, by, w, to);
    }

    Coefficients<A> coefficients() const { return {hi, low(), scale, through_mean, through_var}; }

    // From column c on.
    Tile part(std::int64_t c) const {
        return {hi + c, lo + c, scale + c, bias + c, through_mean + c, through_var + c, weighted + c, fits, exact};
    }
};

// The memory of `count` tiles of w columns each.
template <class A> class Tiles {
public:
    Tiles(std::int64_t count, std::int64_t w)
        : width((w + ALIGNED - 1) / ALIGNED * ALIGNED),
          memory(static_cast<A*>(::operator new(static_cast<std::size_t>(count * width * ARRAYS) * sizeof(A), LINES))) {
    }

    Tile<A> operator[](std::int64_t i) const {
        A* const at = memory.get() + i * width * ARRAYS;
        return {at, at + width, at + 2 * width, at + 3 * width, at + 4 * width, at + 5 * width, at + 6 * width};
    }

private:
    static constexpr std::int64_t ARRAYS = 7;
    static constexpr std::align_val_t LINES{64};
    static constexpr std::int64_t ALIGNED = 64 / static_cast<std::int64_t>(sizeof(A));
    struct Free {
        void operator()(A* memory) const { ::operator delete(memory, LINES); }
    };
    std::int64_t width;
    std::unique_ptr<A[], Free> memory;
};

// A tile of the w columns from c on. fill(part, c, w) fills at most TILE of them.
template <class A, class Fill> Tile<A> filled(const Tile<A>& all, std::int64_t c, std::int64_t w, Fill fill) {
    Tile<A> tile = all;
    for (std::int64_t i = 0; i < w; i += TILE) {
        Tile<A> part = all.part(i);
        fill(part, c + i, w - i < TILE ? static_cast<int>(w - i) : TILE);
        tile.fits &= part.fits;
        tile.exact &= part.exact;
    }
    return tile;
}

// use(tile) with the coefficients of w columns from c on, in A if it holds them all, else in double.
template <class A, class Fill, class Use>
void with_tile(bool narrow, std::int64_t c, std::int64_t w, Fill fill, Use use) {
    if (narrow && sizeof(A) != sizeof(double)) {
        const Tiles<A> memory(1, w);
        const Tile<A> tile = filled(memory[0], c, w, fill);
        if (tile.fits) return use(tile);
    }
    const Tiles<double> memory(1, w);
    use(filled(memory[0], c, w, fill));
}

}  // namespace truenorm
