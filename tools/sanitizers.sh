#!/usr/bin/env bash
# Builds the native sources with a sanitizer, and runs their tests on that build.
#
#   tools/sanitizers.sh address     memory that is not ours, and undefined behaviour
#   tools/sanitizers.sh thread      races between the threads of the pool, and of callers
#
# PYTHON is an interpreter with the developer tools. Exit code 77: it cannot be done here, for the reason printed.
set -euo pipefail

kind=${1:?address or thread}
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-$PWD/.venv/bin/python}
export PATH="$(dirname "$python"):$PATH" # cmake and ninja lie beside it
build=$PWD/build/sanitizers/$kind

case $kind in
address)
    library=libasan.so
    # Assertions: indices of vectors too, where a sanitizer sees only what lies beyond all of their memory.
    flags="-fsanitize=address,undefined -fno-sanitize-recover=all -D_GLIBCXX_ASSERTIONS"
    ;;
thread)
    library=libtsan.so
    flags="-fsanitize=thread"
    ;;
*)
    echo "sanitizers.sh: address or thread, got $kind." >&2
    exit 2
    ;;
esac

cannot() {
    echo "no $kind sanitizer here: $1"
    exit 77
}
command -v g++ >/dev/null || cannot "there is no g++"
command -v cmake >/dev/null || cannot "there is no cmake"
library=$(g++ -print-file-name=$library)
[[ $library == */* ]] || cannot "g++ comes without $library"

mkdir -p "$build/site"
cmake -S . -B "$build" -G Ninja -DPython_EXECUTABLE="$python" -DCMAKE_CXX_COMPILER=g++ -DCMAKE_BUILD_TYPE=None \
    -DCMAKE_CXX_FLAGS="-O1 -g -fno-omit-frame-pointer $flags" >"$build/log" 2>&1 || { cat "$build/log"; exit 1; }
cmake --build "$build" >>"$build/log" 2>&1 || { tail -40 "$build/log"; exit 1; }
native=$(ls "$build"/_native*.so)

# Every Python process takes this build for truenorm._native, also those that tests start.
cat >"$build/site/sitecustomize.py" <<END
import importlib.util, sys
spec = importlib.util.spec_from_file_location("truenorm._native", "$native")
sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[spec.name])
END

# The C++ library too: the sanitizer looks up the functions that it replaces when it starts.
# Reports go to files, as pytest would swallow them; Python itself leaks on purpose.
rm -f "$build"/report*
sanitized() {
    env LD_PRELOAD="$library $(g++ -print-file-name=libstdc++.so)" PYTHONPATH="$build/site" TRUENORM_ENGINE=native \
        ASAN_OPTIONS="detect_leaks=0:log_path=$build/report" \
        UBSAN_OPTIONS="print_stacktrace=1:log_path=$build/report" \
        TSAN_OPTIONS="exitcode=66:log_path=$build/report" \
        "$python" "$@"
}
tests() { # --thin: some of the many sizes, as all is several times slower here
    sanitized -m pytest -q -p no:cacheprovider -p no:xdist --durations=5 "$@"
}

# A guard on the guard: what is wrong on purpose is found (unknown-crash: by a vector across the end).
if [[ $kind == address ]]; then
    planted='x = np.lib.stride_tricks.as_strided(np.ones(100, np.float32), (1000,), writeable=False)
tn.measure(x, tn.layer())'
else
    planted='x, moments = np.ones(2**20, np.float32), np.empty(3 * 2**10)
plan = _native.Plan("rows", [2**10, 1, 1, 2**10, 1], 2**10, 1, "float32", center=True, ddof=0, eps=1e-5, eps_outside=False)
call = lambda: plan.measure(x, moments)
both = [threading.Thread(target=call) for _ in range(2)]
[one.start() for one in both]
[one.join() for one in both]'
fi
if sanitized -c "import threading, numpy as np, truenorm as tn
from truenorm import _native
assert _native.__file__ == '$native', _native.__file__
$planted" >"$build/planted" 2>&1; then
    echo "the $kind sanitizer does not find what was planted:"
    cat "$build/planted"
    exit 1
fi
if ! grep -qs -e heap-buffer-overflow -e unknown-crash -e "data race" "$build"/report*; then
    echo "the $kind sanitizer fails for another reason than what was planted:"
    cat "$build/planted" "$build"/report* 2>/dev/null
    exit 1
fi
rm -f "$build"/report*

# Without OpenMP, whose waiting the sanitizers do not see, and without a fork beside a call, which their own locks may not
# survive. The address sanitizer keeps freed memory, and the thread sanitizer has a thread of its own: tests that count
# these are left out, as are those that compare results or look at torch, which is not built with a sanitizer.
status=0
if [[ $kind == address ]]; then
    tests --thin 6 -k "not openmp and not fork_beside_a_call and not engines_agree and not beside_torch" --ignore tests/native/test_memory.py \
        tests/native tests/lab/test_layers.py || status=$?
    tests tests/core/test_oracle.py tests/core/test_edges.py tests/core/test_law.py || status=$?
    sanitized -m tools.fuzz --kind calls --seconds 30 --seed 4 --fence 0 || status=$? # no fence: the sanitizer has its own
else
    tests tests/native/test_threads.py tests/native/test_padding.py -k "not openmp and not enough_to_do" || status=$?
fi
for report in "$build"/report*; do
    [[ -e $report ]] || continue
    head -60 "$report"
    status=1
done
exit $status
