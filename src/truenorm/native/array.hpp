// An array from Python: checked once, then a pointer.
#pragma once

#include <Python.h>

#include <cstdint>
#include <string>

#include <nanobind/nanobind.h>

#include "dtype.hpp"

namespace truenorm {

namespace nb = nanobind;

// One contiguous array, held for as long as a call needs it: any object with the buffer protocol, such as a NumPy
// array.
class Array {
public:
    Array() = default;
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;
    ~Array() {
        if (held) PyBuffer_Release(&view);
    }

    // None leaves it null. `formats`: the accepted letters of the buffer protocol; H is bfloat16.
    void take(nb::handle object, const char* name, const char* formats, bool writable) {
        if (object.is_none()) return;
        const char* format = open(object, name, writable);
        for (const char* wanted = formats; *wanted; ++wanted)
            if (*format == *wanted && format[1] == 0) {
                letter = *format;
                if (reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(itemsize()))
                    throw nb::value_error((std::string(name) + ": an aligned array.").c_str());
                return;
            }
        throw nb::type_error((std::string(name) + ": elements of format " + formats + ", got " + format + ".").c_str());
    }

    void has(const char* name, std::int64_t wanted) const {
        if (data && count != wanted)
            throw nb::value_error(
                (std::string(name) + ": " + std::to_string(wanted) + " elements, got " + std::to_string(count) + ".")
                    .c_str());
    }

    void apart_from(const Array& other) const {
        if (!data || !other.data) return;
        const char *one = static_cast<const char*>(data), *two = static_cast<const char*>(other.data);
        if (one < two + other.count * other.itemsize() && two < one + count * itemsize())
            throw nb::value_error("an output shares memory with another array.");
    }

    template <class T>
    T* at() const {
        return static_cast<T*>(data);
    }
    std::int64_t size() const { return count; }
    Buffer buffer() const { return {data, letter}; }
    explicit operator bool() const { return data != nullptr; }
    char letter = 0;

private:
    Py_buffer view{};
    bool held = false;
    void* data = nullptr;
    std::int64_t count = 0;

    std::int64_t itemsize() const { return size_of(letter); }

    const char* open(nb::handle object, const char* name, bool writable) {
        const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
        if (PyObject_GetBuffer(object.ptr(), &view, flags) != 0) {
            PyErr_Clear();
            throw nb::value_error(
                (std::string(name) + ": a contiguous " + (writable ? "writable " : "") + "array.").c_str());
        }
        held = true;
        data = view.buf;
        count = view.itemsize ? view.len / view.itemsize : 0;  // elements of 0 bytes are refused by their format
        const char* format = view.format ? view.format : "B";
        return *format == '<' || *format == '=' || *format == '@' ? format + 1 : format;
    }
};

}  // namespace truenorm
