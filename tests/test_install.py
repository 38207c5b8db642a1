"""`make demo` on a fresh machine, with a C++ compiler and without one, and after a set-up that did not end."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.skipif(
    not (ROOT / "Makefile").exists() or not shutil.which("make"), reason="needs a checkout and make"
)


def clean_environment(home: Path) -> dict[str, str]:
    """An environment without a pip cache and without any variable but those that pip needs to reach its registries."""
    endings = ("_proxy", "_PROXY")
    names = [name for name in os.environ if name.startswith(("PIP_", "SSL_CERT")) or name.endswith(endings)]
    config = Path(os.environ.get("XDG_CONFIG_HOME", Path.home() / ".config")) / "pip/pip.conf"
    kept = {name: os.environ[name] for name in ("PATH", "REQUESTS_CA_BUNDLE", *names) if name in os.environ}
    if config.exists():
        kept.setdefault("PIP_CONFIG_FILE", str(config))
    return kept | {"HOME": str(home), "PIP_NO_CACHE_DIR": "1"}


@pytest.mark.slow
def test_make_demo_sets_itself_up_without_a_compiler(tmp_path: Path) -> None:
    # With a compiler, `.ci/run` does the same.
    checkout, home = tmp_path / "checkout", tmp_path / "home"
    home.mkdir()
    ignored = shutil.ignore_patterns(".git", ".venv", "build", "__pycache__", ".*_cache", "runs", "node_modules")
    shutil.copytree(ROOT, checkout, ignore=ignored)
    environment = clean_environment(home) | {"CC": "/bin/false", "CXX": "/bin/false"}

    done = subprocess.run(["make", "demo"], cwd=checkout, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Where to look next" in done.stdout
    assert "<h2>Losses</h2>" in (checkout / "truenorm-demo.html").read_text("utf-8")
    assert "WARNING: the compiled kernels were not built; using NumPy instead." in done.stderr

    shown = subprocess.run([".venv/bin/truenorm", "env"], cwd=checkout, env=environment, capture_output=True, text=True)
    assert "engine             reference\n" in shown.stdout
    assert "torch              not installed: " in shown.stdout


# Stands in for Python: `-m venv` makes a .venv whose python is this script; pip fails while the file `broken` exists.
FAKE_PYTHON = """\
#!/bin/sh
case "$*" in
"-m venv .venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python && cp "$0" .venv/bin/truenorm ;;
*"pip install"*) echo "pip $*" >>pip.log; [ ! -e broken ] || { touch .venv/half-installed; exit 1; } ;;
demo*) echo "the demo" ;;
esac
"""


class Checkout:
    """A checkout in which setting up takes no time."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.venv, self.broken = folder, folder / ".venv", folder / "broken"
        (folder / "src/truenorm/native").mkdir(parents=True)
        for name in ("Makefile", "pyproject.toml", "constraints.txt", "CMakeLists.txt"):
            shutil.copy(ROOT / name, folder)
        (folder / "python").write_text(FAKE_PYTHON)
        (folder / "python").chmod(0o755)

    def make(self, target: str) -> subprocess.CompletedProcess[str]:
        command = ["make", target, f"PYTHON={self.folder / 'python'}"]
        # These tests may themselves be run by make, which passes its options on.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        return subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("target", ["demo", "setup"])
def test_a_set_up_that_did_not_end_starts_again(target: str, tmp_path: Path) -> None:
    checkout = Checkout(tmp_path)
    if target == "setup":
        assert checkout.make("demo").returncode == 0  # what fails is the second part
    checkout.broken.touch()
    assert checkout.make(target).returncode != 0
    assert (checkout.venv / "half-installed").exists()
    checkout.broken.unlink()

    done = checkout.make("demo")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("The last set-up of .venv did not end: starting again.\n")
    assert done.stdout.endswith("the demo\n")
    assert not (checkout.venv / "half-installed").exists()
    assert checkout.make(target).returncode == 0
    assert not (checkout.venv / ".unfinished").exists()


def test_a_set_up_that_ended_is_not_repeated(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path)
    first, second = checkout.make("demo").stdout, checkout.make("demo").stdout
    assert first.startswith("Setting up .venv (1/2): build tools ...\n")
    assert second == "the demo\n"
    assert checkout.make("setup").returncode == 0
    calls = (tmp_path / "pip.log").read_text()
    assert checkout.make("setup").returncode == 0
    assert (tmp_path / "pip.log").read_text() == calls
    assert checkout.make("demo").stdout == "the demo\n"
