// An array from Python: checked once, then a pointer.
#pragma once

#include <Python.h>

#include <cstdint>
#include <string>
#include <string_view>

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "dtype.hpp"

namespace truenorm {

namespace nb = nanobind;

// The error for a wrong argument: "ddof must be 0 or 1, got 2."
template <class Value> nb::builtin_exception wrong(const std::string& rule, const Value& got) {
    return nb::value_error((rule + ", got " + nb::repr(nb::cast(got)).c_str() + ".").c_str());
}

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

    // None leaves it null. `formats`: the accepted letters of the buffer protocol; H is bfloat16. size: of the array,
    // or ANY.
    static constexpr std::int64_t ANY = -1;
    void take(nb::handle object, const char* name, std::string_view formats, bool writable, std::int64_t size) {
        if (object.is_none()) return;
        const char* format = open(object, name, writable);
        if (format[0] == 0 || format[1] != 0 || formats.find(*format) == std::string_view::npos) {
            const std::string rule = std::string(name) + " must hold elements of format " + std::string(formats);
            throw nb::type_error((rule + ", got " + format + ".").c_str());
        }
        letter = *format;
        if (reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(size_of(letter)))
            throw nb::value_error((std::string(name) + " must be an aligned array.").c_str());
        if (size != ANY && count != size)
            throw wrong(std::string(name) + " must have " + std::to_string(size) + " elements", count);
    }

    // `take` of an array that must be given.
    void require(nb::handle object, const char* name, std::string_view formats, bool writable, std::int64_t size) {
        take(object, name, formats, writable, size);
        if (!data) throw wrong(std::string(name) + " must be an array", nb::none());
    }

    void apart_from(const Array& other) const {
        if (!data || !other.data) return;
        const char *one = static_cast<const char*>(data), *two = static_cast<const char*>(other.data);
        if (one < two + other.view.len && two < one + view.len)
            throw nb::value_error("an output must not share memory with another array.");
    }

    template <class T> T* at() const { return static_cast<T*>(data); }
    std::int64_t size() const { return count; }
    Buffer buffer() const { return {data, letter}; }
    explicit operator bool() const { return data != nullptr; }
    char letter = 0;

private:
    Py_buffer view{};
    bool held = false;
    void* data = nullptr;
    std::int64_t count = 0;

    const char* open(nb::handle object, const char* name, bool writable) {
        const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
        if (PyObject_GetBuffer(object.ptr(), &view, flags) != 0) {
            PyErr_Clear();
            const char* const kind =
                writable ? " must be a contiguous writable array." : " must be a contiguous array.";
            throw nb::value_error((std::string(name) + kind).c_str());
        }
        held = true;
        data = view.buf;
        count = view.itemsize ? view.len / view.itemsize : 0;  // elements of 0 bytes are refused by their format
        const char* format = view.format ? view.format : "B";
        return *format == '<' || *format == '=' || *format == '@' ? format + 1 : format;
    }
};

}  // namespace truenorm
