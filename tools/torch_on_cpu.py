"""A torch that runs on the CPU, of any version, without gigabytes of CUDA: for `tools/versions.py`.

Most wheels of torch on a package index are built for CUDA, and need about 3 GB of libraries to be imported. Nothing of
these is called on a machine without a GPU. So torch is installed without what it depends on; the small runtime
library, which is called when torch is imported, is the real one; and each other library of CUDA becomes a stub whose
functions abort. A build for the CPU, as on an index that TORCH_INDEX names, is installed as it is.
"""

from __future__ import annotations

import collections
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tools.pythons import Environment

DEPENDENCIES = ("typing_extensions", "filelock", "sympy", "networkx", "jinja2", "fsspec", "setuptools")
# What the names of functions begin with in libraries that do not mark theirs with a version.
PREFIXES = {
    "libcudnn": "cudnn",
    "libnccl": "nccl",
    "libcuda.": "cu",
    "libcupti": "cupti",
    "libcurand": "curand",
    "libcufft.": "cufft",
    "libcufile": "cuFile",
    "libcusparseLt": "cusparseLt",
    "libnvToolsExt": "nvtx",
    "libnvshmem": "nvshmem",
}


def install(environment: Environment, version: str) -> None:
    """Install this version of torch, such as "2.10.0", and see that it can be imported."""
    index = ["--index-url", os.environ["TORCH_INDEX"]] if "TORCH_INDEX" in os.environ else []
    environment.install("--no-deps", *index, f"torch=={version}", constrained=False)
    environment.install(*DEPENDENCIES)
    (library,) = environment.folder.glob("lib/python*/site-packages/torch/lib")
    if (library / "libc10_cuda.so").exists():
        add_runtime(environment, library)
        add_stubs(library)
    environment.run(environment.python, "-c", "import torch")


def add_runtime(environment: Environment, library: Path) -> None:
    """CUDA's runtime library, beside torch's."""
    (name,) = [one for one in needed(library / "libc10_cuda.so") if one.startswith("libcudart")]
    package = "nvidia-cuda-runtime-cu12" if name.endswith(".12") else "nvidia-cuda-runtime"
    environment.install("--no-deps", package, constrained=False)
    shutil.copy(next(environment.folder.rglob(f"nvidia/**/{name}")), library)


def add_stubs(library: Path) -> None:
    """For each library of CUDA that torch's need and that is not here, one whose functions abort."""
    files = [file for file in library.glob("*.so*") if file.is_file() and not file.is_symlink()]
    undefined = collections.defaultdict(set)  # functions that are defined nowhere, by the version they are marked with
    for file in files:
        for line in read("--dyn-syms", "-W", file).splitlines():
            if found := re.search(r"(?:GLOBAL|WEAK)\s+DEFAULT\s+UND (\w+)(?:@(\S+))?", line):
                undefined[found[2] or ""].add(found[1])
    present = {file.name for file in library.iterdir()}
    for name in sorted({one for file in files for one in needed(file)} - present):
        if not re.match(r"lib(cu|nccl|nv)", name):
            continue
        stem = name.split(".so")[0]
        marks = [mark for mark in sorted(undefined) if mark and (mark.split(".so")[0] == stem or stem == mark.lower())]
        if stem.startswith("libnvshmem") and "NVSHMEM" in undefined:
            marks = ["NVSHMEM"]
        functions = set().union(*(undefined[mark] for mark in marks))
        for start, prefix in PREFIXES.items():
            if name.startswith(start):
                functions |= {function for function in undefined[""] if function.startswith(prefix)}
        make_stub(library / name, sorted(functions), marks[:1])


def make_stub(file: Path, functions: list[str], marks: list[str]) -> None:
    """A library of functions that abort, all marked with one version or none."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "stub.c").write_text(
            "void abort(void);\n" + "".join(f"void {one}(void) {{ abort(); }}\n" for one in functions)
        )
        (folder / "marks").write_text("".join(f"{mark} {{ global: *; }};\n" for mark in marks))
        script = [f"-Wl,--version-script={folder / 'marks'}"] if marks else []
        command = ["cc", "-shared", "-fPIC", "-w", "-O0", "-fno-builtin", f"-Wl,-soname,{file.name}", *script]
        subprocess.run([*command, folder / "stub.c", "-o", file], check=True)


def needed(file: Path) -> list[str]:
    """The libraries that a library needs."""
    return re.findall(r"NEEDED.*\[(.*)\]", read("-d", file))


def read(*arguments: str | Path) -> str:
    """What readelf prints."""
    return subprocess.run(["readelf", *arguments], capture_output=True, text=True, check=True).stdout
