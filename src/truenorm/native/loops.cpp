// Which loops this processor runs.
#include "loops.hpp"

#include <atomic>
#include <cstring>

#if defined(TRUENORM_X86)
#include <cpuid.h>
#endif

namespace truenorm {
namespace {

#if defined(TRUENORM_X86)
// Sets of instructions that the processor has and the system lets programs use: it must save their registers when it
// switches threads. __builtin_cpu_supports says the same, but reads data that not every compiler's library has.
struct Processor {
    bool avx2 = false, avx512 = false;

    Processor() {
        unsigned a = 0, b = 0, c = 0, d = 0;
        if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE) || !(c & bit_AVX) || !(c & bit_F16C)) return;
        unsigned saved = 0, rest = 0;
        __asm__ volatile("xgetbv" : "=a"(saved), "=d"(rest) : "c"(0));
        constexpr unsigned ymm = 0x06, zmm = 0xe6;  // bits of XCR0: registers of 256 bits; of 512, and masks
        if ((saved & ymm) != ymm || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
        constexpr unsigned all = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
        avx2 = (b & bit_AVX2) != 0;
        avx512 = (saved & zmm) == zmm && (b & all) == all;
    }
};

const Processor& processor() {
    static const Processor found;
    return found;
}
#endif

struct Choice {
    const LoopTable& (*table)();
    bool (*supported)();
};

const Choice choices[] = {
#if defined(TRUENORM_X86)
    {loop_table_avx512, [] { return processor().avx512; }},
    {loop_table_avx2, [] { return processor().avx2; }},
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
