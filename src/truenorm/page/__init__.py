"""The interactive page: HTML, CSS and ES modules, assembled into one file that needs no server and no network.

Each part of the page has a folder: `overview`, `why`, `table`, `padding`, `backward`, `network`, `running`, `training`.
`maths` holds what they compute and `lib` what they have in common; `main.js` starts them.

Modules import each other by names such as `#table/grid.js`. node and TypeScript resolve these by the `imports` of
package.json, the assembled page by an import map, which gives each name a data: URL that holds the whole module. So
each module has a scope of its own in the delivered file too, and assembly reads no JavaScript: it only lists files.
Relative names cannot be used, because a data: URL has no folder that they could be relative to. Each URL ends with a
`sourceURL`, so that stack traces and debuggers name the file.

Comments and indentation are left out, a third of the file, and so are most line breaks. No parser is needed for that:
the tests make sure that no template literal and no comment behind code spans lines, and that no text looks like a
comment. The page stays under 500 KB.

A policy in the file allows its style and its three inline scripts by their hashes, and modules and workers from data:
URLs; workers inherit it. Everything else is forbidden, so that no request can leave the page.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import suppress
from errno import EEXIST
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from secrets import token_hex
from stat import S_IMODE

TITLE = "<title>Normalization, number by number</title>"

# What index.html leaves empty.
POLICY = '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'">'
STYLE = "<style></style>"
IMPORT_MAP = '<script type="importmap"></script>'
RUNS = '<script type="application/json" id="runs"></script>'
START = '<script type="module"></script>'

# A module that does not load or does not start is shown, not only logged. main.js removes #failed once all is well.
FAILURE_SCRIPT = """
addEventListener("error", ({ message }) => {
    const failed = document.getElementById("failed");
    if (failed) failed.textContent = `This page failed to start. ${message}`;
});
"""
START_SCRIPT = 'import "#main.js";'


def sources() -> dict[str, str]:
    """The texts of the page's files, by their paths in this folder."""
    kinds = (".html", ".css", ".js", ".json")
    return {path: file.read_text("utf-8") for path, file in sorted(_walk(files(__name__))) if path.endswith(kinds)}


def assemble(texts: Mapping[str, str] | None = None) -> str:
    """The whole page as one HTML document, from `sources()` or from other texts under the same paths."""
    texts = sources() if texts is None else texts
    styles = sorted((path for path in texts if path.endswith(".css")), key=lambda path: (path != "lib/style.css", path))
    style = "\n" + "\n".join(without_spaces(without_comments(texts[path])) for path in styles)
    import_map = as_import_map({path: text for path, text in texts.items() if path.endswith(".js")})
    scripts = " ".join(map(_hash, (import_map, FAILURE_SCRIPT, START_SCRIPT)))
    policy = (
        f"default-src 'none'; script-src {scripts} data:; style-src {_hash(style)}; img-src data:; "
        "worker-src data:; base-uri 'none'; form-action 'none'"
    )
    page = "\n".join(map(str.strip, texts["index.html"].splitlines()))
    for place, content in (
        (POLICY, f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        (STYLE, f"<style>{style}</style>"),
        (IMPORT_MAP, f'<script type="importmap">{import_map}</script>'),
        (RUNS, f'<script type="application/json" id="runs">{as_script_data(texts["runs.json"].strip())}</script>'),
        (START, f'<script>{FAILURE_SCRIPT}</script>\n<script type="module">{START_SCRIPT}</script>'),
    ):
        if page.count(place) != 1:
            raise ValueError(f"index.html: exactly one {place}, got {page.count(place)}.")
        page = page.replace(place, content)
    return page


def write(path: str | os.PathLike[str]) -> Path:
    """Write the page to this file."""
    return write_whole(path, assemble().encode())


def write_whole(path: str | os.PathLike[str], content: bytes) -> Path:
    """Write a file, whole or not at all. A link stays one: its target is written, and keeps its mode."""
    target = Path(path).resolve()
    if target.exists() and not target.is_file():
        raise OSError(EEXIST, "not an ordinary file", str(path))
    temporary = target.with_name(f".{target.name}.{token_hex(8)}")
    try:
        with temporary.open("xb") as file:  # x: not through a link
            file.write(content)
            if target.exists():
                os.fchmod(file.fileno(), S_IMODE(target.stat().st_mode))
        temporary.replace(target)
    except OSError as error:  # name the file that was asked for, not the temporary one
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        with suppress(OSError):
            temporary.unlink()
    return Path(path)


def is_page(path: Path) -> bool:
    """Whether this file is empty or holds a page that was written before, and may be overwritten."""
    with path.open("rb") as file:
        head = file.read(4096)
    return not head or (head.lower().startswith(b"<!doctype html>") and TITLE.encode() in head)


def as_import_map(modules: Mapping[str, str]) -> str:
    """An import map that gives each module, `#` and its path, a data: URL; one line a module.

    >>> print(as_import_map({"main.js": "import '#a.js';\\n", "a.js": "let half = 50 % 100 < 1;\\n"}))
    {"imports":{
    "#main.js":"data:text/javascript,import '%23a.js';%0A//%23 sourceURL=truenorm/main.js",
    "#a.js":"data:text/javascript,let half = 50 %25 100 %3C 1;%0A//%23 sourceURL=truenorm/a.js"
    }}
    """
    lines = (f"{_quote(f'#{path}')}:{_quote(_data_url(path, text))}" for path, text in modules.items())
    return '{"imports":{\n' + ",\n".join(lines) + "\n}}"


def without_comments(text: str) -> str:
    """JavaScript or CSS without indentation, blank lines and comments, in few lines.

    >>> without_comments("/* A\\nfile. */\\nif (a) {\\n    // why\\n    b = /** C */ (\\n    d);\\n}\\ne(); // f\\n")
    'if (a) {b = (d);}e();'
    >>> without_comments('import { a, b } from "#c.js";\\n')
    'import {a,b} from "#c.js";'
    """
    kept: list[str] = []
    inside = False
    for line in map(str.strip, text.splitlines()):
        inside = inside or (line.startswith("/*") and "*/" not in line[:-2])
        if not inside and (code := _COMMENT.sub("", line).strip()):
            above = kept[-1] if kept else "import "
            # Each import keeps a line of its own: lib/worker.js reads them.
            is_whole = above.startswith("import ") and above.endswith(";")
            joins = (above[-1] in _OPEN or code[0] in _CLOSE) and not is_whole and not code.startswith("import ")
            if joins and kept:
                kept[-1] += code
            else:
                kept.append(code)
        inside = inside and not line.endswith("*/")
    # A line that imports holds names and a path: no text in it has spaces.
    return "\n".join(re.sub(r"(?<=[{,]) | (?=\})", "", line) if line.startswith("import ") else line for line in kept)


# Comments within a line, and behind its code. A line may be joined to the one above if that ends with a sign of the
# first kind, or it begins with one of the second: every statement ends with a semicolon, so no line break means one.
_COMMENT = re.compile(r"/\*.*?\*/ ?|(^| )// .*")
_OPEN = ",([{;}=>?:+&|"
_CLOSE = ")]}.?:+&|"


def without_spaces(style: str) -> str:
    """CSS without the spaces and zeros that mean nothing, and with one rule for two in a row of the same selector. Its
    strings hold no sign that is looked for here.

    >>> without_spaces("a > b, c :is(d, e) { width: calc(1px + 0.2rem); opacity: 10.05; color: red; }")
    'a>b,c :is(d,e){width:calc(1px + .2rem);opacity:10.05;color:red}'
    >>> without_spaces("a { top: 0; } b { left: 0; } b { right: 0; } a { top: 1px; }")
    'a{top:0}b{left:0;right:0}a{top:1px}'
    """
    short = re.sub(r"\s*([{};,>])\s*|(?<=:) ", r"\1", style).replace(";}", "}")
    joined = re.sub(r"(?<![^{};])([^{};]+)(\{[^{}]*)\}\1\{", r"\1\2;", short)
    return re.sub(r"(?<![\d.])0(?=\.\d)", "", joined)


def as_script_data(json: str) -> str:
    r"""JSON that cannot end the script element around it, and means the same.

    >>> as_script_data('["</script>"]')
    '["\\u003c/script>"]'
    """
    return json.replace("<", r"\u003c")  # outside of strings JSON has no "<"


# A URL would lose line breaks and end at #; "<" could end the script element. All else may stand as it is.
_ENCODED = str.maketrans({character: f"%{ord(character):02X}" for character in "%#<\n\r\t"})


def _data_url(path: str, text: str) -> str:
    named = f"{without_comments(text)}\n//# sourceURL=truenorm/{path}"
    return f"data:text/javascript,{named.translate(_ENCODED)}"


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _walk(folder: Traversable, above: str = "") -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{above}{entry.name}/")
        else:
            yield f"{above}{entry.name}", entry


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
