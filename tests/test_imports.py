"""What loads what: imports point one way, and `import truenorm` stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src/truenorm"

# Each layer may import those named after it, and itself.
ALLOWED = {
    "pattern": set(),
    "view": {"pattern"},
    "spec": {"view", "pattern"},
    "selection": {"spec", "view"},
    "moments": {"selection", "spec"},
    "inputs": {"moments", "selection", "spec"},
    "reference": {"inputs", "moments", "selection", "spec"},
    "running": {"moments", "selection", "spec"},
    "kernels": {"_native", "inputs", "moments", "selection", "spec", "view"},
    "engine": {"kernels", "reference", "inputs", "moments", "selection", "spec", "_native"},
    "explanation": {"display", "inputs", "reference", "moments", "selection", "spec"},
    "examples": {"engine", "spec"},
    "display": set(),
    "lab": {"engine", "explanation", "inputs", "moments", "running", "spec"},
    "page": set(),
    "torch": {"engine", "inputs", "selection", "spec", "view"},
    "cli": {"display", "examples", "explanation", "engine", "lab", "page", "spec", "torch", ""},
    "__main__": {"cli"},
    "__init__": {"engine", "explanation", "moments", "running", "spec"},
}
HEAVY = ("torch", "rich", "click", "pandas", "scipy", "matplotlib")


def imported_layers(tree: ast.AST) -> set[str]:
    """The layers of truenorm that a file imports while it runs; "" is the package itself."""
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
        elif isinstance(node, ast.ImportFrom) and node.module == "truenorm":
            names = [f"truenorm.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        found |= {f"{name}.".split(".")[1] for name in names if f"{name}.".startswith("truenorm.")}
    return found


def layer_of(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("file", sorted(SOURCE.rglob("*.py")), ids=lambda file: str(file.relative_to(SOURCE)))
def test_imports_point_one_way(file: Path) -> None:
    layer = layer_of(file)
    assert layer in ALLOWED, f"{layer} is a new layer: say what it may import"
    allowed = ALLOWED[layer] | {layer}
    assert imported_layers(ast.parse(file.read_text("utf-8"))) <= allowed


def test_an_import_that_points_back_would_be_noticed() -> None:
    assert imported_layers(ast.parse("from truenorm.cli.env import command\nimport truenorm.engine")) == {
        "cli",
        "engine",
    }


def loaded_by(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_import_truenorm_loads_nothing_heavy() -> None:
    loaded = loaded_by("import truenorm")
    assert "numpy" in loaded
    assert not loaded.intersection(HEAVY)


def test_a_heavy_import_would_be_noticed() -> None:
    assert loaded_by("import truenorm, truenorm.display.text").intersection(HEAVY) == {"rich"}


def test_help_loads_no_command() -> None:
    code = "import sys\nfrom truenorm.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass"
    assert "rich" not in loaded_by(code)


def test_a_module_and_a_public_function_never_share_a_name() -> None:
    import truenorm as tn

    modules = {file.stem for file in SOURCE.glob("*.py")} | {
        folder.name for folder in SOURCE.iterdir() if folder.is_dir()
    }
    assert not modules.intersection(name for name in tn.__all__ if callable(getattr(tn, name)))
