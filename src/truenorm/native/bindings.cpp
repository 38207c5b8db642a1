// Python bindings of truenorm._native, the optional compiled part of truenorm.
#include <map>
#include <string>

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>

namespace {

std::string compiler() {
#if defined(__clang__)
    return "clang " __clang_version__;
#elif defined(__GNUC__)
    return "gcc " __VERSION__;
#else
    return "unknown";
#endif
}

// What the CPU at hand offers, as opposed to what the build targets.
std::string instruction_sets() {
    std::string found;
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2")) found += "avx2 ";
    if (__builtin_cpu_supports("avx512f")) found += "avx512f ";
    if (!found.empty()) found.pop_back();
#endif
    return found;
}

std::map<std::string, std::string> build_info() {
    return {
        {"compiler", compiler()},
        {"standard", "C++" + std::to_string(__cplusplus / 100 % 100)},
        {"instruction_sets", instruction_sets()},
    };
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "Compiled part of truenorm.";
    m.def("build_info", &build_info, "Return how this module was built and what the CPU supports.");
}
