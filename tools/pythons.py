"""Interpreters of several versions of Python, and environments made with them.

For `tools/dist.py` and `tools/versions.py`. Only the standard library is used, so that `make dist` and
`make test-versions` need no environment to begin with.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
SUPPORTED = ("3.11", "3.12", "3.13")


class MissingError(Exception):
    """Something that this machine lacks, in one line."""


def find(version: str) -> Path:
    """An interpreter of this version, such as "3.12": on the path, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python{version}"))]
    for python in found:
        if python and _works(python):
            return Path(python)
    raise MissingError(f"pythons: Python {version} with venv is needed, got none on the path or of pyenv. Install it.")


def _works(python: str | Path) -> bool:
    """False for the shims of pyenv whose version is not chosen, and for a Python without venv."""
    return subprocess.run([python, "-c", "import venv, ensurepip"], capture_output=True).returncode == 0


def clean_variables() -> dict[str, str]:
    """The variables that pip needs to reach its registries, and where temporary files go; no PATH."""
    named = (
        "HOME",
        "TMPDIR",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "REQUESTS_CA_BUNDLE",
        "XDG_CONFIG_HOME",
        "XDG_CACHE_HOME",
    )
    return {
        name: value
        for name, value in os.environ.items()
        if name in named or name.startswith("PIP_") or name.lower().endswith("_proxy")
    }


class Environment:
    """A virtual environment whose programs find each other on the path, and nothing else: no compiler, no make."""

    def __init__(self, folder: Path, version: str) -> None:
        self.folder, self.version, self.bin = folder, version, folder / "bin"
        self.python = self.bin / "python"
        if self.python.exists():
            return
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([find(version), "-m", "venv", folder], check=True)

    def variables(self) -> dict[str, str]:
        """The environment variables of its programs."""
        return clean_variables() | {"PATH": str(self.bin), "PYTHONDONTWRITEBYTECODE": "1"}

    def install(self, *packages: str | Path, constrained: bool = True) -> None:
        """Install wheels, with the pinned versions unless told otherwise; nothing is built."""
        command: list[str | Path] = [
            self.python,
            "-m",
            "pip",
            "install",
            "-q",
            "--disable-pip-version-check",
            "--no-input",
        ]
        command += ["--only-binary=:all:", *(("-c", CONSTRAINTS) if constrained else ()), *packages]
        self.run(*command)

    def run(
        self, *command: str | Path, check: bool = True, cwd: Path = ROOT, variables: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program with these variables besides; its output is shown if it fails and must not."""
        done = subprocess.run(
            command, cwd=cwd, env=self.variables() | dict(variables or {}), capture_output=True, text=True
        )
        if check and done.returncode != 0:
            raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
        return done

    def versions(self) -> dict[str, str]:
        """The installed packages, by lower-case name."""
        listed = self.run(self.python, "-m", "pip", "list", "--format=json", "--disable-pip-version-check").stdout
        return {one["name"].lower(): one["version"] for one in json.loads(listed)}


def newest(environment: Environment, package: str) -> str:
    """The newest release of a package that has a wheel for this Python."""
    command: list[str | Path] = [environment.python, "-m", "pip", "index", "versions", package, "--only-binary=:all:"]
    text = environment.run(*command, "--disable-pip-version-check").stdout
    return text.split("(", 1)[1].split(")", 1)[0]
