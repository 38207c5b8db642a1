#include "threads.hpp"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace truenorm {
namespace {

struct Pool {
    std::mutex caller;  // held by whoever uses the pool
    std::mutex mutex;   // guards what follows
    std::condition_variable work, done;
    std::vector<std::thread> workers;
    std::uint64_t round = 0;  // one for each call of run_items
    int wanted = 0;           // workers that may still join this round
    int active = 0;           // workers that have joined and not finished
    bool stopping = false;
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

    void serve(int number) {
        std::unique_lock<std::mutex> lock(mutex);
        std::uint64_t seen = 0;
        for (;;) {
            work.wait(lock, [&] { return stopping || (round != seen && number < wanted); });
            if (stopping) return;
            seen = round;
            ++active;
            lock.unlock();
            take_items();
            lock.lock();
            if (--active == 0) done.notify_one();
        }
    }

    void grow(int size) {
        while (static_cast<int>(workers.size()) < size) {
            const int number = static_cast<int>(workers.size());
            workers.emplace_back([this, number] { serve(number); });
        }
    }

    void run(int helpers, std::int64_t count_, Item item_, void* context_) {
        {
            std::unique_lock<std::mutex> lock(mutex);
            try {
                grow(helpers);
            } catch (const std::system_error&) {  // no more threads to be had: those that there are will do
            } catch (const std::bad_alloc&) {
            }
            item = item_;
            context = context_;
            count = count_;
            next.store(0, std::memory_order_relaxed);
            wanted = helpers;
            ++round;
        }
        work.notify_all();
        take_items();
        std::unique_lock<std::mutex> lock(mutex);
        wanted = 0;  // all items are taken: who has not woken up yet is not waited for
        done.wait(lock, [&] { return active == 0; });
    }

    ~Pool() {
        {
            std::unique_lock<std::mutex> lock(mutex);
            stopping = true;
        }
        work.notify_all();
        for (std::thread& worker : workers) worker.join();
    }
};

// Never destroyed: at exit, threads may still run while statics are gone.
std::atomic<Pool*> pool{nullptr};
std::atomic<int> threads{0};
std::mutex creation;

// A forked child has none of its parent's threads, and its locks may be held by them: it starts anew.
void forget_in_child() {
    pool.store(nullptr, std::memory_order_release);
    new (&creation) std::mutex;
}

Pool* the_pool() {
    Pool* found = pool.load(std::memory_order_acquire);
    if (found) return found;
    std::unique_lock<std::mutex> lock(creation);
    found = pool.load(std::memory_order_acquire);
    if (!found) {
#if defined(__unix__) || defined(__APPLE__)
        static const int registered = pthread_atfork(nullptr, nullptr, forget_in_child);
        (void)registered;
#endif
        found = new Pool;
        pool.store(found, std::memory_order_release);
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

void run_items(std::int64_t count, Item item, void* context) {
    std::int64_t helpers = get_threads() - 1;
    if (helpers > count - 1) helpers = count - 1;
    if (helpers > 0) {
        Pool* shared = the_pool();
        std::unique_lock<std::mutex> caller(shared->caller, std::try_to_lock);
        if (caller.owns_lock()) {
            shared->run(static_cast<int>(helpers), count, item, context);
            return;
        }
    }
    for (std::int64_t i = 0; i < count; ++i) item(context, i);
}

}  // namespace truenorm
