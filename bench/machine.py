"""The machine that times were measured on: hardware, versions, threads. No host names, user names or paths."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("numpy", "torch", "jax", "jaxlib")
ROOT = Path(__file__).resolve().parents[1]
MEASURED = ("src", "bench/*.py", "CMakeLists.txt", "pyproject.toml", "constraints.txt", ":!src/truenorm/page")


def facts() -> dict[str, Any]:
    """Hardware, versions, engine and revision, ready for JSON."""
    ours = environment()
    return {
        "cpu": cpu_model(),
        "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "caches": caches(),
        "system": f"{platform.system()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()),
        "huge_pages": _chosen(Path("/sys/kernel/mm/transparent_hugepage/enabled")),
        "versions": {"python": platform.python_version(), "truenorm": ours["truenorm"]}
        | {package: _version(package) for package in PACKAGES},
        "engine": ours["engine"],
        "engine_threads": ours["threads"],
        "native": ours["native"],
        "revision": revision(),
    }


def environment() -> dict[str, Any]:
    """The output of `truenorm env`, which says which engine is used."""
    command = [sys.executable, "-m", "truenorm", "env", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def cpu_model(path: Path = Path("/proc/cpuinfo")) -> str:
    """The name of the processor."""
    found = re.search(r"^model name\s*:\s*(.+)$", _read(path), re.MULTILINE)
    return found[1].strip() if found else platform.processor() or "unknown"


def caches(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> dict[str, str]:
    """The size of each data cache. They decide which passes read from memory."""
    found = {}
    for index in sorted(folder.glob("index*")):
        if _read(index / "type").strip() != "Instruction":
            found[f"L{_read(index / 'level').strip()}"] = _read(index / "size").strip()
    return found


def revision() -> str | None:
    """The commit, with a + if what is measured differs from it; None outside a repository.

    Changes of recorded results and of pages do not count: `make bench-all` writes them while it runs.
    """
    try:
        commit, changes = (
            subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
            for command in (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain", "--", *MEASURED])
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit + ("+" if changes else "")


def _chosen(path: Path) -> str | None:
    """The word in brackets: the kernel marks the active setting with them."""
    found = re.search(r"\[(\w+)\]", _read(path))
    return found[1] if found else None


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError:
        return ""


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
