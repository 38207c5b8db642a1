// A small pool of threads. Results never depend on it: work is cut into items by the data alone, and items only differ
// in who does them.
#pragma once

#include <cstdint>

namespace truenorm {

// How many threads work on a call, the caller included. At least 1.
void set_threads(int count);
int get_threads();

using Item = void (*)(void* context, std::int64_t index);

// item(context, 0 .. count - 1), by the caller and the pool. Waits for all of them. Items must not throw.
// Where the pool is busy with another caller's work, the caller does all of its own.
void run_items(std::int64_t count, Item item, void* context);

// The same for a function object. `elements` is how much there is to do: little is done by the caller alone.
template <class Body>
void parallel(std::int64_t count, std::int64_t elements, Body& body) {
    constexpr std::int64_t worth_waking = 1 << 15;  // a thread wakes in about 10 us, in which one does about this much
    if (elements < worth_waking) {
        for (std::int64_t i = 0; i < count; ++i) body(i);
        return;
    }
    run_items(count, [](void* context, std::int64_t i) { (*static_cast<Body*>(context))(i); }, &body);
}

}  // namespace truenorm
