// The parameters of a normalization: NormParams of a plan, CallParams of one call of it.
//
// An array is seen as the five runs of `layout.py`. Weight covers the runs `kept` and `channels`, which lie side by
// side: W = kept * channels columns. There are three layouts:
//
//   columns  x[row][W]                     row = (outer, reduced): one statistic for each outer and kept
//   rows     x[row][W]                     row = outer: each row has statistics of its own
//   planes   x[sequence][W][positions]     sequence = (outer, reduced)
//
// Positions are grouped in sequences: a row is step s of sequence q; in `planes` s runs along positions. Valid steps
// are given by lengths, by starts and lengths (packed rows), or by a mask.
#pragma once

#include <cstdint>

#include "activation.hpp"
#include "threads.hpp"

namespace truenorm {

enum class Layout { columns, rows, planes };

struct NormParams {
    Layout layout;
    std::int64_t outer, reduced, kept, channels, positions;
    std::int64_t sequences, extent;  // extent: steps of a sequence in memory
    bool center;
    int ddof;
    double eps;
    bool eps_outside;  // std + eps instead of sqrt(var + eps)
    Activation activation;

    std::int64_t width() const { return kept * channels; }
    std::int64_t statistics() const { return outer * kept; }
};

// Arrays are null if they are not given.
struct CallParams : NormParams {
    const std::int64_t* starts = nullptr;   // (sequences): the first row of each, packed
    const std::int64_t* lengths = nullptr;  // (sequences): how many of its first steps are valid
    const std::uint8_t* valid = nullptr;    // (sequences * extent)
    const double* sample_weight = nullptr;  // (rows)
    bool keep_padding = false;
    std::int64_t rows = 0;  // positions in memory, packed or padded
    Team* team = nullptr;   // the threads of the call

    std::int64_t elements() const { return rows * width(); }
};

}  // namespace truenorm
