// What `truenorm._native` offers to a module that is built against torch's C++ library: calls without Python.
//
// A capsule holds these pointers, as the two modules share no symbols. They are built together, from this header.
#pragma once

#include <Python.h>

#include "dlpack.hpp"

namespace truenorm {

class Call;

// Null: not given. See `Call::ForwardTensors` and `Call::BackwardTensors`.
struct ForwardViews {
    const dlpack::Tensor *x, *y, *weight, *bias, *residual, *total;
};
struct BackwardViews {
    const dlpack::Tensor *x, *dy, *dx, *weight, *bias, *dweight, *dbias, *dtotal;
};

struct CallFunctions {
    static constexpr const char* CAPSULE = "truenorm.call_functions.1";

    Call* (*find)(PyObject* object);  // lives as long as the object; null if it is something else
    bool (*activated)(const Call& call);
    // False, and nothing done, if a tensor does not fit or cannot be read in place. Without the interpreter's lock.
    bool (*forward)(Call& call, const ForwardViews& with);
    bool (*backward)(Call& call, const BackwardViews& with);
};

}  // namespace truenorm
