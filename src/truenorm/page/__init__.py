"""The interactive page: HTML, CSS and plain ES modules, assembled into one file that needs no server and no network.

`index.html` names its parts as a page on a web server would: a style sheet, a module, the recorded runs. `assemble`
puts each of them where it is named. Modules inside one file cannot import each other, so they are put one behind the
other, each behind what it imports, into one script that still reads well in "view source". For that, a module keeps to
a few rules, and breaking one is an error here rather than a blank page later:

* imports stand at the beginning of a line, as `import { a, b } from "./file.js";`, exports as `export function name`
  (or const, let, class, async function);
* all modules share their top-level names, so each is defined once, one name a statement;
* neither `</script` nor `<!--` appears, as both mean something to HTML inside a script;
* a template in backticks ends on its line: four spaces of indentation become a tab, a twentieth of the page less.

A policy in the file forbids everything but this style and this script, by their hashes: no request can leave the page.
"""

from __future__ import annotations

import hashlib
import os
import re
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from errno import EEXIST
from graphlib import CycleError, TopologicalSorter
from importlib.resources import files
from pathlib import Path

STYLE = '<link rel="stylesheet" href="style.css">'
SCRIPT = '<script type="module" src="main.js"></script>'
RUNS = '<script type="application/json" id="runs" src="runs.json"></script>'
POLICY = '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'">'

TITLE = "<title>Normalization, number by number</title>"

_IMPORT = re.compile(r'^import \{\s*((?:[\w$]+,\s*)*(?:[\w$]+)?)\s*\} from "\./([\w-]+\.js)";\n', re.MULTILINE)
_DEFINITION = re.compile(r"^(export )?(?:(?:async )?function|const|let|class)\b\*? *([\w$]*)", re.MULTILINE)
_LEFT_OVER = re.compile(r"^(?:import|export|var)\b.*", re.MULTILINE)


def assemble() -> str:
    """The whole page as one HTML document."""
    sources = {file.name: file.read_text("utf-8") for file in files(__name__).iterdir() if file.is_file()}
    modules = {name: text for name, text in sorted(sources.items()) if name.endswith(".js")}
    style, script = (f"\n{_with_tabs(text)}" for text in (sources["style.css"], join_modules(modules)))
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    page = sources["index.html"]
    for place, content in (
        (POLICY, f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        (STYLE, f"<style>{style}</style>"),
        (RUNS, f'<script type="application/json" id="runs">{as_script_data(sources["runs.json"].strip())}</script>'),
        (SCRIPT, f'<script type="module">{script}</script>'),
    ):
        if page.count(place) != 1:
            raise ValueError(f"index.html: exactly one {place}, got {page.count(place)}.")
        page = page.replace(place, content)
    return page


def write(path: str | os.PathLike[str]) -> Path:
    """Write the page to this file, whole or not at all. A link stays one: its target is written."""
    target, page = Path(path).resolve(), assemble()
    if target.exists() and not target.is_file():
        raise OSError(EEXIST, "not an ordinary file", str(path))
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        beside.write_text(page, "utf-8", newline="\n")
        beside.replace(target)
    except OSError as error:  # the name of the file beside it would only puzzle
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        with suppress(OSError):
            beside.unlink()
    return Path(path)


def is_page(path: Path) -> bool:
    """Whether a page was written to this file before: it may be written again."""
    with path.open("rb") as file:
        head = file.read(4096)
    return not head or (head.lower().startswith(b"<!doctype html>") and TITLE.encode() in head)


def join_modules(modules: Mapping[str, str]) -> str:
    """ES modules as one script: each behind those that it imports, without the words import and export.

    >>> print(join_modules({
    ...     "main.js": 'import { half } from "./maths.js";\\nhalf(4);\\n',
    ...     "maths.js": "export const half = (x) => x / 2;\\n",
    ... }))
    // ---- maths.js ----
    const half = (x) => x / 2;
    <BLANKLINE>
    // ---- main.js ----
    half(4);
    <BLANKLINE>
    """
    imports = {name: _imports(text) for name, text in modules.items()}
    exports = _check_definitions(modules)
    for name, wanted in imports.items():
        for source, names in wanted.items():
            if source not in modules:
                raise ValueError(f"{name}: imports from a file of the page, got {source}. There is none.")
            for missing in sorted(names - exports[source]):
                raise ValueError(f"{name}: imports what is exported, got {missing}. {source} does not export it.")
    try:
        order = list(TopologicalSorter(imports).static_order())
    except CycleError as error:
        raise ValueError(f"modules: imports without a circle, got {' -> '.join(error.args[1])}.") from None
    return "\n".join(f"// ---- {name} ----\n{_body(name, modules[name])}" for name in order)


def as_script_data(json: str) -> str:
    r"""JSON that cannot end the script element around it, and means the same.

    >>> as_script_data('["</script>"]')
    '["\\u003c/script>"]'
    """
    return json.replace("<", r"\u003c")  # outside of strings JSON has no "<"


def _imports(text: str) -> dict[str, set[str]]:
    """The names that a module imports, by file."""
    found: dict[str, set[str]] = {}
    for names, source in _IMPORT.findall(text):
        found.setdefault(source, set()).update(name for name in map(str.strip, names.split(",")) if name)
    return found


def _check_definitions(modules: Mapping[str, str]) -> dict[str, set[str]]:
    """The names that each module exports, once no name is defined twice."""
    owners: dict[str, str] = {}
    exports: dict[str, set[str]] = {}
    for module, text in modules.items():
        for exported, name in _DEFINITION.findall(text):
            if not name:
                raise ValueError(f"{module}: one name a statement at the top level, got a pattern of names.")
            if name in owners:
                raise ValueError(
                    f"{module}: all modules share their top-level names, got {name} as {owners[name]} has."
                )
            owners[name] = module
            if exported:
                exports.setdefault(module, set()).add(name)
    return {module: exports.get(module, set()) for module in modules}


def _body(name: str, text: str) -> str:
    body = _DEFINITION.sub(lambda found: found[0].removeprefix("export "), _IMPORT.sub("", text))
    if found := _LEFT_OVER.search(body):
        raise ValueError(f"{name}: imports and exports as truenorm/page/__init__.py describes, got {found[0]}")
    for mark in ("</script", "<!--"):
        if mark in body.lower():
            raise ValueError(f"{name}: no {mark} inside a script, got one. Write it in two pieces.")
    for line in body.splitlines():
        if line.count("`") % 2:
            raise ValueError(f"{name}: a template ends on its line, got {line.strip()}")
    return body.strip("\n") + "\n"


def _with_tabs(text: str) -> str:
    return re.sub(r"^(?: {4})+", lambda spaces: "\t" * (len(spaces[0]) // 4), text, flags=re.MULTILINE)


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
