// A tensor of torch: checked once, then a pointer.
//
// torch tells where a tensor lies through DLPack's C exchange: its address, device, dtype, sizes and strides in a tenth of a
// microsecond, where asking for them one by one in Python takes ten times that, on each tensor of each call. What a kernel
// cannot read where it is, is not seen: another device or layout, gaps, a dtype that is none of ours, a subclass, a tensor
// that a transform wraps, one without memory.
#pragma once

#include <Python.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include <nanobind/nanobind.h>

namespace truenorm {

namespace nb = nanobind;

// What of DLPack is needed here, as version 1 of its C interface lays it out.
namespace dlpack {

struct Device {
    std::int32_t type, number;
};
struct Type {
    std::uint8_t code, bits;
    std::uint16_t lanes;
};
struct Tensor {
    void* data;
    Device device;
    std::int32_t axes;
    Type type;
    std::int64_t *shape, *strides;
    std::uint64_t byte_offset;
};
struct Exchange {
    std::uint32_t major, minor;
    Exchange* previous;
    void *allocate, *take, *give;  // of tensors that own their memory
    int (*look)(void* object, Tensor* found);
};
constexpr std::int32_t CPU = 1;
enum Code : std::uint8_t { INTEGER = 0, FLOAT = 2, BFLOAT = 4 };

}  // namespace dlpack

class Tensor {
public:
    // The capsule of torch's tensors, and the types that are seen. False where it is another version's.
    static bool understand(nb::handle capsule, nb::handle tensor, nb::handle parameter) {
        const void* found = PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api");
        if (!found) throw nb::python_error();
        exchange = static_cast<const dlpack::Exchange*>(found);
        if (exchange->major != 1 || !exchange->look) exchange = nullptr;
        types[0] = reinterpret_cast<PyTypeObject*>(tensor.ptr());
        types[1] = reinterpret_cast<PyTypeObject*>(parameter.ptr());
        negative = PyUnicode_InternFromString("is_neg");
        storage = PyUnicode_InternFromString("untyped_storage");
        bytes = PyUnicode_InternFromString("nbytes");
        return exchange != nullptr;
    }

    // Whether it can be read where it is, in one of these formats; `letter` says which.
    bool read(nb::handle object, const char* letters) {
        if (!see(object, letters)) return false;
        if (negated(object)) data = nullptr;
        return data != nullptr;
    }

    // The same, of one that was read before or is newly made.
    bool see(nb::handle object, const char* letters) {
        data = nullptr;
        PyTypeObject* type = Py_TYPE(object.ptr());
        if (!exchange || (type != types[0] && type != types[1])) return false;
        if (exchange->look(object.ptr(), &view) != 0) {
            PyErr_Clear();
            return false;
        }
        letter = format();
        if (view.device.type != dlpack::CPU || !letter || !std::strchr(letters, letter) || !contiguous()) return false;
        char* const at = static_cast<char*>(view.data) + view.byte_offset;
        const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(at);
        if (!view.data || address % (view.type.bits / 8) || (address < ANY_OFFSET && freed(object))) return false;
        data = at;
        return true;
    }

    bool has_shape(const std::vector<std::int64_t>& sizes) const {
        return sizes.size() == static_cast<std::size_t>(view.axes) && std::equal(sizes.begin(), sizes.end(), view.shape);
    }

    // A view of what must be read with its sign turned, as the imaginary part of a conjugate is: DLPack does not tell.
    static bool negated(nb::handle object) {
        PyObject* const found = PyObject_CallMethodNoArgs(object.ptr(), negative);
        if (!found) PyErr_Clear();
        const bool is = found != Py_False;
        Py_XDECREF(found);
        return is;
    }

    template <class T>
    T* at() const {
        return static_cast<T*>(data);
    }
    explicit operator bool() const { return data != nullptr; }

    void* data = nullptr;
    std::int64_t count = 0;
    char letter = 0;  // of the buffer protocol; H is bfloat16

private:
    static inline const dlpack::Exchange* exchange = nullptr;
    static inline PyTypeObject* types[2] = {};
    static inline PyObject *negative = nullptr, *storage = nullptr, *bytes = nullptr;
    // Where memory was taken back from a tensor, its address is its offset. No offset is as large as this, and almost no
    // address is smaller.
    static constexpr std::uintptr_t ANY_OFFSET = std::uintptr_t{1} << 40;
    dlpack::Tensor view;

    static bool freed(nb::handle object) {
        PyObject* const held = PyObject_CallMethodNoArgs(object.ptr(), storage);
        PyObject* const size = held ? PyObject_CallMethodNoArgs(held, bytes) : nullptr;
        const bool none = !size || PyObject_IsTrue(size) != 1;
        if (PyErr_Occurred()) PyErr_Clear();
        Py_XDECREF(size);
        Py_XDECREF(held);
        return none;
    }

    char format() const {
        const dlpack::Type& type = view.type;
        if (type.lanes != 1) return 0;
        if (type.code == dlpack::FLOAT) return type.bits == 32 ? 'f' : type.bits == 64 ? 'd' : type.bits == 16 ? 'e' : 0;
        if (type.code == dlpack::BFLOAT) return type.bits == 16 ? 'H' : 0;
        return type.code == dlpack::INTEGER && type.bits == 64 ? 'q' : 0;
    }

    // In order and without gaps; counts the elements.
    bool contiguous() {
        count = 1;
        for (std::int32_t i = view.axes; i-- > 0;) {
            if (view.shape[i] != 1 && view.strides && view.strides[i] != count) return false;
            count *= view.shape[i];
        }
        return count > 0;
    }
};

}  // namespace truenorm
