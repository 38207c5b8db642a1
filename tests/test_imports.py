"""Imports point one way, and `import truenorm` loads nothing heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src/truenorm"

# Each part may import itself and the parts in its set. Each file of the core is a part.
ALLOWED: dict[str, set[str]] = {
    "core.pattern": set(),
    "core.scalars": set(),
    "core.documentation": set(),
    "core.layout": {"core.pattern"},
    "core.arrays": set(),
    "core.activation": {"core.arrays"},
    "core.norm": {"core.activation", "core.layout", "core.pattern", "core.scalars"},
    "core.recipes": {"core.activation", "core.norm"},
    "core.lengths": {"core.arrays", "core.norm", "core.layout", "core.pattern"},
    "core.packed": {"core.arrays", "core.norm", "core.layout", "core.pattern"},
    "core.mask": {"core.arrays", "core.lengths", "core.packed", "core.norm", "core.layout"},
    "core.moments": {"core.arrays", "core.lengths", "core.mask", "core.norm"},
    "core.inputs": {"core.arrays", "core.moments", "core.mask", "core.norm"},
    "core.reference": {
        "core.activation",
        "core.arrays",
        "core.lengths",
        "core.inputs",
        "core.moments",
        "core.mask",
        "core.norm",
    },
    "core.running": {"core.arrays", "core.moments", "core.norm"},
    "core": set(),
    "engine": {"core", "_native"},
    "explanation": {"core", "engine"},
    "lab": {"core", "engine", "explanation"},
    "torch": {"core", "engine"},
    "page": set(),
    "report": {"explanation", "lab"},
    "cli": {"explanation", "engine", "core", "lab", "page", "report", "torch", ""},
    "__main__": {"cli"},
    "__init__": {"core", "engine", "explanation"},
}
HEAVY = ("torch", "rich", "click", "pandas", "scipy", "matplotlib")


def imported_parts(tree: ast.AST) -> set[str]:
    """The parts of truenorm that a file imports while it runs; "" is the package itself."""
    typing_only = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and ast.unparse(branch.test) == "TYPE_CHECKING"
        for node in ast.walk(branch)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module in ("truenorm", "truenorm.core"):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        found |= {part_of(f"{name}.".split(".")[1:]) for name in names if f"{name}.".startswith("truenorm.")}
    return found


def part_of(names: Sequence[str]) -> str:
    """The part that a module belongs to, from its name without `truenorm.`."""
    inside_core = names[0] == "core" and len(names) > 1 and names[1] not in ("", "__init__")
    return ".".join(names[: 2 if inside_core else 1])


def allowed_imports(part: str) -> set[str]:
    """The parts that a part may import. `core` stands for all files of the core."""
    allowed = ALLOWED[part] | {part}
    return allowed | {name for name in ALLOWED if "core" in allowed and name.startswith("core.")}


@pytest.mark.parametrize("file", sorted(SOURCE.rglob("*.py")), ids=lambda file: str(file.relative_to(SOURCE)))
def test_imports_point_one_way(file: Path) -> None:
    part = part_of(file.relative_to(SOURCE).with_suffix("").parts)
    assert part in ALLOWED, f"{part} is a new part: add it to ALLOWED with the parts that it may import"
    assert imported_parts(ast.parse(file.read_text("utf-8"))) <= allowed_imports(part)


def test_imports_of_all_forms_are_found() -> None:
    assert imported_parts(ast.parse("from truenorm.cli.env import command\nfrom truenorm.core import norm")) == {
        "cli",
        "core.norm",
    }


def loaded_by(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_import_truenorm_loads_nothing_heavy() -> None:
    loaded = loaded_by("import truenorm")
    assert "numpy" in loaded
    assert not loaded.intersection(HEAVY)


def test_heavy_imports_are_detected() -> None:
    assert loaded_by("import truenorm, truenorm.explanation.text").intersection(HEAVY) == {"rich"}


def test_help_loads_no_command() -> None:
    code = "import sys\nfrom truenorm.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass"
    assert "rich" not in loaded_by(code)


@pytest.mark.parametrize(
    ("part", "importing"),
    [("core.layout", "core.norm"), ("core", "engine"), ("engine", "lab"), ("lab", "torch"), ("page", "lab")],
)
def test_imports_in_the_other_direction_are_not_allowed(part: str, importing: str) -> None:
    assert importing not in allowed_imports(part)


def test_modules_and_public_functions_have_different_names() -> None:
    import truenorm as tn

    modules = {file.stem for file in SOURCE.glob("*.py")} | {
        folder.name for folder in SOURCE.iterdir() if folder.is_dir()
    }
    assert not modules.intersection(name for name in tn.__all__ if callable(getattr(tn, name)))


def test_a_test_file_that_cannot_be_imported_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "test_broken.py"
    file.write_text("import a_module_that_does_not_exist\n\ndef test_nothing() -> None:\n    pass\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(file)]
    configuration = ["-c", str(SOURCE.parents[1] / "pyproject.toml")]
    done = subprocess.run([*command, *configuration], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == pytest.ExitCode.INTERRUPTED, done.stdout
