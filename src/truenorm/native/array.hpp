// An array from Python: checked once, then a pointer.
#pragma once

#include <Python.h>

#include <cstdint>
#include <string>

#include <nanobind/nanobind.h>

namespace truenorm {

namespace nb = nanobind;

// One contiguous array, held for as long as a call needs it.
class Array {
public:
    Array() = default;
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;
    ~Array() {
        if (held) PyBuffer_Release(&view);
    }

    // None leaves it null. `formats`: the letters of the buffer protocol that will do.
    void take(nb::handle object, const char* name, const char* formats, bool writable) {
        if (object.is_none()) return;
        const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
        if (PyObject_GetBuffer(object.ptr(), &view, flags) != 0) {
            PyErr_Clear();
            throw nb::value_error((std::string(name) + ": a contiguous " + (writable ? "writable " : "") + "array.").c_str());
        }
        held = true;
        const char* format = view.format ? view.format : "B";
        if (*format == '<' || *format == '=' || *format == '@') ++format;
        for (const char* wanted = formats; *wanted; ++wanted)
            if (*format == *wanted && format[1] == 0) {
                letter = *format;
                if (reinterpret_cast<std::uintptr_t>(view.buf) % static_cast<std::uintptr_t>(view.itemsize))
                    throw nb::value_error((std::string(name) + ": an aligned array.").c_str());
                return;
            }
        throw nb::type_error((std::string(name) + ": elements of format " + formats + ", got " + format + ".").c_str());
    }

    void has(const char* name, std::int64_t count) const {
        if (held && size() != count)
            throw nb::value_error((std::string(name) + ": " + std::to_string(count) + " elements, got " +
                                   std::to_string(size()) + ".")
                                      .c_str());
    }

    void apart_from(const Array& other) const {
        if (!held || !other.held) return;
        const char *one = static_cast<const char*>(view.buf), *two = static_cast<const char*>(other.view.buf);
        if (one < two + other.view.len && two < one + view.len)
            throw nb::value_error("an output shares memory with another array.");
    }

    template <class T>
    T* at() const {
        return held ? static_cast<T*>(view.buf) : nullptr;
    }
    std::int64_t size() const { return held ? view.len / view.itemsize : 0; }
    explicit operator bool() const { return held; }
    char letter = 0;

private:
    Py_buffer view{};
    bool held = false;
};

}  // namespace truenorm
