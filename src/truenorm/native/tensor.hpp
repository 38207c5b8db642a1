// A tensor of torch: checked once, then a pointer.
//
// Address, device, dtype, sizes and strides come from DLPack's C exchange in 0.1 us a tensor; asking for them one by
// one in Python takes ten times as long, for each tensor of each call. Tensors that cannot be read in place are
// rejected: other devices and layouts, dtypes without a kernel, subclasses, tensors wrapped by a transform, tensors
// without memory.
#pragma once

#include <Python.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

#include <nanobind/nanobind.h>

#include "dlpack.hpp"

namespace truenorm {

namespace nb = nanobind;

// How the elements of a tensor lie in memory. channels_last: axis 1 moves fastest and the others are in order, as in
// torch's memory format of this name, and in (b, t, c) transposed to (b, c, t).
enum class MemoryOrder { contiguous, channels_last, strided };

class Tensor {
public:
    // The capsule of torch's tensors, and the types that are read. False if the version of the exchange is not known.
    static bool register_torch(nb::handle capsule, nb::handle tensor, nb::handle parameter) {
        const void* found = PyCapsule_GetPointer(capsule.ptr(), dlpack::CAPSULE);
        if (!found) throw nb::python_error();
        const auto* known = static_cast<const dlpack::Exchange*>(found);
        if (known->major != dlpack::MAJOR || !known->look) known = nullptr;
        types[0] = reinterpret_cast<PyTypeObject*>(tensor.ptr());
        types[1] = reinterpret_cast<PyTypeObject*>(parameter.ptr());
        is_neg = PyUnicode_InternFromString("is_neg");
        untyped_storage = PyUnicode_InternFromString("untyped_storage");
        nbytes = PyUnicode_InternFromString("nbytes");
        exchange.store(known, std::memory_order_release);  // last: other threads may read tensors meanwhile
        return known != nullptr;
    }

    // Whether it has elements that can be read in place, in one of these formats; `letter` says which. Any strides.
    bool read(nb::handle object, const char* letters) {
        if (!read_trusted(object, letters)) return false;
        if (negated(object)) data = nullptr;
        return data != nullptr;
    }

    // The same for a tensor that is known not to be a negated view: one that was read before, or is newly made.
    bool read_trusted(nb::handle object, const char* letters) {
        data = nullptr;
        PyTypeObject* type = Py_TYPE(object.ptr());
        const dlpack::Exchange* const known = exchange.load(std::memory_order_acquire);
        if (!known || (type != types[0] && type != types[1])) return false;
        if (known->look(object.ptr(), &view) != 0) {
            PyErr_Clear();
            return false;
        }
        if (!accept(letters)) return false;
        const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(data);
        if (address < ANY_OFFSET && freed(object)) data = nullptr;
        return data != nullptr;
    }

    // The same for None, which leaves it empty.
    bool read_given(nb::handle object, const char* letters) {
        return object.is_none() || read_trusted(object, letters);
    }

    // The same for a tensor that is known to be an ordinary one with memory of its own, seen through `from`.
    bool read_view(const dlpack::Tensor& from, const char* letters) {
        view = from;
        return accept(letters);
    }

    // contiguous where an order is both: sizes of 1 have no order.
    MemoryOrder order() const {
        return has_order(MemoryOrder::contiguous)      ? MemoryOrder::contiguous
               : has_order(MemoryOrder::channels_last) ? MemoryOrder::channels_last
                                                       : MemoryOrder::strided;
    }
    bool has_order(MemoryOrder wanted) const {
        std::int64_t step = 1;
        const auto next = [&](std::int32_t axis) {
            if (view.shape[axis] != 1 && view.strides && view.strides[axis] != step) return false;
            step *= view.shape[axis];
            return true;
        };
        const bool channels_last = wanted == MemoryOrder::channels_last;
        if (wanted == MemoryOrder::strided || (channels_last && (view.axes < 3 || !next(1)))) return false;
        for (std::int32_t axis = view.axes; axis-- > 0;)
            if (!(channels_last && axis == 1) && !next(axis)) return false;
        return true;
    }

    bool has_shape(const std::vector<std::int64_t>& sizes) const {
        return sizes.size() == static_cast<std::size_t>(view.axes) &&
               std::equal(sizes.begin(), sizes.end(), view.shape);
    }

    // A view that stands for the negative of its memory, such as the imaginary part of a conjugate. DLPack does not say
    // so.
    static bool negated(nb::handle object) {
        PyObject* const found = call_method(object.ptr(), is_neg);
        if (!found) PyErr_Clear();
        const bool is = found != Py_False;
        Py_XDECREF(found);
        return is;
    }

    template <class T> T* at() const { return static_cast<T*>(data); }
    explicit operator bool() const { return data != nullptr; }

    void* data = nullptr;
    std::int64_t count = 0;
    char letter = 0;  // of the buffer protocol; H is bfloat16

private:
    static inline std::atomic<const dlpack::Exchange*> exchange{nullptr};
    static inline PyTypeObject* types[2] = {};
    static inline PyObject *is_neg = nullptr, *untyped_storage = nullptr, *nbytes = nullptr;
    // The address of a tensor whose storage was freed is its offset. Offsets are smaller than this, and almost all
    // addresses are larger.
    static constexpr std::uintptr_t ANY_OFFSET = std::uintptr_t{1} << 40;
    dlpack::Tensor view;

    // PyObject_CallMethodNoArgs, which Python's stable ABI lacks.
    static PyObject* call_method(PyObject* object, PyObject* name) {
        return PyObject_VectorcallMethod(name, &object, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
    }

    static bool freed(nb::handle object) {
        PyObject* const held = call_method(object.ptr(), untyped_storage);
        PyObject* const size = held ? call_method(held, nbytes) : nullptr;
        const bool none = !size || PyObject_IsTrue(size) != 1;
        if (PyErr_Occurred()) PyErr_Clear();
        Py_XDECREF(size);
        Py_XDECREF(held);
        return none;
    }

    // What `view` shows, if it can be read in place.
    bool accept(const char* letters) {
        data = nullptr;
        letter = format();
        if (view.device.type != dlpack::CPU || !letter || !std::strchr(letters, letter)) return false;
        count = 1;
        for (std::int32_t i = 0; i < view.axes; ++i) count *= view.shape[i];
        if (!count || !view.data) return false;
        char* const at = static_cast<char*>(view.data) + view.byte_offset;
        if (reinterpret_cast<std::uintptr_t>(at) % (view.type.bits / 8) == 0) data = at;
        return data != nullptr;
    }

    char format() const {
        const dlpack::Type& type = view.type;
        if (type.lanes != 1) return 0;
        if (type.code == dlpack::FLOAT)
            return type.bits == 32 ? 'f' : type.bits == 64 ? 'd' : type.bits == 16 ? 'e' : 0;
        if (type.code == dlpack::BFLOAT) return type.bits == 16 ? 'H' : 0;
        if (type.code == dlpack::BOOLEAN) return type.bits == 8 ? '?' : 0;
        return type.code == dlpack::INTEGER && type.bits == 64 ? 'q' : 0;
    }
};

}  // namespace truenorm
