"""`make demo` on a machine where nothing was prepared, with a C++ compiler and without one."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (ROOT / "Makefile").exists() or not shutil.which("make"), reason="needs a checkout and make"
    ),
]


def stranger(home: Path) -> dict[str, str]:
    """An environment without a pip cache and without any variable but those that pip needs to reach its registries."""
    endings = ("_proxy", "_PROXY")
    names = [name for name in os.environ if name.startswith(("PIP_", "SSL_CERT")) or name.endswith(endings)]
    config = Path(os.environ.get("XDG_CONFIG_HOME", Path.home() / ".config")) / "pip/pip.conf"
    kept = {name: os.environ[name] for name in ("PATH", "REQUESTS_CA_BUNDLE", *names) if name in os.environ}
    if config.exists():
        kept.setdefault("PIP_CONFIG_FILE", str(config))
    return kept | {"HOME": str(home), "PIP_NO_CACHE_DIR": "1"}


@pytest.mark.parametrize("compiler", ["g++", "none"])
def test_make_demo_sets_itself_up(compiler: str, tmp_path: Path) -> None:
    if compiler != "none" and not shutil.which(compiler):
        pytest.skip(f"needs {compiler}")
    checkout, home = tmp_path / "checkout", tmp_path / "home"
    home.mkdir()
    ignored = shutil.ignore_patterns(".git", ".venv", "build", "__pycache__", ".*_cache", "runs")
    shutil.copytree(ROOT, checkout, ignore=ignored)
    environment = stranger(home)
    if compiler == "none":
        environment |= {"CC": "/bin/false", "CXX": "/bin/false"}

    done = subprocess.run(["make", "demo"], cwd=checkout, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Where to go from here" in done.stdout
    missing = "WARNING: the compiled kernels were not built; using NumPy instead."
    assert (missing in done.stderr) == (compiler == "none")

    shown = subprocess.run([".venv/bin/truenorm", "env"], cwd=checkout, env=environment, capture_output=True, text=True)
    assert f"engine       {'reference' if compiler == 'none' else 'native'}\n" in shown.stdout
    assert "torch        not installed: " in shown.stdout
