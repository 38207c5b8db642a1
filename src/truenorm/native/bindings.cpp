// Python bindings of truenorm._native: arrays in, arrays out, every argument checked, no arithmetic.
#include <Python.h>

#include <cmath>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "array.hpp"
#include "lab.hpp"
#include "reference.hpp"
#include "running.hpp"

namespace nb = nanobind;

namespace truenorm {
namespace {

enum class Dtype { float32, float64, float16, bfloat16 };

// A parameter in double, whatever it is stored in; `otherwise` where it is not given.
std::vector<double> widened(const Array& from, std::int64_t size, double otherwise) {
    std::vector<double> to(static_cast<std::size_t>(size), otherwise);
    for (std::size_t i = 0; from && i < to.size(); ++i) {
        to[i] = from.letter == 'f'   ? load<double>(from.at<float>()[i])
                : from.letter == 'e' ? load<double>(from.at<Half>()[i])
                : from.letter == 'H' ? load<double>(from.at<Brain>()[i])
                                     : from.at<double>()[i];
    }
    return to;
}

// A parameter's gradient, rounded to what it is stored in; nowhere where it is not asked for.
void narrow(const std::vector<double>& from, const Array& to) {
    for (std::size_t i = 0; to && i < from.size(); ++i) {
        if (to.letter == 'f') store(to.at<float>() + i, from[i]);
        else if (to.letter == 'e') store(to.at<Half>() + i, from[i]);
        else if (to.letter == 'H') store(to.at<Brain>() + i, from[i]);
        else to.at<double>()[i] = from[i];
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
        Problem call = prepare(x, real, lengths_, starts_, valid_, sample_weight_, false);
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
        Problem call = prepare(x, real, lengths_, starts_, valid_, sample_weight_, keep_padding);
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

    void backward(nb::handle x_, nb::handle dy_, nb::handle dx_, nb::handle moments_, nb::handle weight_, nb::handle sums_,
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
        Problem call = prepare(x, real, lengths_, starts_, valid_, sample_weight_, keep_padding);
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

private:
    Problem p{};
    Dtype dtype;

    const char* format() const {
        switch (dtype) {
            case Dtype::float32: return "f";
            case Dtype::float64: return "d";
            case Dtype::float16: return "e";
            case Dtype::bfloat16: return "H";
        }
        return "";
    }

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

    // This plan with the ragged arguments of one call, all of them checked.
    Problem prepare(const Array& x, Real& real, nb::handle lengths_, nb::handle starts_, nb::handle valid_,
                    nb::handle sample_weight_, bool keep_padding) const {
        Problem call = p;
        real.lengths.take(lengths_, "lengths", "lq", false);
        real.starts.take(starts_, "starts", "lq", false);
        real.valid.take(valid_, "valid", "?B", false);
        real.sample_weight.take(sample_weight_, "sample_weight", "d", false);
        if (!x) throw nb::value_error("x: an array, got None.");
        call.rows = p.sequences * p.extent;
        if (real.starts) {
            if (p.layout != Layout::columns || !real.lengths || p.width() == 0)
                throw nb::value_error("starts: with lengths, for columns only.");
            call.rows = x.size() / p.width();
        }
        std::int64_t expected;
        if (__builtin_mul_overflow(call.rows, p.width(), &expected)) throw nb::value_error("x: too large.");
        x.has("x", expected);
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
};

// Arrays of one dtype, for what takes float32 and float64.
template <class Call>
void by_letter(char letter, Call call) {
    if (letter == 'f') call(float{});
    else call(double{});
}

bool python_blend(nb::handle moments_, nb::handle mean_, nb::handle var_, double momentum, int ddof, nb::handle next_) {
    Array moments, mean, var, next;
    moments.take(moments_, "moments", "d", false);
    mean.take(mean_, "mean", "d", false);
    var.take(var_, "var", "d", false);
    next.take(next_, "next", "d", true);
    if (!moments || !mean || !var || !next) throw nb::value_error("moments, mean, var, next: arrays, got None.");
    const std::int64_t count = mean.size();
    moments.has("moments", 3 * count);
    var.has("var", count);
    next.has("next", 2 * count);
    for (const Array* other : {&moments, &mean, &var}) next.apart_from(*other);
    return blend(reinterpret_cast<const Moments*>(moments.at<double>()), mean.at<double>(), var.at<double>(), count,
                 momentum, ddof, next.at<double>());
}

int python_update(nb::handle moments_, nb::handle mean_, nb::handle var_, double momentum, int ddof) {
    Array moments, mean, var;
    moments.take(moments_, "moments", "d", false);
    mean.take(mean_, "mean", "fd", true);
    if (!moments || !mean || var_.is_none()) throw nb::value_error("moments, mean, var: arrays, got None.");
    const char same[2] = {mean.letter, 0};
    var.take(var_, "var", same, true);
    const std::int64_t count = mean.size();
    moments.has("moments", 3 * count);
    var.has("var", count);
    var.apart_from(mean);
    mean.apart_from(moments);
    var.apart_from(moments);
    int done = 0;
    by_letter(mean.letter, [&](auto t) {
        using T = decltype(t);
        done = update(reinterpret_cast<const Moments*>(moments.at<double>()), mean.at<T>(), var.at<T>(), count, momentum, ddof);
    });
    return done;
}

double python_cross_entropy(nb::handle logits_, nb::handle targets_, nb::handle dlogits_) {
    Array logits, targets, dlogits;
    logits.take(logits_, "logits", "fd", false);
    targets.take(targets_, "targets", "lq", false);
    if (!logits || !targets || dlogits_.is_none()) throw nb::value_error("logits, targets, dlogits: arrays, got None.");
    const char same[2] = {logits.letter, 0};
    dlogits.take(dlogits_, "dlogits", same, true);
    const std::int64_t rows = targets.size(), classes = rows ? logits.size() / rows : 0;
    if (classes < 1 || rows * classes != logits.size()) throw nb::value_error("logits: some for each target.");
    dlogits.has("dlogits", logits.size());
    dlogits.apart_from(logits);
    dlogits.apart_from(targets);
    for (std::int64_t i = 0; i < rows; ++i)
        if (targets.at<std::int64_t>()[i] < 0 || targets.at<std::int64_t>()[i] >= classes)
            throw nb::index_error("targets: numbers of classes.");
    double loss = 0;
    by_letter(logits.letter, [&](auto t) {
        using T = decltype(t);
        loss = truenorm::cross_entropy<T>(logits.at<const T>(), targets.at<const std::int64_t>(), rows, classes, dlogits.at<T>());
    });
    return loss;
}

void python_add_rows(nb::handle numbers_, nb::handle rows_, nb::handle table_) {
    Array numbers, rows, table;
    numbers.take(numbers_, "numbers", "lq", false);
    rows.take(rows_, "rows", "fd", false);
    if (!numbers || !rows || table_.is_none()) throw nb::value_error("numbers, rows, table: arrays, got None.");
    const char same[2] = {rows.letter, 0};
    table.take(table_, "table", same, true);
    const std::int64_t count = numbers.size(), width = count ? rows.size() / count : 0;
    if (width < 1 || count * width != rows.size() || table.size() % width) throw nb::value_error("rows: one for each number.");
    table.apart_from(numbers);
    table.apart_from(rows);
    for (std::int64_t i = 0; i < count; ++i)
        if (numbers.at<std::int64_t>()[i] < 0 || numbers.at<std::int64_t>()[i] >= table.size() / width)
            throw nb::index_error("numbers: of rows of the table.");
    by_letter(rows.letter, [&](auto t) {
        using T = decltype(t);
        truenorm::add_rows<T>(numbers.at<const std::int64_t>(), rows.at<const T>(), count, width, table.size(), table.at<T>());
    });
}

std::string compiler() {
#if defined(__clang__)
    return "clang " __clang_version__;
#elif defined(__GNUC__)
    return "gcc " __VERSION__;
#else
    return "unknown";
#endif
}

std::map<std::string, std::string> build_info() {
    return {
        {"compiler", compiler()},
        {"standard", "C++" + std::to_string(__cplusplus / 100 % 100)},
        {"instruction_set", loop_table().name},
    };
}

}  // namespace
}  // namespace truenorm

NB_MODULE(_native, m) {
    using namespace truenorm;
    m.doc() = "Compiled part of truenorm.";
    nb::set_leak_warnings(false);  // plans live in caches until the end, and torch keeps modules longer than that
    m.def("build_info", &build_info, "How this module was built, and the loops in use.");
    m.def("set_threads", &set_threads, "How many threads a call may use.");
    m.def("get_threads", &get_threads, "How many threads a call may use.");
    m.def("select_loops", [](const char* name) { return select_loops(*name ? name : nullptr); },
          "Use the loops of this name, \"\" for the best; False where this processor has none.");
    m.def("blend_running", &python_blend, nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg(), nb::arg(),
          nb::arg().none(), "Running mean and variance after one more batch; False where a channel needs care.");
    m.def("update_running", &python_update, nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg(), nb::arg(),
          "Move a running mean and variance in place; 1: moved, 0: nothing to move by, -1: not finite, so not moved.");
    m.def("cross_entropy", &python_cross_entropy, nb::arg().none(),
          nb::arg().none(), nb::arg().none(), "The mean of -log softmax(logits)[target]; writes its gradient.");
    m.def("add_rows", &python_add_rows, nb::arg().none(),
          nb::arg().none(), nb::arg().none(), "table = 0, then table[numbers[i]] += rows[i].");
    nb::class_<Plan>(m, "Plan")
        .def(nb::init<const std::string&, const std::vector<std::int64_t>&, std::int64_t, std::int64_t,
                      const std::string&, bool, int, double, bool>())
        .def("measure", &Plan::measure, nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg().none(),
             nb::arg().none(), nb::arg().none())
        .def("forward", &Plan::forward, nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg().none(),
             nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg(), nb::arg())
        .def("backward", &Plan::backward, nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg().none(),
             nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg().none(),
             nb::arg().none(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg());
}
