"""What the numbers were measured on: hardware, versions, threads. Nothing that names a host, a person or a path."""

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


def facts() -> dict[str, Any]:
    """All of it, ready for JSON."""
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
    """What `truenorm env` says of itself: the public word on which engine runs, however it is chosen inside."""
    command = [sys.executable, "-m", "truenorm", "env", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def cpu_model(path: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name, as the system tells it."""
    found = re.search(r"^model name\s*:\s*(.+)$", _read(path), re.MULTILINE)
    return found[1].strip() if found else platform.processor() or "unknown"


def caches(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> dict[str, str]:
    """The size of each cache that holds data: they decide which pass comes from memory."""
    found = {}
    for index in sorted(folder.glob("index*")):
        if _read(index / "type").strip() != "Instruction":
            found[f"L{_read(index / 'level').strip()}"] = _read(index / "size").strip()
    return found


def revision() -> str | None:
    """The commit, with a + if files differ from it; None outside a repository."""
    try:
        commit, changes = (
            subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
            for command in (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain"])
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit + ("+" if changes else "")


def _chosen(path: Path) -> str | None:
    """The word in brackets, as the kernel marks the setting in force."""
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
