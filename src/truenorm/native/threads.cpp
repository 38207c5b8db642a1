#include "threads.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <dlfcn.h>
#include <pthread.h>
#endif
#if defined(TRUENORM_X86)
#include <emmintrin.h>
#endif

namespace truenorm {
namespace {

// A sleeping thread takes about 50 us to wake, in which one that is awake does about this many elements.
constexpr std::int64_t WORTH_WAKING = 1 << 16;
// For the next part of a call, or a call that follows at once, a thread waits awake, for no longer than it takes to
// wake. Meanwhile it yields its processor to other threads.
constexpr std::chrono::microseconds PATIENCE{50};

inline void pause() {
#if defined(TRUENORM_X86)
    _mm_pause();
#endif
}

// Waits awake until ready(), at most for PATIENCE.
template <class Ready> bool soon(Ready ready) {
    const auto begin = std::chrono::steady_clock::now();
    for (int turn = 0;; ++turn) {
        if (ready()) return true;
        pause();
        if (turn % 16 != 15) continue;
        std::this_thread::yield();
        if (std::chrono::steady_clock::now() - begin > PATIENCE) return false;
    }
}

}  // namespace

using Item = void (*)(void* context, std::int64_t index);

struct Pool {
    std::mutex caller;  // held by the team that uses the pool
    std::mutex mutex;   // guards what follows; what is read without it is atomic
    std::condition_variable work, done;
    std::vector<std::thread> workers;
    std::atomic<int> helpers{0};          // workers that the present call wants
    std::atomic<std::uint64_t> event{0};  // counts: a call begins, or has items
    std::atomic<int> active{0};           // workers at the present items
    Item item = nullptr;
    void* context = nullptr;
    std::int64_t count = 0;
    std::atomic<std::int64_t> next{0};

    void take_items() {
        for (;;) {
            const std::int64_t i = next.fetch_add(1, std::memory_order_relaxed);
            if (i >= count) return;
            item(context, i);
        }
    }

    void help() {
        {
            std::unique_lock<std::mutex> lock(mutex);
            if (next.load(std::memory_order_relaxed) >= count) return;  // nothing to do, or no more
            active.fetch_add(1);
        }
        take_items();
        std::unique_lock<std::mutex> lock(mutex);
        if (active.fetch_sub(1) == 1) done.notify_one();
    }

    void serve(int number) {
        std::uint64_t seen = 0;
        const auto called = [&] { return number < helpers.load() && event.load() != seen; };
        for (;;) {
            {
                std::unique_lock<std::mutex> lock(mutex);
                work.wait(lock, called);
            }
            do {
                seen = event.load();
                help();
            } while (soon(called));
        }
    }

    // Wakes the workers, and starts those that are missing.
    void begin(int wanted) {
        {
            std::unique_lock<std::mutex> lock(mutex);
            try {
                while (static_cast<int>(workers.size()) < wanted) {
                    const int number = static_cast<int>(workers.size());
                    workers.emplace_back([this, number] { serve(number); });
                }
            } catch (const std::system_error&) {  // no more threads: use those that exist
            } catch (const std::bad_alloc&) {
            }
            helpers.store(wanted);
            event.fetch_add(1);
        }
        work.notify_all();
    }

    void run(std::int64_t count_, Item item_, void* context_) {
        {
            std::unique_lock<std::mutex> lock(mutex);
            item = item_;
            context = context_;
            count = count_;
            next.store(0);
            event.fetch_add(1);
        }
        work.notify_all();  // workers that went to sleep
        take_items();
        if (soon([&] { return active.load() == 0; })) {
            std::unique_lock<std::mutex> lock(mutex);  // every worker that joined before this has also left
            if (active.load() == 0) return;
        }
        std::unique_lock<std::mutex> lock(mutex);
        done.wait(lock, [&] { return active.load() == 0; });
    }
};

namespace {

// Never destroyed: at exit, threads may still run while statics are gone.
std::atomic<Pool*> pool_of_all{nullptr};
std::atomic<int> threads{0};
std::mutex creation;

std::atomic<Parallel> openmp{nullptr};  // where it was found and is to be used

// The items of a call.
struct Items {
    Item item;
    void* context;
    std::int64_t count;
    std::atomic<std::int64_t> next{0};

    void take() {
        for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) item(context, i);
    }
};

// A forked child has none of its parent's threads, which may hold locks: it starts a new pool. OpenMP cannot do so.
void forget_in_child() {
    openmp.store(nullptr);
    pool_of_all.store(nullptr, std::memory_order_release);
    new (&creation) std::mutex;
}

void start_anew_in_children() {
#if defined(__unix__) || defined(__APPLE__)
    static const int registered = pthread_atfork(nullptr, nullptr, forget_in_child);
    (void)registered;
#endif
}

Pool* the_pool() {
    Pool* found = pool_of_all.load(std::memory_order_acquire);
    if (found) return found;
    std::unique_lock<std::mutex> lock(creation);
    found = pool_of_all.load(std::memory_order_acquire);
    if (!found) {
        start_anew_in_children();
        found = new Pool;
        pool_of_all.store(found, std::memory_order_release);
    }
    return found;
}

}  // namespace

void set_threads(int count) { threads.store(count < 1 ? 1 : count); }

int get_threads() {
    const int count = threads.load();
    if (count) return count;
    const unsigned cores = std::thread::hardware_concurrency();
    return cores ? static_cast<int>(cores) : 1;
}

bool use_openmp(bool use) {
    Parallel found = nullptr;
#if defined(__unix__)
    start_anew_in_children();
    if (use) found = reinterpret_cast<Parallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
#endif
    openmp.store(found);
    return found != nullptr;
}

bool Team::shares(std::int64_t elements) { return elements >= WORTH_WAKING; }

Team::Team(std::int64_t elements) {
    if (!shares(elements)) return;
    const int helpers = get_threads() - 1;
    if (helpers < 1) return;
    parallel = openmp.load();
    if (parallel) return;
    Pool* shared = the_pool();
    turn = std::unique_lock<std::mutex>(shared->caller, std::try_to_lock);
    if (!turn.owns_lock()) return;
    pool = shared;
    pool->begin(helpers);
}

void Team::run(std::int64_t count, Item item, void* context) {
    if (!parallel) return pool->run(count, item, context);
    Items items{item, context, count};
    const std::int64_t most = get_threads();
    parallel([](void* all) { static_cast<Items*>(all)->take(); }, &items,
             static_cast<unsigned>(count < most ? count : most), 0);
}

}  // namespace truenorm
