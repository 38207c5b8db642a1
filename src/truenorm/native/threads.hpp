// A small pool of threads. Results never depend on it: work is cut into items by the data alone, and each item gives
// the same result on any thread.
#pragma once

#include <cstdint>
#include <mutex>

namespace truenorm {

// How many threads work on a call, the caller included. At least 1.
void set_threads(int count);
int get_threads();

// Whether OpenMP's threads do the work from now on, where the process has them (GNU's, which torch brings): they are
// awake from the operators around a call, and a pool beside them would fight them for the cores. False where they do
// not.
bool use_openmp(bool use);
using Parallel = void (*)(void (*function)(void*), void* data, unsigned threads, unsigned flags);

struct Pool;

// The threads of one call. They wake when it begins, and stay awake from one part of its work to the next. If there is
// little to do, or if the pool works for another caller, the caller does all the work.
class Team {
public:
    explicit Team(std::int64_t elements);
    static bool shares(std::int64_t elements);  // whether so many are worth it
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    // Calls body(0) to body(count - 1), on all threads, and waits for them. A body must not throw.
    template <class Body> void share(std::int64_t count, Body& body) {
        if ((pool || parallel) && count > 1)
            return run(count, [](void* context, std::int64_t i) { (*static_cast<Body*>(context))(i); }, &body);
        for (std::int64_t i = 0; i < count; ++i) body(i);
    }

private:
    using Item = void (*)(void* context, std::int64_t index);
    void run(std::int64_t count, Item item, void* context);

    Pool* pool = nullptr;
    Parallel parallel = nullptr;  // OpenMP's threads, instead of the pool's
    std::unique_lock<std::mutex> turn;
};

}  // namespace truenorm
