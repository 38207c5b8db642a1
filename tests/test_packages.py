"""What `make dist` and `make test-versions` rely on. They themselves take minutes, and run before a release."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from tools import dist, torch_on_cpu, versions
from tools.pythons import SUPPORTED, MissingError, find

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
WHEEL = ["truenorm/_native.abi3.so", "truenorm/_native.pyi", "truenorm/py.typed", "truenorm/page/index.html"]


@pytest.mark.parametrize(("variable", "falls_back"), [(None, True), ("", True), ("0", True), ("1", False)])
def test_only_users_get_pure_python_when_the_kernels_do_not_compile(
    variable: str | None, falls_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = pytest.importorskip("scikit_build_core.settings.skbuild_read_settings", reason="no build tools")
    monkeypatch.delenv("TRUENORM_REQUIRE_KERNELS", raising=False)
    if variable is not None:
        monkeypatch.setenv("TRUENORM_REQUIRE_KERNELS", variable)
    after = reader.SettingsReader(PROJECT, {}, state="wheel", retry=True)
    # scikit-build-core tries again only if an override for failed builds applies.
    assert ("failed" in after.overrides, after.settings.wheel.cmake) == (falls_back, not falls_back)
    assert reader.SettingsReader(PROJECT, {}, state="wheel").settings.wheel.cmake


def test_a_wheel_has_the_kernels_and_nothing_else_that_is_compiled() -> None:
    dist.check_contents(WHEEL)
    with pytest.raises(SystemExit, match=re.escape("one truenorm/_native.*.so is expected in a wheel, got [].")):
        dist.check_contents(WHEEL[1:])
    with pytest.raises(SystemExit, match=r"truenorm/py.typed is expected in a wheel, got none."):
        dist.check_contents([name for name in WHEEL if "typed" not in name])
    for extra in ("truenorm/native/plan.hpp", "truenorm.libs/libstdc++-6f7c.so.6"):
        with pytest.raises(SystemExit, match=re.escape(f"no other library is expected in a wheel, got {extra}.")):
            dist.check_contents([*WHEEL, extra])


def test_a_wheel_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / f"truenorm-{dist.version()}-py3-none-any.whl").touch()
    with pytest.raises(MissingError, match=r"dist: one wheel for Python 3.13 is needed in .*, got 0. Run make dist."):
        dist.wheel_for("3.13", tmp_path)
    wheel = tmp_path / f"truenorm-{dist.version()}-cp312-abi3-manylinux_2_17_x86_64.whl"
    wheel.touch()
    assert dist.wheel_for("3.13", tmp_path) == wheel
    with pytest.raises(MissingError, match=r"pythons: Python 3.99 with venv is needed, got none"):
        find("3.99")


def test_the_oldest_versions_that_are_tested_are_those_that_are_promised() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    assert f"torch>={versions.OLDEST_TORCH.removesuffix('.0')}" in extras["torch"]
    assert f"numpy>={versions.OLDEST_NUMPY.removesuffix('.0.0')}" in PROJECT["project"]["dependencies"]
    assert PROJECT["project"]["requires-python"] == f">={SUPPORTED[0]}"
    listed = [line for line in PROJECT["project"]["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert listed == [f"Programming Language :: Python :: {version}" for version in SUPPORTED]
    assert {row.python for row in versions.ROWS} == set(SUPPORTED)
    assert {versions.OLDEST_TORCH, versions.NEWEST} <= {row.torch for row in versions.ROWS}


def test_a_run_of_the_tests_is_one_cell_of_the_table(tmp_path: Path) -> None:
    last = "3 failed, 1043 passed, 12 skipped, 9 deselected in 61.20s (0:01:01)"
    assert versions.counts(f"....\n{last}\n") == "3 failed, 1043 passed, 12 skipped"
    assert versions.counts("Killed") == versions.counts("") == "did not end"


def test_a_run_of_one_row_keeps_the_others(tmp_path: Path) -> None:
    keys = ("python", "numpy", "torch", "tensors", "tests", "date")
    before, after = ({row.name: dict.fromkeys(keys, f"{row.python}.{i}") for row in versions.ROWS} for i in (1, 2))
    page, row = tmp_path / "page.md", versions.ROWS[1]
    page.write_text(f"before\n{versions.BEGIN}{versions.table(before)}{versions.END}\nafter\n")
    versions.write(page, {row.name: after[row.name]})
    expected = versions.table(before | {row.name: after[row.name]})
    assert len(expected.splitlines()) == 2 + len(versions.ROWS)
    assert page.read_text() == f"before\n{versions.BEGIN}{expected}{versions.END}\nafter\n"


@pytest.mark.skipif(not Path("/usr/bin/cc").exists(), reason="there is no C compiler")
def test_a_stub_has_the_functions_that_it_stands_for(tmp_path: Path) -> None:
    file = tmp_path / "libcublas.so.13"
    torch_on_cpu.make_stub(file, ["cublasCreate_v2"], ["libcublas.so.13"])
    assert " cublasCreate_v2@@libcublas.so.13" in torch_on_cpu.read("--dyn-syms", "-W", file)
    assert "soname: [libcublas.so.13]" in torch_on_cpu.read("-d", file)


def test_the_hosted_workflow_says_that_it_was_not_run_and_calls_what_exists() -> None:
    text = (ROOT / ".github/workflows/ci.yml").read_text("utf-8")
    assert text.startswith("# NOT YET RUN: ")
    targets = set(re.findall(r"^([a-z-]+):.* ## ", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    called = {word for line in re.findall(r"run: make (.*)", text) for word in line.split()}
    assert called == {"lint", "test", "test-slow", "dist"}
    assert called <= targets
    assert "TRUENORM_REQUIRE_KERNELS=1" in text
    assert "password" not in text.split("name: ci")[1]
