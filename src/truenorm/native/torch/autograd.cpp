// A kernel's call as a node of torch's autograd graph, so that neither forward nor backward runs any Python.
//
// It does what `KernelNorm` and `SumNorm` do, autograd functions in Python, which are used where this module is not
// built. It is built against one version of torch, which its name says. What a kernel cannot do (graphs of gradients,
// tensors that transforms have wrapped, gradients in another memory order) is left to `_kernel.differentiate`.
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/utils/pybind.h>

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <typeinfo>
#include <utility>
#include <vector>

#include "../call_functions.hpp"
#include "../gil.hpp"

namespace truenorm {
namespace {

namespace py = pybind11;
using at::Tensor;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

const CallFunctions* kernel = nullptr;
PyObject* differentiate = nullptr;  // `_kernel.differentiate`
c10::impl::PyInterpreter* interpreter = nullptr;

// How a tensor lies in memory. Without data, and so rejected, unless it is an ordinary float tensor on the CPU: not
// wrapped by a transform, of no class with operations of its own, no negated view, without tangents of forward mode.
class View {
public:
    explicit View(const Tensor& tensor) : given(tensor.defined()) {
        static const c10::DispatchKeySet ordinary = at::detail::empty_cpu({0}, at::kFloat).key_set();
        if (!given || !ordinary.has_all(tensor.key_set()) || !tensor.storage().nbytes() || tensor._fw_grad(0).defined())
            return;
        switch (tensor.scalar_type()) {
            case at::kFloat: view.type = {dlpack::FLOAT, 32, 1}; break;
            case at::kDouble: view.type = {dlpack::FLOAT, 64, 1}; break;
            case at::kHalf: view.type = {dlpack::FLOAT, 16, 1}; break;
            case at::kBFloat16: view.type = {dlpack::BFLOAT, 16, 1}; break;
            default: return;
        }
        view.device.type = dlpack::CPU;
        view.axes = static_cast<std::int32_t>(tensor.dim());
        view.shape = const_cast<std::int64_t*>(tensor.sizes().data());
        view.strides = const_cast<std::int64_t*>(tensor.strides().data());
        view.data = const_cast<void*>(tensor.const_data_ptr());  // what is written to is new, and nobody else's
    }
    operator const dlpack::Tensor*() const { return given ? &view : nullptr; }

private:
    const bool given;
    dlpack::Tensor view{};
};

// `_compat.in_plain_eager_mode`, and no graph is made of what runs.
bool in_plain_eager_mode() {
    return !at::GradMode::is_enabled() && !c10::impl::TorchDispatchModeTLS::any_modes_set() &&
           !c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode) &&
           !torch::jit::tracer::isTracing();
}

Tensor made_like(const Tensor& tensor) {
    return at::detail::empty_strided_cpu(tensor.sizes(), tensor.strides(), tensor.options());
}

// y of x, weight and bias; with a residual y and total of x, residual, weight and bias.
class NormBackward : public torch::autograd::Node {
public:
    // saved: x, or the sum.
    NormBackward(py::object context_, Call& call, const Tensor& weight_, const Tensor& bias_, bool summed)
        : context(context_.release().ptr(), interpreter), call(call), summed(summed), weight(weight_, false) {
        if (!bias_.defined()) return;
        bias_dtype = bias_.scalar_type();
        bias_shape = bias_.sizes().vec();
        if (kernel->activated(call)) bias = SavedVariable(bias_, false);
    }

    void save(const Tensor& x) { saved = SavedVariable(x, summed); }

    std::string name() const override { return summed ? "SumNormBackward" : "KernelNormBackward"; }

    void release_variables() override {
        const std::lock_guard<std::mutex> guard(mutex_);
        for (SavedVariable* one : {&saved, &weight, &bias}) one->reset_data();
    }

    variable_list apply(variable_list&& gradients) override { return run(gradients, unpack(), needed()); }

    // Compiled autograd makes a graph of whole backward passes. This node is one opaque call in it, `run_node`.
    void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override {
        args.collect(static_cast<std::uint64_t>(typeid(*this).hash_code()));
        args.collect(self);
        args.collect(saved, summed);
        args.collect(weight, false);
        args.collect(bias, false);
    }

    variable_list apply_with_saved(const variable_list& gradients,
                                   torch::dynamo::autograd::SwapSavedVariables& swap) override {
        using namespace torch::dynamo::autograd;
        swap.before(self);
        for (SavedVariable* one : {&saved, &weight, &bias}) swap.before(*one);
        const Saved with = unpack();
        const std::vector<at::IValue> args{self, with.x, with.weight, with.bias,
                                           IValuePacker<std::vector<bool>>::pack(needed())};
        std::vector<at::TypePtr> schema;
        for (const at::IValue& arg : args)
            schema.push_back(arg.isTensor() ? at::TypePtr(at::TensorType::get()) : arg.type());
        const auto& python = getPyCompilerInterface();
        const std::string bound = python->bind_function(swap.get_py_compiler(), name(), &run_node, schema, true, false);
        variable_list found = python->call_function(
            swap.get_py_compiler(), "apply_functional", bound, gradients, args,
            IValuePacker<std::vector<std::optional<InputMetadata>>>::pack(get_input_metadata(next_edges())));
        swap.after(self);
        for (SavedVariable* one : {&saved, &weight, &bias}) swap.after(*one);
        return found;
    }

private:
    struct Saved {
        Tensor x, weight, bias;
    };

    const c10::SafePyObject context;  // as in `_kernel`; keeps the call alive
    Call& call;
    const bool summed;
    SavedVariable saved, weight, bias;
    std::optional<at::ScalarType> bias_dtype;
    std::vector<std::int64_t> bias_shape;
    at::IValue self{reinterpret_cast<std::int64_t>(this)};

    Saved unpack() {
        const std::lock_guard<std::mutex> guard(mutex_);
        return {saved.unpack(summed ? getptr() : nullptr), weight.unpack(), bias.unpack()};
    }

    static variable_list run_node(const variable_list& gradients, const std::vector<at::IValue>& args) {
        auto* node = reinterpret_cast<NormBackward*>(args[0].toSymInt().expect_int());
        return node->run(gradients, {args[1].toTensor(), args[2].toTensor(), args[3].toTensor()},
                         torch::dynamo::autograd::IValuePacker<std::vector<bool>>::unpack(args[4]));
    }

    // For each input, whether its gradient is asked for.
    std::vector<bool> needed() const {
        std::vector<bool> all;
        for (std::size_t i = 0; i < num_outputs(); ++i) all.push_back(task_should_compute_output(i));
        return all;
    }

    variable_list run(const variable_list& gradients, const Saved& with, std::vector<bool> needed) const {
        const Tensor& dy = gradients[0];
        const Tensor dtotal = summed ? gradients[1] : Tensor();
        if (!dy.defined()) {
            variable_list found(needed.size());
            if (summed) found[0] = found[1] = dtotal;
            return found;
        }
        if (summed) {
            needed[1] = needed[1] || needed[0];  // x and the residual have the same
            needed.erase(needed.begin());
        }
        variable_list found;
        if (!in_plain_eager_mode() || !run_kernel(dy, dtotal, with, needed, found))
            found = run_python(dy, dtotal, with, needed);
        if (summed) found.insert(found.begin(), found[0]);
        return found;
    }

    bool run_kernel(const Tensor& dy, const Tensor& dtotal, const Saved& with, const std::vector<bool>& needed,
                    variable_list& found) const {
        const View x(with.x), weight(with.weight), dy_view(dy), dtotal_view(dtotal);
        const dlpack::Tensor* const first = x;
        if (!first->data) return false;
        Tensor dx, dweight, dbias;
        if (needed[0]) dx = made_like(with.x);
        if (needed[1] && with.weight.defined()) {
            if (!static_cast<const dlpack::Tensor*>(weight)->data) return false;
            dweight = made_like(with.weight);
        }
        if (needed[2] && bias_dtype) dbias = at::detail::empty_cpu(bias_shape, *bias_dtype);
        if (!kernel->backward(call, {x, dy_view, View(dx), weight, View(with.bias), View(dweight), View(dbias),
                                     needed[0] ? static_cast<const dlpack::Tensor*>(dtotal_view) : nullptr}))
            return false;
        found = {dx, dweight, dbias};
        return true;
    }

    variable_list run_python(const Tensor& dy, const Tensor& dtotal, const Saved& with,
                             const std::vector<bool>& needed) const {
        const py::gil_scoped_acquire gil;
        PyObject* const dtype = bias_dtype ? reinterpret_cast<PyObject*>(torch::getTHPDtype(*bias_dtype)) : Py_None;
        const auto optional = [](const Tensor& one) { return one.defined() ? py::cast(one) : py::none(); };
        const py::tuple found = py::handle(differentiate)(
            py::handle(context.ptr(interpreter)), with.x, dy, optional(with.weight), optional(with.bias),
            py::handle(dtype), py::make_tuple(bool(needed[0]), bool(needed[1]), bool(needed[2])),
            needed[0] ? optional(dtotal) : py::none());
        variable_list gradients(3);
        for (std::size_t i = 0; i < 3; ++i)
            if (!found[i].is_none()) gradients[i] = found[i].cast<Tensor>();
        return gradients;
    }
};

Tensor unpacked(PyObject* object) {
    if (object == Py_None) return Tensor();
    TORCH_CHECK_TYPE(THPVariable_Check(object), "apply: tensors, got ", Py_TYPE(object)->tp_name, ".");
    return THPVariable_Unpack(object);
}

// The call that a context begins with.
Call& call_of(PyObject* context) {
    Call* const call =
        kernel && PyTuple_Check(context) && PyTuple_Size(context) ? kernel->find(PyTuple_GetItem(context, 0)) : nullptr;
    TORCH_CHECK_TYPE(call, "apply: the context of a kernel's call, got something else.");
    return *call;
}

// apply(x, weight, bias, context) gives y; apply_to_sum(x, residual, weight, bias, context) gives y and the sum.
template <bool SUMMED> PyObject* apply(PyObject*, PyObject* const* args, Py_ssize_t count) {
    HANDLE_TH_ERRORS
    TORCH_CHECK_TYPE(count == 4 + SUMMED, "apply: ", 4 + SUMMED, " arguments, got ", count, ".");
    const Tensor x = unpacked(args[0]), residual = SUMMED ? unpacked(args[1]) : Tensor(),
                 weight = unpacked(args[1 + SUMMED]), bias = unpacked(args[2 + SUMMED]);
    PyObject* const context = args[3 + SUMMED];
    Call& call = call_of(context);
    TORCH_CHECK_TYPE(x.defined(), "apply: tensors, got None.");

    RECORD_FUNCTION(SUMMED ? "SumNorm" : "KernelNorm", c10::ArrayRef<const at::IValue>{});  // for torch's profiler
    Tensor y = made_like(x), total = SUMMED ? made_like(x) : Tensor();
    {
        const GilRelease released;
        const bool done =
            kernel->forward(call, {View(x), View(y), View(weight), View(bias), View(residual), View(total)});
        TORCH_CHECK(done, "forward: x, weight and bias as they were a moment ago, got others.");
    }
    if (torch::autograd::compute_requires_grad(x, residual, weight, bias)) {
        auto node =
            c10::make_intrusive<NormBackward>(py::reinterpret_borrow<py::object>(context), call, weight, bias, SUMMED);
        if constexpr (SUMMED) node->set_next_edges(torch::autograd::collect_next_edges(x, residual, weight, bias));
        else node->set_next_edges(torch::autograd::collect_next_edges(x, weight, bias));
        torch::autograd::set_history(y, node);
        if (SUMMED) torch::autograd::set_history(total, node);
        node->save(SUMMED ? total : x);
    }
    if (!SUMMED) return THPVariable_Wrap(std::move(y));
    return py::make_tuple(y, total).release().ptr();
    END_HANDLE_TH_ERRORS
}

PyObject* set_up(PyObject*, PyObject* args) {
    PyObject *capsule, *function;
    if (!PyArg_ParseTuple(args, "OO", &capsule, &function)) return nullptr;
    const void* found = PyCapsule_GetPointer(capsule, CallFunctions::CAPSULE);
    if (!found) return nullptr;
    kernel = static_cast<const CallFunctions*>(found);
    Py_INCREF(function);
    differentiate = function;
    interpreter = getPyInterpreter();
    Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"set_up", set_up, METH_VARARGS, "The kernels' functions, and what computes other gradients."},
    {"apply", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&apply<false>)), METH_FASTCALL,
     "y of x, weight and bias."},
    {"apply_to_sum", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&apply<true>)), METH_FASTCALL,
     "y and the sum of x, residual, weight and bias."},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef module = {PyModuleDef_HEAD_INIT,
                      "truenorm._torch",
                      "Kernels as nodes of torch's autograd graph.",
                      -1,
                      methods,
                      nullptr,
                      nullptr,
                      nullptr,
                      nullptr};

}  // namespace
}  // namespace truenorm

// TRUENORM_TORCH_MODULE: PyInit_ and the name of the module.
PyMODINIT_FUNC TRUENORM_TORCH_MODULE() { return PyModule_Create(&truenorm::module); }
