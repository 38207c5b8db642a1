// Which loops this processor runs.
#include "loops.hpp"

#include <atomic>
#include <cstring>

namespace truenorm {
namespace {

struct Choice {
    const LoopTable& (*table)();
    bool (*supported)();
};

const Choice choices[] = {
#if defined(TRUENORM_X86)
    {loop_table_avx512,
     [] {
         __builtin_cpu_init();
         return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
     }},
    {loop_table_avx2,
     [] {
         __builtin_cpu_init();
         return static_cast<bool>(__builtin_cpu_supports("avx2"));
     }},
#endif
    {loop_table_baseline, [] { return true; }},
};

std::atomic<const LoopTable*> chosen{nullptr};

}  // namespace

const LoopTable& loop_table() {
    const LoopTable* table = chosen.load(std::memory_order_acquire);
    if (!table) {
        select_loops(nullptr);
        table = chosen.load(std::memory_order_acquire);
    }
    return *table;
}

// null: the best one. False where this processor or build has none of that name.
bool select_loops(const char* name) {
    for (const Choice& choice : choices) {
        if (!choice.supported()) continue;
        const LoopTable& table = choice.table();
        if (name && std::strcmp(name, table.name) != 0) continue;
        chosen.store(&table, std::memory_order_release);
        return true;
    }
    return false;
}

}  // namespace truenorm
