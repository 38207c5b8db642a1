// A plan: the sizes and conventions of one normalization, and how arrays from Python meet the loops. No arithmetic.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "array.hpp"
#include "reference.hpp"

namespace truenorm {

enum class Dtype { float32, float64, float16, bfloat16 };

// A parameter or its gradient, as it is stored; null where there is none.
struct Stored {
    void* data;
    char letter;

    Stored(void* data, char letter) : data(data), letter(letter) {}
    Stored(const Array& array) : data(array.at<void>()), letter(array.letter) {}
    template <class T>
    T& element(std::size_t i) const {
        return static_cast<T*>(data)[i];
    }
};

// A parameter in double; `otherwise` where it is not given.
inline std::vector<double> widened(Stored from, std::int64_t size, double otherwise) {
    std::vector<double> to(static_cast<std::size_t>(size), otherwise);
    for (std::size_t i = 0; from.data && i < to.size(); ++i) {
        to[i] = from.letter == 'f'   ? load<double>(from.element<float>(i))
                : from.letter == 'e' ? load<double>(from.element<Half>(i))
                : from.letter == 'H' ? load<double>(from.element<Brain>(i))
                                     : from.element<double>(i);
    }
    return to;
}

// A parameter's gradient, rounded to what it is stored in; nowhere where it is not asked for.
inline void narrow(const std::vector<double>& from, Stored to) {
    for (std::size_t i = 0; to.data && i < from.size(); ++i) {
        if (to.letter == 'f') store(&to.element<float>(i), from[i]);
        else if (to.letter == 'e') store(&to.element<Half>(i), from[i]);
        else if (to.letter == 'H') store(&to.element<Brain>(i), from[i]);
        else to.element<double>(i) = from[i];
    }
}

// Which elements are real, for one call.
struct Real {
    Array lengths, starts, valid, sample_weight;
};

class Plan {
public:
    Plan(const std::string& layout, const std::vector<std::int64_t>& runs, std::int64_t sequences, std::int64_t extent,
         const std::string& dtype_name, bool center, int ddof, double eps, bool eps_outside) {
        if (runs.size() != 5) throw nb::value_error("runs: five sizes.");
        p.layout = layout == "columns" ? Layout::columns
                   : layout == "rows"  ? Layout::rows
                   : layout == "planes" ? Layout::planes
                                        : throw nb::value_error("layout: columns, rows or planes.");
        dtype = dtype_name == "float32"   ? Dtype::float32
                : dtype_name == "float64" ? Dtype::float64
                : dtype_name == "float16" ? Dtype::float16
                : dtype_name == "bfloat16" ? Dtype::bfloat16
                                           : throw nb::value_error("dtype: float32, float64, float16 or bfloat16.");
        std::int64_t product = 1;
        for (std::int64_t size : runs) {
            if (size < 1) throw nb::value_error("runs: sizes are >= 1.");
            constexpr std::int64_t most = std::int64_t{1} << 56;  // so that no count of bytes overflows
            if (__builtin_mul_overflow(product, size, &product) || product > most) throw nb::value_error("runs: too large.");
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
        const bool fits = p.layout == Layout::columns ? p.outer == 0 || sequences % p.outer == 0
                          : p.layout == Layout::planes ? sequences == p.outer * p.reduced && extent == p.positions
                                                       : p.outer == sequences * extent;
        if (!fits || (p.layout != Layout::planes && p.positions != 1) || (p.layout == Layout::rows && p.reduced != 1))
            throw nb::value_error("runs: do not fit the layout, the sequences and their extent.");
    }

    void measure(nb::handle x_, nb::handle moments_, nb::handle lengths_, nb::handle starts_, nb::handle valid_,
                 nb::handle sample_weight_) const {
        Array x, found;
        Real real;
        x.take(x_, "x", format(), false);
        found.take(moments_, "moments", "d", true);
        if (!x) throw nb::value_error("x: an array, got None.");
        Problem call = prepare(x.size(), real, lengths_, starts_, valid_, sample_weight_, false);
        if (!found) throw nb::value_error("moments: an array, got None.");
        found.has("moments", 3 * call.statistics());
        apart({&found}, {&x}, real);
        nb::gil_scoped_release released;
        Team team(call.elements());
        call.team = &team;
        const Runs runs(call);
        dispatch([&](auto t) {
            using T = decltype(t);
            truenorm::measure<T>(call, runs, x.at<const T>(), reinterpret_cast<Moments*>(found.at<double>()));
        });
    }

    void forward(nb::handle x_, nb::handle y_, nb::handle moments_, nb::handle weight_, nb::handle bias_,
                 nb::handle lengths_, nb::handle starts_, nb::handle valid_, nb::handle sample_weight_, bool keep_padding,
                 bool given) const {
        Array x, y, found, weight, bias;
        Real real;
        x.take(x_, "x", format(), false);
        y.take(y_, "y", format(), true);
        found.take(moments_, "moments", "d", !given);
        weight.take(weight_, "weight", "dfeH", false);
        bias.take(bias_, "bias", "dfeH", false);
        if (!x) throw nb::value_error("x: an array, got None.");
        Problem call = prepare(x.size(), real, lengths_, starts_, valid_, sample_weight_, keep_padding);
        if (!y || !found) throw nb::value_error("y, moments: arrays, got None.");
        y.has("y", x.size());
        found.has("moments", 3 * call.statistics());
        weight.has("weight", call.width());
        bias.has("bias", call.width());
        apart({&y}, {&x, &found, &weight, &bias}, real);
        if (!given) apart({&found}, {&x, &weight, &bias}, real);
        nb::gil_scoped_release released;
        Team team(call.elements());
        call.team = &team;
        const std::vector<double> w = widened(weight, call.width(), 1), b = widened(bias, call.width(), 0);
        const Affine affine{w.data(), b.data()};
        const Runs runs(call);
        dispatch([&](auto t) {
            using T = decltype(t);
            truenorm::forward<T>(call, runs, x.at<const T>(), y.at<T>(), reinterpret_cast<Moments*>(found.at<double>()),
                                 given, affine);
        });
    }

    void backward(nb::handle x_, nb::handle dy_, nb::handle dx_, nb::handle moments_, nb::handle sums_, nb::handle weight_,
                  nb::handle dweight_, nb::handle dbias_, nb::handle lengths_, nb::handle starts_, nb::handle valid_,
                  nb::handle sample_weight_, bool keep_padding, bool given, bool constant) const {
        Array x, dy, dx, found, weight, sums, dweight, dbias;
        Real real;
        x.take(x_, "x", format(), false);
        dy.take(dy_, "dy", format(), false);
        dx.take(dx_, "dx", format(), true);
        found.take(moments_, "moments", "d", false);
        weight.take(weight_, "weight", "dfeH", false);
        sums.take(sums_, "sums", "d", !given);
        dweight.take(dweight_, "dweight", "dfeH", true);
        dbias.take(dbias_, "dbias", "dfeH", true);
        if (!x) throw nb::value_error("x: an array, got None.");
        Problem call = prepare(x.size(), real, lengths_, starts_, valid_, sample_weight_, keep_padding);
        if (!found || !dy || !sums) throw nb::value_error("moments, dy, sums: arrays, got None.");
        if (given && !dx) throw nb::value_error("dx: an array, got None.");
        dy.has("dy", x.size());
        dx.has("dx", x.size());
        found.has("moments", 3 * call.statistics());
        weight.has("weight", call.width());
        sums.has("sums", 2 * call.statistics());
        dweight.has("dweight", call.width());
        dbias.has("dbias", call.width());
        apart({&dx, &dweight, &dbias}, {&x, &dy, &found, &weight, &sums}, real);
        if (!given) apart({&sums}, {&x, &dy, &found, &weight, &dweight, &dbias}, real);
        nb::gil_scoped_release released;
        Team team(call.elements());
        call.team = &team;
        const std::vector<double> w = widened(weight, call.width(), 1), b(w.size());
        const Affine affine{w.data(), b.data()};
        const Runs runs(call);
        Sums* table = reinterpret_cast<Sums*>(sums.at<double>());
        std::vector<double> into_weight(w.size()), into_bias(w.size());
        if (!given) std::fill_n(sums.at<double>(), sums.size(), 0.0);
        dispatch([&](auto t) {
            using T = decltype(t);
            truenorm::backward<T>(call, runs, x.at<const T>(), dy.at<const T>(), dx.at<T>(),
                                  reinterpret_cast<const Moments*>(found.at<double>()), affine, given ? table : nullptr,
                                  constant, given ? nullptr : table, into_weight.data(), into_bias.data());
        });
        if (!given) narrow(into_weight, dweight), narrow(into_bias, dbias);
    }

    const char* format() const {
        switch (dtype) {
            case Dtype::float32: return "f";
            case Dtype::float64: return "d";
            case Dtype::float16: return "e";
            case Dtype::bfloat16: return "H";
        }
        return "";
    }

    std::size_t itemsize() const { return dtype == Dtype::float64 ? 8 : dtype == Dtype::float32 ? 4 : 2; }

    template <class Call>
    void dispatch(Call call) const {
        switch (dtype) {
            case Dtype::float32: return call(float{});
            case Dtype::float64: return call(double{});
            case Dtype::float16: return call(Half{});
            case Dtype::bfloat16: return call(Brain{});
        }
    }

    static void apart(std::initializer_list<const Array*> outputs, std::initializer_list<const Array*> inputs,
                      const Real& real) {
        for (auto one = outputs.begin(); one != outputs.end(); ++one) {
            for (const Array* other : inputs) (*one)->apart_from(*other);
            for (auto two = outputs.begin(); two != one; ++two) (*one)->apart_from(**two);
            for (const Array* other : {&real.lengths, &real.starts, &real.valid, &real.sample_weight})
                (*one)->apart_from(*other);
        }
    }

    std::int64_t sequences() const { return p.sequences; }
    std::int64_t extent() const { return p.extent; }

    // This plan for a whole x, or for the first so many steps of each sequence: from 0 to the extent.
    Problem whole(const std::int64_t* lengths, bool keep_padding) const {
        Problem call = p;
        call.rows = p.sequences * p.extent;
        call.lengths = lengths;
        call.keep_padding = keep_padding;
        return call;
    }

    // This plan with the ragged arguments of one call, all of them checked.
    Problem prepare(std::int64_t elements, Real& real, nb::handle lengths_, nb::handle starts_, nb::handle valid_,
                    nb::handle sample_weight_, bool keep_padding) const {
        Problem call = p;
        real.lengths.take(lengths_, "lengths", "lq", false);
        real.starts.take(starts_, "starts", "lq", false);
        real.valid.take(valid_, "valid", "?B", false);
        real.sample_weight.take(sample_weight_, "sample_weight", "d", false);
        call.rows = p.sequences * p.extent;
        if (real.starts) {
            if (p.layout != Layout::columns || !real.lengths || p.width() == 0)
                throw nb::value_error("starts: with lengths, for columns only.");
            call.rows = elements / p.width();
        }
        std::int64_t expected;
        if (__builtin_mul_overflow(call.rows, p.width(), &expected)) throw nb::value_error("x: too large.");
        if (elements != expected)
            throw nb::value_error(("x: " + std::to_string(expected) + " elements, got " + std::to_string(elements) + ".").c_str());
        real.lengths.has("lengths", p.sequences);
        real.starts.has("starts", p.sequences);
        real.valid.has("valid", call.rows);
        real.sample_weight.has("sample_weight", call.rows);
        if (real.valid && real.lengths) throw nb::value_error("valid, lengths: at most one of them.");
        call.lengths = real.lengths.at<const std::int64_t>();
        call.starts = real.starts.at<const std::int64_t>();
        call.valid = real.valid.at<const std::uint8_t>();
        call.sample_weight = real.sample_weight.at<const double>();
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

private:
    Problem p{};
    Dtype dtype;
};

}  // namespace truenorm
