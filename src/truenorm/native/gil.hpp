// The interpreter's lock, released while a kernel runs.
#pragma once

#include <Python.h>

#include <chrono>
#include <thread>

namespace truenorm {

// Releases the lock, and takes it again at the end of its scope.
//
// A daemon thread may come back from a kernel when the interpreter has begun to end. Before Python 3.14,
// PyEval_RestoreThread then calls pthread_exit, which unwinds the stack like an exception, up to a frame that is
// noexcept, such as this destructor or nanobind's: there std::terminate aborts the process. So the unwinding stops
// here, and the thread sleeps until the process is gone, which is what Python 3.14 does. It holds no lock of ours: the
// kernel has returned.
class GilRelease {
public:
    GilRelease() : state(PyEval_SaveThread()) {}
    GilRelease(const GilRelease&) = delete;
    GilRelease& operator=(const GilRelease&) = delete;
    ~GilRelease() {
        try {
            PyEval_RestoreThread(state);
        } catch (...) {  // must not be left: the C library aborts if its unwinding is caught
            for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
        }
    }

private:
    PyThreadState* state;
};

}  // namespace truenorm
