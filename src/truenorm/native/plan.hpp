// A plan: the sizes and conventions of one normalization, and the checks of the arrays that its verbs take. No
// arithmetic.
#pragma once

#include <cmath>
#include <initializer_list>
#include <string>
#include <vector>

#include "array.hpp"
#include "execute.hpp"

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
    nb::handle x, dy, dx, moments, sums, weight, dweight, dbias;
    RaggedArgs ragged;
    bool keep_padding, given, constant;
};

class Plan {
public:
    Plan(const std::string& layout, const std::vector<std::int64_t>& runs, std::int64_t sequences, std::int64_t extent,
         const std::string& dtype_name, bool center, int ddof, double eps, bool eps_outside) {
        if (runs.size() != 5) throw nb::value_error("runs: five sizes.");
        p.layout = layout == "columns"  ? Layout::columns
                   : layout == "rows"   ? Layout::rows
                   : layout == "planes" ? Layout::planes
                                        : throw nb::value_error("layout: columns, rows or planes.");
        bool known = false;
        for (const DtypeInfo& info : DTYPES)
            if (info.name && dtype_name == info.name) dtype = info.dtype, known = true;
        if (!known) throw nb::value_error("dtype: float32, float64, float16 or bfloat16.");
        std::int64_t product = 1;
        for (std::int64_t size : runs) {
            if (size < 1) throw nb::value_error("runs: sizes are >= 1.");
            constexpr std::int64_t most = std::int64_t{1} << 56;  // so that no count of bytes overflows
            if (__builtin_mul_overflow(product, size, &product) || product > most)
                throw nb::value_error("runs: too large.");
        }
        if (sequences < 1 || extent < 1) throw nb::value_error("sequences, extent: sizes are >= 1.");
        if (__builtin_mul_overflow(sequences, extent, &product)) throw nb::value_error("sequences, extent: too large.");
        if (ddof != 0 && ddof != 1) throw nb::value_error("ddof: 0 or 1.");
        if (!(eps >= 0) || std::isinf(eps)) throw nb::value_error("eps: finite and >= 0.");
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
        const bool fits = p.layout == Layout::columns  ? p.outer == 0 || sequences % p.outer == 0
                          : p.layout == Layout::planes ? sequences == p.outer * p.reduced && extent == p.positions
                                                       : p.outer == sequences * extent;
        if (!fits || (p.layout != Layout::planes && p.positions != 1) || (p.layout == Layout::rows && p.reduced != 1))
            throw nb::value_error("runs: do not fit the layout, the sequences and their extent.");
    }

    void measure(nb::handle x_, nb::handle moments_, const RaggedArgs& ragged_) const {
        Array x, moments;
        RaggedBuffers ragged;
        x.take(x_, "x", format(), false);
        moments.take(moments_, "moments", "d", true);
        if (!x) throw nb::value_error("x: an array, got None.");
        const CallParams call = prepare(x.size(), ragged, ragged_, false);
        if (!moments) throw nb::value_error("moments: an array, got None.");
        moments.has("moments", 3 * call.statistics());
        apart({&moments}, {&x}, ragged);
        nb::gil_scoped_release released;
        truenorm::measure(call, ValidRuns(call), dtype, {x.at<void>(), moments.at<Moments>()});
    }

    void forward(const ForwardArgs& args) const {
        Array x, y, moments, weight, bias;
        RaggedBuffers ragged;
        x.take(args.x, "x", format(), false);
        y.take(args.y, "y", format(), true);
        moments.take(args.moments, "moments", "d", !args.given);
        weight.take(args.weight, "weight", FLOATS, false);
        bias.take(args.bias, "bias", FLOATS, false);
        if (!x) throw nb::value_error("x: an array, got None.");
        const CallParams call = prepare(x.size(), ragged, args.ragged, args.keep_padding);
        if (!y || !moments) throw nb::value_error("y, moments: arrays, got None.");
        y.has("y", x.size());
        moments.has("moments", 3 * call.statistics());
        weight.has("weight", call.width());
        bias.has("bias", call.width());
        apart({&y}, {&x, &moments, &weight, &bias}, ragged);
        if (!args.given) apart({&moments}, {&x, &weight, &bias}, ragged);
        nb::gil_scoped_release released;
        truenorm::forward(
            call, ValidRuns(call), dtype,
            {x.at<void>(), y.at<void>(), moments.at<Moments>(), args.given, weight.buffer(), bias.buffer()});
    }

    void backward(const BackwardArgs& args) const {
        Array x, dy, dx, moments, weight, sums, dweight, dbias;
        RaggedBuffers ragged;
        x.take(args.x, "x", format(), false);
        dy.take(args.dy, "dy", format(), false);
        dx.take(args.dx, "dx", format(), true);
        moments.take(args.moments, "moments", "d", false);
        weight.take(args.weight, "weight", FLOATS, false);
        sums.take(args.sums, "sums", "d", !args.given);
        dweight.take(args.dweight, "dweight", FLOATS, true);
        dbias.take(args.dbias, "dbias", FLOATS, true);
        if (!x) throw nb::value_error("x: an array, got None.");
        const CallParams call = prepare(x.size(), ragged, args.ragged, args.keep_padding);
        if (!moments || !dy || !sums) throw nb::value_error("moments, dy, sums: arrays, got None.");
        if (args.given && !dx) throw nb::value_error("dx: an array, got None.");
        dy.has("dy", x.size());
        dx.has("dx", x.size());
        moments.has("moments", 3 * call.statistics());
        weight.has("weight", call.width());
        sums.has("sums", 2 * call.statistics());
        dweight.has("dweight", call.width());
        dbias.has("dbias", call.width());
        apart({&dx, &dweight, &dbias}, {&x, &dy, &moments, &weight, &sums}, ragged);
        if (!args.given) apart({&sums}, {&x, &dy, &moments, &weight, &dweight, &dbias}, ragged);
        nb::gil_scoped_release released;
        truenorm::backward(call, ValidRuns(call), dtype,
                           {x.at<void>(), dy.at<void>(), dx.at<void>(), moments.at<Moments>(), args.constant,
                            sums.at<Sums>(), args.given, weight.buffer(), dweight.buffer(), dbias.buffer()});
    }

    const char* format() const { return dtype_info(dtype).letter; }
    std::int64_t sequences() const { return p.sequences; }
    std::int64_t extent() const { return p.extent; }

    // The parameters for a whole x, or for the first steps of each sequence; lengths are from 0 to the extent.
    CallParams whole(const std::int64_t* lengths, bool keep_padding) const {
        CallParams call{p};
        call.rows = p.sequences * p.extent;
        call.lengths = lengths;
        call.keep_padding = keep_padding;
        return call;
    }

    // The parameters with the ragged arguments of one call, all of them checked. `ragged` holds their memory.
    CallParams prepare(std::int64_t elements, RaggedBuffers& ragged, const RaggedArgs& args, bool keep_padding) const {
        CallParams call{p};
        ragged.lengths.take(args.lengths, "lengths", INTEGERS, false);
        ragged.starts.take(args.starts, "starts", INTEGERS, false);
        ragged.valid.take(args.valid, "valid", BOOLEANS, false);
        ragged.sample_weight.take(args.sample_weight, "sample_weight", "d", false);
        call.rows = p.sequences * p.extent;
        if (ragged.starts) {
            if (p.layout != Layout::columns || !ragged.lengths || p.width() == 0)
                throw nb::value_error("starts: with lengths, for columns only.");
            call.rows = elements / p.width();
        }
        std::int64_t expected;
        if (__builtin_mul_overflow(call.rows, p.width(), &expected)) throw nb::value_error("x: too large.");
        if (elements != expected)
            throw nb::value_error(
                ("x: " + std::to_string(expected) + " elements, got " + std::to_string(elements) + ".").c_str());
        ragged.lengths.has("lengths", p.sequences);
        ragged.starts.has("starts", p.sequences);
        ragged.valid.has("valid", call.rows);
        ragged.sample_weight.has("sample_weight", call.rows);
        if (ragged.valid && ragged.lengths) throw nb::value_error("valid, lengths: at most one of them.");
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
                    throw nb::value_error("starts, lengths: ascending, inside the rows.");
                end = call.starts[q] + length;
            } else if (length < 0 || length > p.extent) {
                throw nb::value_error("lengths: from 0 to the extent.");
            }
        }
        for (std::int64_t i = 0; call.sample_weight && i < call.rows; ++i)
            if (!(call.sample_weight[i] >= 0) || std::isinf(call.sample_weight[i]))
                throw nb::value_error("sample_weight: finite and >= 0.");
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
