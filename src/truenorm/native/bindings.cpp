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

#include "call.hpp"
#include "call_functions.hpp"
#include "gil.hpp"
#include "lab.hpp"
#include "plan.hpp"
#include "running.hpp"

namespace nb = nanobind;

namespace truenorm {
namespace {

// call(T{}) for functions that take float32 and float64.
template <class Call> void by_letter(char letter, Call call) {
    if (letter == 'f') call(float{});
    else call(double{});
}

bool python_ema_update(nb::handle moments_, nb::handle mean_, nb::handle var_, double momentum, int ddof,
                       nb::handle next_) {
    Array moments, mean, var, next;
    mean.require(mean_, "mean", "d", false, Array::ANY);
    const std::int64_t count = mean.size();
    moments.require(moments_, "moments", "d", false, 3 * count);
    var.require(var_, "var", "d", false, count);
    next.require(next_, "next", "d", true, 2 * count);
    for (const Array* other : {&moments, &mean, &var}) next.apart_from(*other);
    return ema_update(moments.at<const Moments>(), mean.at<double>(), var.at<double>(), count, momentum, ddof,
                      next.at<double>());
}

int python_update(nb::handle moments_, nb::handle mean_, nb::handle var_, double momentum, int ddof,
                  nb::handle counter_) {
    Array moments, mean, var, counter;
    mean.require(mean_, "mean", "fd", true, Array::ANY);
    const std::int64_t count = mean.size();
    moments.require(moments_, "moments", "d", false, 3 * count);
    var.require(var_, "var", std::string_view(&mean.letter, 1), true, count);
    counter.take(counter_, "counter", INTEGERS, true, 1);
    for (const Array* other : {&moments, &mean, &var}) counter.apart_from(*other);
    var.apart_from(mean);
    mean.apart_from(moments);
    var.apart_from(moments);
    int done = 0;
    by_letter(mean.letter, [&](auto t) {
        using T = decltype(t);
        done = update(moments.at<const Moments>(), mean.at<T>(), var.at<T>(), count, momentum, ddof);
    });
    if (done == 1 && counter) ++*counter.at<std::int64_t>();
    return done;
}

double python_cross_entropy(nb::handle logits_, nb::handle targets_, nb::handle dlogits_) {
    Array logits, targets, dlogits;
    logits.require(logits_, "logits", "fd", false, Array::ANY);
    targets.require(targets_, "targets", INTEGERS, false, Array::ANY);
    dlogits.require(dlogits_, "dlogits", std::string_view(&logits.letter, 1), true, logits.size());
    const std::int64_t rows = targets.size(), classes = rows ? logits.size() / rows : 0;
    if (classes < 1 || rows * classes != logits.size())
        throw wrong("logits must have as many elements for each target", logits.size());
    dlogits.apart_from(logits);
    dlogits.apart_from(targets);
    for (std::int64_t i = 0; i < rows; ++i)
        if (targets.at<std::int64_t>()[i] < 0 || targets.at<std::int64_t>()[i] >= classes)
            throw nb::index_error("targets must be numbers of classes.");
    double loss = 0;
    by_letter(logits.letter, [&](auto t) {
        using T = decltype(t);
        loss = truenorm::cross_entropy<T>(logits.at<const T>(), targets.at<const std::int64_t>(), rows, classes,
                                          dlogits.at<T>());
    });
    return loss;
}

void python_add_rows(nb::handle numbers_, nb::handle rows_, nb::handle table_) {
    Array numbers, rows, table;
    numbers.require(numbers_, "numbers", INTEGERS, false, Array::ANY);
    rows.require(rows_, "rows", "fd", false, Array::ANY);
    table.require(table_, "table", std::string_view(&rows.letter, 1), true, Array::ANY);
    const std::int64_t count = numbers.size(), width = count ? rows.size() / count : 0;
    if (width < 1 || count * width != rows.size() || table.size() % width)
        throw wrong("rows must have one row of the table for each number", rows.size());
    table.apart_from(numbers);
    table.apart_from(rows);
    for (std::int64_t i = 0; i < count; ++i)
        if (numbers.at<std::int64_t>()[i] < 0 || numbers.at<std::int64_t>()[i] >= table.size() / width)
            throw nb::index_error("numbers must be those of rows of the table.");
    by_letter(rows.letter, [&](auto t) {
        using T = decltype(t);
        truenorm::add_rows<T>(numbers.at<const std::int64_t>(), rows.at<const T>(), count, width, table.size(),
                              table.at<T>());
    });
}

// `Call::forward` of tensors of torch. False, and nothing done, if one cannot be read in place.
bool python_forward(Call& call, nb::handle x, nb::handle y, nb::handle weight, nb::handle bias, nb::handle residual,
                    nb::handle total) {
    ForwardTensors with;
    if (!with.x.read_trusted(x, FLOATS) || !with.y.read_trusted(y, FLOATS) || !with.weight.read_given(weight, FLOATS) ||
        !with.bias.read_given(bias, FLOATS) || !with.residual.read_given(residual, FLOATS) ||
        !with.total.read_given(total, FLOATS) || (with.residual && Tensor::negated(residual)))
        return false;
    const GilRelease released;
    return call.forward(with);
}

// The same. Hooks may have replaced the tensors that were saved, so any may be a negated view.
bool python_backward(Call& call, nb::handle x, nb::handle dy, nb::handle weight, nb::handle bias, nb::handle dx,
                     nb::handle dweight, nb::handle dbias, nb::handle dtotal) {
    BackwardTensors with;
    if (!with.x.read(x, FLOATS) || !with.dy.read(dy, FLOATS) || !with.weight.read_given(weight, FLOATS) ||
        !with.bias.read_given(bias, FLOATS) || !with.dx.read_given(dx, FLOATS) ||
        !with.dweight.read_given(dweight, FLOATS) || !with.dbias.read_given(dbias, FLOATS) ||
        !with.dtotal.read_given(dtotal, FLOATS) || (with.weight && Tensor::negated(weight)) ||
        (with.bias && Tensor::negated(bias)) || (with.dtotal && Tensor::negated(dtotal)))
        return false;
    const GilRelease released;
    return call.backward(with);
}

// The same for a module that knows torch's tensors itself; see call_functions.hpp.
bool read(Tensor& tensor, const dlpack::Tensor* view) { return !view || tensor.read_view(*view, FLOATS); }

const CallFunctions CALL_FUNCTIONS = {
    [](PyObject* object) { return nb::isinstance<Call>(object) ? nb::inst_ptr<Call>(object) : nullptr; },
    [](const Call& call) { return call.activated(); },
    [](Call& call, const ForwardViews& from) {
        ForwardTensors with;
        return read(with.x, from.x) && read(with.y, from.y) && read(with.weight, from.weight) &&
               read(with.bias, from.bias) && read(with.residual, from.residual) && read(with.total, from.total) &&
               call.forward(with);
    },
    [](Call& call, const BackwardViews& from) {
        BackwardTensors with;
        return read(with.x, from.x) && read(with.dy, from.dy) && read(with.dx, from.dx) &&
               read(with.weight, from.weight) && read(with.bias, from.bias) && read(with.dweight, from.dweight) &&
               read(with.dbias, from.dbias) && read(with.dtotal, from.dtotal) && call.backward(with);
    },
};

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
    nb::set_leak_warnings(false);  // plans live in caches, and torch keeps modules, until the process ends
    nb::dict formats;
    for (const DtypeInfo& info : DTYPES)
        if (info.name) formats[info.letter] = info.name;
    m.attr("FORMATS") = formats;
    m.def("build_info", &build_info, "How this module was built, and the loops in use.");
    m.def("set_threads", &set_threads, "How many threads a call may use.");
    m.def("get_threads", &get_threads, "How many threads a call may use.");
    m.def("use_openmp", &use_openmp, "Whether to use OpenMP's threads from now on; False if they are not used.");
    m.def(
        "select_loops", [](const char* name) { return select_loops(*name ? name : nullptr); },
        "Use the loops of this name, \"\" for the best; False if this processor cannot run them.");
    m.def("ema_update", &python_ema_update, nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg(), nb::arg(),
          nb::arg().none(),
          "Running mean and variance after one more batch; False if a channel has too few elements or is not finite.");
    m.def(
        "update_running", &python_update, nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg(), nb::arg(),
        nb::arg().none(),
        "Update a running mean and variance in place, and count it; 1: updated, 0: too few elements, -1: not finite.");
    m.def("cross_entropy", &python_cross_entropy, nb::arg().none(), nb::arg().none(), nb::arg().none(),
          "The mean of -log softmax(logits)[target]; writes its gradient.");
    m.def("add_rows", &python_add_rows, nb::arg().none(), nb::arg().none(), nb::arg().none(),
          "table = 0, then table[numbers[i]] += rows[i].");
    m.attr("call_functions") = nb::capsule(&CALL_FUNCTIONS, CallFunctions::CAPSULE);
    m.def("register_torch", &Tensor::register_torch, "How to read torch's tensors; False if the version is not known.");
    m.def(
        "can_read", [](nb::handle tensor) { return Tensor().read(tensor, "fdeHq"); },
        "Whether this is a tensor of torch that can be read in place, whatever its strides.");
    const auto optional = [](const char* name) { return nb::arg(name) = nb::none(); };
    nb::class_<Plan>(m, "Plan")
        .def(nb::init<const std::string&, const std::vector<std::int64_t>&, std::int64_t, std::int64_t,
                      const std::string&, bool, int, double, bool, const std::string&>(),
             nb::arg("layout"), nb::arg("runs"), nb::arg("sequences"), nb::arg("extent"), nb::arg("dtype"),
             nb::kw_only(), nb::arg("center"), nb::arg("ddof"), nb::arg("eps"), nb::arg("eps_outside"),
             nb::arg("activation") = "")
        .def(
            "measure",
            [](const Plan& plan, nb::handle x, nb::handle moments, nb::handle lengths, nb::handle starts,
               nb::handle valid,
               nb::handle sample_weight) { plan.measure(x, moments, {lengths, starts, valid, sample_weight}); },
            nb::arg("x").none(), nb::arg("moments").none(), nb::kw_only(), optional("lengths"), optional("starts"),
            optional("valid"), optional("sample_weight"))
        .def(
            "forward",
            [](const Plan& plan, nb::handle x, nb::handle y, nb::handle moments, nb::handle weight, nb::handle bias,
               nb::handle lengths, nb::handle starts, nb::handle valid, nb::handle sample_weight, bool keep_padding,
               bool given) {
                const RaggedArgs ragged{lengths, starts, valid, sample_weight};
                plan.forward({x, y, moments, weight, bias, ragged, keep_padding, given});
            },
            nb::arg("x").none(), nb::arg("y").none(), nb::arg("moments").none(), nb::kw_only(), optional("weight"),
            optional("bias"), optional("lengths"), optional("starts"), optional("valid"), optional("sample_weight"),
            nb::arg("keep_padding") = false, nb::arg("given") = false)
        .def(
            "backward",
            [](const Plan& plan, nb::handle x, nb::handle dy, nb::handle dx, nb::handle moments, nb::handle sums,
               nb::handle weight, nb::handle bias, nb::handle dweight, nb::handle dbias, nb::handle lengths,
               nb::handle starts, nb::handle valid, nb::handle sample_weight, bool keep_padding, bool given,
               bool constant) {
                const RaggedArgs ragged{lengths, starts, valid, sample_weight};
                plan.backward(
                    {x, dy, dx, moments, sums, weight, bias, dweight, dbias, ragged, keep_padding, given, constant});
            },
            nb::arg("x").none(), nb::arg("dy").none(), nb::arg("dx").none(), nb::arg("moments").none(), nb::kw_only(),
            nb::arg("sums").none(), optional("weight"), optional("bias"), optional("dweight"), optional("dbias"),
            optional("lengths"), optional("starts"), optional("valid"), optional("sample_weight"),
            nb::arg("keep_padding") = false, nb::arg("given") = false, nb::arg("constant") = false);
    nb::class_<Call>(m, "Call")
        .def(nb::init<const Plan&, std::int64_t, nb::handle, nb::handle, nb::handle, nb::handle, bool, bool>(),
             nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg(),
             nb::arg())
        .def("fix", &Call::fix)
        .def("forward", &python_forward, nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none(),
             nb::arg().none() = nb::none(), nb::arg().none() = nb::none())
        .def("backward", &python_backward, nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg().none(),
             nb::arg().none(), nb::arg().none(), nb::arg().none() = nb::none())
        .def("update_running", &Call::update_running, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none())
        .def("get_valid", &Call::get_valid)
        .def("get_moments", &Call::get_moments)
        .def("set_moments", &Call::set_moments)
        .def_prop_ro("channels_last", &Call::channels_last)
        .def_prop_ro("max_count", &Call::max_count)
        .def_prop_ro("large", &Call::large);
    nb::enum_<Miss>(m, "Miss")
        .value("unknown_shape", Miss::unknown_shape)
        .value("x_strided", Miss::x_strided)
        .value("x_unreadable", Miss::x_unreadable)
        .value("parameters", Miss::parameters)
        .value("ragged", Miss::ragged);
    nb::class_<PlanCache>(m, "PlanCache")
        .def(nb::init<bool>())
        .def("find", &PlanCache::find, nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg().none(),
             nb::arg().none(), nb::arg())
        .def("add", &PlanCache::add);
}
