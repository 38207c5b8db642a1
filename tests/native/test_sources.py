"""What the compiler says about the sources: no index is narrowed, and the loops compile for every instruction set."""

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytest.importorskip("truenorm._native", reason="the compiled part was not built")

SOURCES = Path(__file__).resolve().parents[2] / "src/truenorm/native"
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
needs_x86 = pytest.mark.skipif(
    not re.search(r"x86|amd64|i\d86", sysconfig.get_platform(), re.IGNORECASE), reason="this is no x86 processor"
)


def compile_only(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Checks code that includes the sources. Nothing is written."""
    words = ["g++", "-std=c++17", "-fvisibility=hidden", "-fsyntax-only", "-DTRUENORM_X86", f"-I{SOURCES}", *options]
    return subprocess.run([*words, "-x", "c++", "-"], input=code, capture_output=True, text=True, check=False)


def narrowings(code: str) -> list[str]:
    """The compiler's warnings about conversions that may lose digits."""
    nanobind = [sys.executable, "-m", "nanobind", "--include_dir"]
    found = subprocess.run(nanobind, capture_output=True, text=True, check=True).stdout.split()
    include = [word for folder in (sysconfig.get_paths()["include"], *found) for word in ("-isystem", folder)]
    done = compile_only(code, "-Wconversion", "-Wno-sign-conversion", *include)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stderr.splitlines() if "warning" in line]


@pytest.mark.slow
@needs_compiler
def test_no_index_is_narrowed() -> None:
    for file in sorted(SOURCES.glob("*.cpp")):
        assert narrowings(f'#include "{file.name}"') == [], file.name
    planted = '#include "params.hpp"\nint rows(const truenorm::CallParams& p) { return p.rows; }'
    assert "may change value" in narrowings(planted)[0]


# No table is built for AVX without AVX2, but a compiler may be set to it for all files.
@needs_compiler
@needs_x86
@pytest.mark.parametrize("option", ["-msse2", "-mavx", "-mavx2", "-mavx512f"])
def test_the_loops_compile_for_every_instruction_set(option: str) -> None:
    done = compile_only('#define TRUENORM_TABLE baseline\n#include "loops.inc"', "-Wall", "-Wextra", "-Werror", option)
    assert done.returncode == 0, done.stderr


def test_the_interpreter_lock_is_released_in_one_way() -> None:
    # nanobind's own guard aborts the process if a daemon thread returns from a kernel while the interpreter ends.
    texts = {file.name: file.read_text() for file in sorted(SOURCES.rglob("*.*")) if file.is_file()}
    assert [name for name, text in texts.items() if "PyEval_SaveThread" in text] == ["gil.hpp"]
    assert not [name for name, text in texts.items() if "gil_scoped_release" in text]


def test_no_loop_takes_more_than_ten_arguments_by_position() -> None:
    text = (SOURCES / "loops.hpp").read_text()
    counts = {name: len(given.split(",")) for name, given in re.findall(r"(?:void|bool) \(\*(\w+)\)\(([^;]*)\);", text)}
    assert len(counts) == 21
    assert {name: count for name, count in counts.items() if count > 10} == {}


def test_letters_of_dtypes_are_kept_in_one_place() -> None:
    """A dtype that is added to the kernels is then known to NumPy's and to torch's side."""
    kept = [
        file.name
        for file in sorted(SOURCES.parent.rglob("*.*"))
        if file.suffix in (".py", ".hpp", ".cpp")
        and re.search(r"\"H\"[:,].*\bbfloat16\b|bfloat16: \"H\"", file.read_text())
    ]
    assert kept == ["dtype.hpp"]
