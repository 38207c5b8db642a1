// A plan: the sizes and conventions of one normalization, and the checks of the arrays that its verbs take. No
// arithmetic.
#pragma once

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string>
#include <vector>

#include <nanobind/stl/pair.h>

#include "array.hpp"
#include "execute.hpp"
#include "gil.hpp"

namespace truenorm {

// The ragged arguments of one call, held while it runs.
struct RaggedBuffers {
    Array lengths, starts, valid, sample_weight;
};

// Arguments from Python, under their names there.
struct RaggedArgs {
    nb::handle lengths, starts, valid, sample_weight;
};
struct ForwardArgs {
    nb::handle x, y, moments, weight, bias;
    RaggedArgs ragged;
    bool keep_padding, given;
};
struct BackwardArgs {
    nb::handle x, dy, dx, moments, sums, weight, bias, dweight, dbias;
    RaggedArgs ragged;
    bool keep_padding, given, constant;
};

class Plan {
public:
    Plan(const std::string& layout, const std::vector<std::int64_t>& runs, std::int64_t sequences, std::int64_t extent,
         const std::string& dtype_name, bool center, int ddof, double eps, bool eps_outside,
         const std::string& activation) {
        if (runs.size() != 5) throw wrong("runs must be five sizes", runs.size());
        p.layout = layout == "columns"  ? Layout::columns
                   : layout == "rows"   ? Layout::rows
                   : layout == "planes" ? Layout::planes
                                        : throw wrong("layout must be 'columns', 'rows' or 'planes'", layout);
        bool known = false;
        for (const DtypeInfo& info : DTYPES)
            if (info.name && dtype_name == info.name) dtype = info.dtype, known = true;
        if (!known) throw wrong("dtype must be float32, float64, float16 or bfloat16", dtype_name);
        std::int64_t product = 1;
        for (std::int64_t size : runs) {
            if (size < 1) throw wrong("runs must be >= 1", size);
            constexpr std::int64_t most = std::int64_t{1} << 56;  // so that no count of bytes overflows
            if (__builtin_mul_overflow(product, size, &product) || product > most)
                throw nb::value_error("runs must have a product of at most 2^56.");
        }
        if (sequences < 1 || extent < 1) throw wrong("sequences and extent must be >= 1", std::min(sequences, extent));
        if (__builtin_mul_overflow(sequences, extent, &product))
            throw nb::value_error("sequences and extent must have a product below 2^63.");
        if (ddof != 0 && ddof != 1) throw wrong("ddof must be 0 or 1", ddof);
        if (!(eps >= 0) || std::isinf(eps)) throw wrong("eps must be finite and >= 0", eps);
        p.outer = runs[0];
        p.reduced = runs[1];
        p.kept = runs[2];
        p.channels = runs[3];
        p.positions = runs[4];
        p.sequences = sequences;
        p.extent = extent;
        p.center = center;
        p.ddof = ddof;
        p.eps = eps;
        p.eps_outside = eps_outside;
        if (!find_activation(activation.c_str(), p.activation))
            throw wrong("activation must be relu, gelu, silu, tanh or empty", activation);
        const bool fits = p.layout == Layout::columns  ? p.outer == 0 || sequences % p.outer == 0
                          : p.layout == Layout::planes ? sequences == p.outer * p.reduced && extent == p.positions
                                                       : p.outer == sequences * extent;
        if (!fits || (p.layout != Layout::planes && p.positions != 1) || (p.layout == Layout::rows && p.reduced != 1))
            throw nb::value_error("runs must fit the layout, sequences and extent.");
    }

    void measure(nb::handle x_, nb::handle moments_, const RaggedArgs& ragged_) const {
        Array x, moments;
        RaggedBuffers ragged;
        x.require(x_, "x", format(), false, Array::ANY);
        moments.require(moments_, "moments", "d", true, 3 * p.statistics());
        const CallParams call = prepare(x.size(), ragged, ragged_, false);
        apart({&moments}, {&x}, ragged);
        const GilRelease released;
        truenorm::measure(call, ValidRuns(call), dtype, {x.at<void>(), moments.at<Moments>()});
    }

    void forward(const ForwardArgs& args) const {
        Array x, y, moments, weight, bias;
        RaggedBuffers ragged;
        x.require(args.x, "x", format(), false, Array::ANY);
        y.require(args.y, "y", format(), true, x.size());
        moments.require(args.moments, "moments", "d", !args.given, 3 * p.statistics());
        weight.take(args.weight, "weight", FLOATS, false, p.width());
        bias.take(args.bias, "bias", FLOATS, false, p.width());
        const CallParams call = prepare(x.size(), ragged, args.ragged, args.keep_padding);
        apart({&y}, {&x, &moments, &weight, &bias}, ragged);
        if (!args.given) apart({&moments}, {&x, &weight, &bias}, ragged);
        const GilRelease released;
        truenorm::forward(call, ValidRuns(call), dtype,
                          {x.at<void>(), y.at<void>(), moments.at<Moments>(), args.given, weight.buffer(),
                           bias.buffer(), nullptr, nullptr});
    }

    void backward(const BackwardArgs& args) const {
        Array x, dy, dx, moments, weight, bias, sums, dweight, dbias;
        RaggedBuffers ragged;
        x.require(args.x, "x", format(), false, Array::ANY);
        dy.require(args.dy, "dy", format(), false, x.size());
        dx.take(args.dx, "dx", format(), true, x.size());
        moments.require(args.moments, "moments", "d", false, 3 * p.statistics());
        sums.require(args.sums, "sums", "d", !args.given, 2 * p.statistics());
        weight.take(args.weight, "weight", FLOATS, false, p.width());
        bias.take(args.bias, "bias", FLOATS, false, p.width());
        dweight.take(args.dweight, "dweight", FLOATS, true, p.width());
        dbias.take(args.dbias, "dbias", FLOATS, true, p.width());
        if (args.given && !dx) throw wrong("dx must be an array if sums are given", nb::none());
        const CallParams call = prepare(x.size(), ragged, args.ragged, args.keep_padding);
        apart({&dx, &dweight, &dbias}, {&x, &dy, &moments, &weight, &bias, &sums}, ragged);
        if (!args.given) apart({&sums}, {&x, &dy, &moments, &weight, &bias, &dweight, &dbias}, ragged);
        const GilRelease released;
        truenorm::backward(
            call, ValidRuns(call), dtype,
            {x.at<void>(), dy.at<void>(), dx.at<void>(), moments.at<Moments>(), args.constant, sums.at<Sums>(),
             args.given, weight.buffer(), bias.buffer(), dweight.buffer(), dbias.buffer(), nullptr});
    }

    const char* format() const { return dtype_info(dtype).letter; }
    std::int64_t sequences() const { return p.sequences; }
    std::int64_t extent() const { return p.extent; }

    // The parameters for a whole x, for the first steps of each sequence, or for the valid rows; lengths are from 0 to
    // the extent.
    CallParams whole(const std::int64_t* lengths, const std::uint8_t* valid, bool keep_padding) const {
        CallParams call{p};
        call.rows = p.sequences * p.extent;
        call.lengths = lengths;
        call.valid = valid;
        call.keep_padding = keep_padding;
        return call;
    }

    // The parameters with the ragged arguments of one call, all of them checked. `ragged` holds their memory.
    CallParams prepare(std::int64_t elements, RaggedBuffers& ragged, const RaggedArgs& args, bool keep_padding) const {
        CallParams call{p};
        ragged.lengths.take(args.lengths, "lengths", INTEGERS, false, p.sequences);
        ragged.starts.take(args.starts, "starts", INTEGERS, false, p.sequences);
        call.rows = p.sequences * p.extent;
        if (ragged.starts) {
            if (p.layout != Layout::columns || !ragged.lengths)
                throw nb::value_error("starts need lengths, and a plan whose layout is columns.");
            call.rows = elements / p.width();
        }
        std::int64_t expected;
        if (__builtin_mul_overflow(call.rows, p.width(), &expected))
            throw nb::value_error("x must have less than 2^63 elements.");
        if (elements != expected) throw wrong("x must have " + std::to_string(expected) + " elements", elements);
        ragged.valid.take(args.valid, "valid", BOOLEANS, false, call.rows);
        ragged.sample_weight.take(args.sample_weight, "sample_weight", "d", false, call.rows);
        if (ragged.valid && ragged.lengths) throw nb::value_error("valid and lengths must not both be given.");
        call.lengths = ragged.lengths.at<const std::int64_t>();
        call.starts = ragged.starts.at<const std::int64_t>();
        call.valid = ragged.valid.at<const std::uint8_t>();
        call.sample_weight = ragged.sample_weight.at<const double>();
        call.keep_padding = keep_padding;
        std::int64_t end = 0;
        for (std::int64_t q = 0; call.lengths && q < p.sequences; ++q) {
            const std::int64_t length = call.lengths[q];
            if (call.starts) {
                if (call.starts[q] < end || length < 0 || length > call.rows - call.starts[q])
                    throw wrong("starts and lengths must ascend within the rows", std::pair(call.starts[q], length));
                end = call.starts[q] + length;
            } else if (length < 0 || length > p.extent) {
                throw wrong("lengths must be from 0 to " + std::to_string(p.extent), length);
            }
        }
        for (std::int64_t i = 0; call.sample_weight && i < call.rows; ++i)
            if (!(call.sample_weight[i] >= 0) || std::isinf(call.sample_weight[i]))
                throw wrong("sample_weight must be finite and >= 0", call.sample_weight[i]);
        return call;
    }

    Dtype dtype{};

private:
    NormParams p{};

    static void apart(std::initializer_list<const Array*> outputs, std::initializer_list<const Array*> inputs,
                      const RaggedBuffers& ragged) {
        for (auto one = outputs.begin(); one != outputs.end(); ++one) {
            for (const Array* other : inputs) (*one)->apart_from(*other);
            for (auto two = outputs.begin(); two != one; ++two) (*one)->apart_from(**two);
            for (const Array* other : {&ragged.lengths, &ragged.starts, &ragged.valid, &ragged.sample_weight})
                (*one)->apart_from(*other);
        }
    }
};

}  // namespace truenorm
