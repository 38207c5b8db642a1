"""`truenorm env`: versions and set-up of this installation, for example for a bug report."""

from __future__ import annotations

import json
import platform
from importlib.metadata import PackageNotFoundError, version

import click

import truenorm as tn
from truenorm import engine
from truenorm.cli import Command

# Optional packages, and the extra that installs each.
OPTIONAL = {
    "pydantic": "lab",
    "safetensors": "lab",
    "names": "lab",
    "threadpoolctl": "lab",
    "loky": "lab",
    "altair": "report",
    "vl-convert-python": "report",
    "jinja2": "report",
    "distributed": "cluster",
    "torch": "torch",
}
READ = "read by the kernels"


@click.command(cls=Command, epilog="Example: truenorm env --json")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> None:
    """Show versions, engine, threads and missing packages."""
    tensors = _tensors()
    info = {
        "truenorm": tn.__version__,
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "machine": f"{platform.system()} {platform.machine()}",
        "engine": engine.engine(),
        "threads": engine.threads(),
        "native": engine.native_build(),
        "tensors": tensors,
        "autograd": _autograd() if tensors == READ else None,
        "optional": {package: _version(package) for package in OPTIONAL},
    }
    if as_json:
        click.echo(json.dumps(info, indent=2))
        return
    for name in ("truenorm", "python", "numpy", "machine", "engine", "threads"):
        click.echo(f"{name:18} {info[name]}")
    click.echo(f"{'native':18} {_native_line()}")
    for package, extra in OPTIONAL.items():
        missing = f"not installed: pip install 'truenorm[{extra}]'"
        click.echo(f"{package:18} {_version(package) or missing}")
    for name in ("tensors", "autograd"):
        if info[name] is not None:
            click.echo(f"{name:18} {info[name]}")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _tensors() -> str | None:
    """How truenorm.torch computes with the installed torch; None without torch."""
    if _version("torch") is None:
        return None
    try:
        from truenorm.torch import kernels_read_tensors
    except Exception as error:  # a broken installation of torch fails in many ways
        return f"torch cannot be imported: {error}"
    if engine.compiled() is None:
        return "computed by torch operations: the compiled kernels are not in use"
    if not kernels_read_tensors():
        return "computed by torch operations: the kernels cannot read the tensors of this torch version"
    return READ


def _autograd() -> str:
    """How steps of the kernels are differentiated."""
    from truenorm.torch import autograd_in_cpp

    return "in C++" if autograd_in_cpp() else "in Python: docs/torch.md says how to build the part in C++"


def _native_line() -> str:
    build = engine.native_build()
    if build is None:
        return "not built: no C++ compiler was found at install; NumPy is used instead"
    return ", ".join(f"{key} {value}" for key, value in build.items() if value)
