"""The page: how it is assembled, its maths and state under node, and the command that writes it."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from browser import node
from numpy.testing import assert_allclose

from truenorm import page
from truenorm.cli import main

HERE = Path(__file__).parent
SOURCE = Path(page.__file__).parent


@pytest.mark.parametrize("file", sorted(HERE.glob("*.test.mjs")), ids=lambda file: file.name)
def test_under_node(file: Path) -> None:
    done = subprocess.run([node(), "--test", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def copied_cases() -> list[dict[str, Any]]:
    made = subprocess.run([node(), str(HERE / "code.mjs")], capture_output=True, text=True, check=True).stdout
    return list(json.loads(made))


@pytest.mark.parametrize("library", ["NumPy", "PyTorch", "truenorm"])
def test_copied_code_makes_the_same_numbers(library: str, copied_cases: list[dict[str, Any]]) -> None:
    if library == "PyTorch":
        pytest.importorskip("torch")
    assert len(copied_cases) > 150
    for case in copied_cases:
        code: str = case["programs"][library]
        names: dict[str, Any] = {}
        exec(code, names)
        for name in ("y", "dx"):
            got, tolerance = names[name], 1e-9 * case["large"]
            got = got.detach().numpy() if library == "PyTorch" else got
            assert_allclose(got, case[name], rtol=tolerance, atol=tolerance, err_msg=code)


def test_golden_vectors_are_what_the_reference_computes_now() -> None:
    golden = runpy.run_path(str(HERE / "golden.py"))
    text = golden["FILE"].read_text("utf-8")
    assert text == golden["as_text"](), "run: python tests/page/golden.py"
    assert len(text.encode()) < 200_000
    assert sum(map(len, json.loads(text).values())) > 200


class Elements(HTMLParser):
    """Every element with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_the_page_is_one_small_file_that_asks_for_nothing() -> None:
    text = page.assemble()
    assert text == page.assemble()
    assert len(text.encode()) < 490_000  # of 500,000: what is added shows here in time
    elements = Elements(text).found
    assert not [tag for tag, _ in elements if tag in ("link", "img", "iframe", "object", "embed", "base", "form")]
    assert not [
        one for tag, one in elements if "src" in one or "style" in one or any(key.startswith("on") for key in one)
    ]
    assert [one.get("type") for tag, one in elements if tag == "script"] == [
        "importmap",
        "application/json",
        None,
        "module",
    ]
    namespaces = {"http://www.w3.org/2000/svg", "http://www.w3.org/1998/Math/MathML"}
    assert set(re.findall(r"https?://[^\s\"'`<>\\]*", text)) <= namespaces
    assert not re.search(
        r"@import|url\((?!#|%23)|\bfetch\(|XMLHttpRequest|WebSocket|EventSource|sendBeacon|import\(", text
    )


def test_its_policy_allows_its_own_scripts_and_style_alone() -> None:
    policy = next(
        one["content"]
        for _, one in Elements(page.assemble()).found
        if one.get("http-equiv") == "Content-Security-Policy"
    )
    assert re.fullmatch(
        r"default-src 'none'; script-src( 'sha256-[\w+/=]{44}'){3} data:; "
        r"style-src 'sha256-[\w+/=]{44}'; img-src data:; worker-src data:; base-uri 'none'; form-action 'none'",
        policy or "",
    )


def test_every_style_is_in_the_page_that_of_lib_first() -> None:
    text = page.assemble()
    assert "innerHTML" not in text
    styles = {
        file.parent.name: page.without_spaces(page.without_comments(file.read_text("utf-8")))
        for file in SOURCE.rglob("*.css")
    }
    assert {"lib", "table", "padding", "backward", "training"} <= set(styles)
    places = {folder: text.index(style) for folder, style in styles.items()}
    assert min(places, key=places.__getitem__) == "lib"


@pytest.mark.parametrize("file", sorted(SOURCE.rglob("*.*s")), ids=lambda file: file.relative_to(SOURCE).as_posix())
def test_lines_are_no_longer_than_in_python(file: Path) -> None:
    for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
        assert len(line) <= 120, f"{file.name}:{number}"
        assert "\t" not in line


SOURCES = {path: text for path, text in page.sources().items() if path.endswith((".js", ".css"))}


@pytest.mark.parametrize("path", SOURCES)
def test_comments_can_be_removed_line_by_line(path: str) -> None:
    inside = False  # of a comment that began at the start of a line
    for number, line in enumerate(map(str.strip, SOURCES[path].splitlines()), 1):
        inside = inside or (line.startswith("/*") and "*/" not in line[:-2])
        if inside:
            assert "*/" not in line[:-2], f"{path}:{number}: code behind a long comment"
            inside = not line.endswith("*/")
        elif not line.startswith("//"):
            assert line.count("/*") <= line.count("*/"), f"{path}:{number}: a comment behind code goes on"
            for before in re.findall(r"(.*?)(?=/\*| // )", line):  # code, not the inside of a text
                code = re.sub(r"`[^`]*`|`[^`]*\$\{", "", before)  # without templates, up to code of their own
                assert code.count('"') % 2 == code.count("`") % 2 == 0, f"{path}:{number}: a comment in a text?"
            if path.endswith(".js"):
                assert line.replace("\\`", "").count("`") % 2 == 0, f"{path}:{number}: a template spans lines"
    assert not inside


def test_no_line_break_of_the_modules_ends_a_statement() -> None:
    """Lines are joined. What would then be read differently ends with a semicolon, or is an error here."""
    joined = [
        re.sub(r"\n(?!import )", " ", page.without_comments(text))
        for path, text in page.sources().items()
        if path.endswith(".js")
    ]
    check = """
        const { SourceTextModule } = require("node:vm");
        for (const text of JSON.parse(require("node:fs").readFileSync(0, "utf-8"))) new SourceTextModule(text);"""
    command = [node(), "--experimental-vm-modules", "--no-warnings", "-e", check]
    for wrong in ("", "let a = 1 let b"):
        done = subprocess.run(command, input=json.dumps([*joined, wrong]), capture_output=True, text=True)
        assert (done.returncode != 0) == (wrong != ""), done.stderr


def test_the_import_map_holds_every_module_without_comments() -> None:
    modules = {path: text for path, text in page.sources().items() if path.endswith(".js")}
    assert set(modules) == {file.relative_to(SOURCE).as_posix() for file in SOURCE.rglob("*.js")}
    text = page.as_import_map(modules)
    assert text in page.assemble()
    imports = json.loads(text)["imports"]
    assert set(imports) == {f"#{path}" for path in modules}
    for path, module in modules.items():
        kind, url = imports[f"#{path}"].split(",", 1)
        assert kind == "data:text/javascript"
        assert unquote(url) == f"{page.without_comments(module)}\n//# sourceURL=truenorm/{path}"


def test_a_module_may_hold_any_text() -> None:
    text = 'const a = `</SCRIPT> <!-- \t50 %41 # "\\n" two ü ?x=1&y=2`;'
    made = page.as_import_map({"a.js": text})
    assert "<" not in made
    url = json.loads(made)["imports"]["#a.js"]
    assert not re.search(r"[#\n\r\t]", url)
    assert unquote(url.split(",", 1)[1]).startswith(text + "\n//# sourceURL")


def test_index_html_must_have_each_place_once() -> None:
    texts = page.sources()
    with pytest.raises(ValueError, match=re.escape("index.html: exactly one <style></style>, got 0.")):
        page.assemble({**texts, "index.html": texts["index.html"].replace("<style></style>", "")})


def test_data_cannot_end_its_script() -> None:
    data = json.dumps(["</script><script>alert(1)</script>", "<!--"])
    assert "<" not in page.as_script_data(data)
    assert json.loads(page.as_script_data(data)) == json.loads(data)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["page", *arguments])
    printed = capsys.readouterr()
    return int(stop.value.code or 0), printed.out, printed.err


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that a browser was asked to open."""
    addresses: list[str] = []

    def browse(address: str) -> bool:
        addresses.append(address)
        return True

    monkeypatch.setattr("webbrowser.open", browse)
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    return addresses


def test_the_command_writes_the_page_and_opens_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DISPLAY", ":0")
    code, out, err = run(capsys)
    file = tmp_path / "truenorm.html"
    assert (code, err) == (0, "")
    assert out == f"Written: truenorm.html ({file.stat().st_size / 1000:.0f} kB, works offline)\n"
    assert file.read_bytes() == page.assemble().encode()
    assert opened == [file.as_uri()]
    assert os.listdir(tmp_path) == ["truenorm.html"]


def test_no_open_opens_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str], opened: list[str]) -> None:
    code, out, _ = run(capsys, str(tmp_path), "--no-open")
    assert (code, opened) == (0, [])
    assert out.startswith(f"Written: {tmp_path / 'truenorm.html'} (")
    assert out.count("\n") == 1


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="there always is a screen")
def test_without_a_screen_nothing_is_opened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], opened: list[str]
) -> None:
    code, out, _ = run(capsys, str(tmp_path / "a page.html"))
    assert (code, opened) == (0, [])
    assert out.endswith(f"No browser found. Open {tmp_path / 'a page.html'} in one.\n")


def test_an_older_page_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "page.html"
    file.write_text(page.assemble().replace("mean", "older"))
    assert run(capsys, str(file), "--no-open")[0] == 0
    assert file.read_text("utf-8") == page.assemble()


def test_a_file_keeps_its_mode(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "page.html"
    assert run(capsys, str(file), "--no-open")[0] == 0
    usual = tmp_path / "usual"
    usual.touch()
    assert file.stat().st_mode == usual.stat().st_mode
    for mode in (0o600, 0o664, 0o755):
        file.chmod(mode)
        assert run(capsys, str(file), "--no-open")[0] == 0
        assert file.stat().st_mode & 0o7777 == mode


def test_an_empty_name_is_not_the_current_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(capsys, "", "--no-open") == (
        2,
        "",
        "truenorm: PATH: must be the name of a file or a directory, got ''. See 'truenorm page --help'.\n",
    )
    assert os.listdir(tmp_path) == []


def test_what_somebody_else_wrote_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    assert run(capsys, str(file), "--no-open") == (
        2,
        "",
        f"truenorm: {file}: exists and is not a page of truenorm. Choose another name, or remove it.\n",
    )
    assert file.read_text() == "mine"
    (tmp_path / "course").mkdir()
    assert run(capsys, f"{tmp_path}/course/", "--no-open")[0] == 0
    assert (tmp_path / "course" / "truenorm.html").is_file()


def test_a_link_stays_a_link_and_a_pipe_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    link, target, pipe = tmp_path / "link.html", tmp_path / "target.html", tmp_path / "pipe"
    link.symlink_to(target)
    assert run(capsys, str(link), "--no-open")[0] == 0
    assert link.is_symlink()
    assert target.read_text("utf-8") == page.assemble()
    os.mkfifo(pipe)
    code, _, problem = run(capsys, str(pipe), "--no-open")
    assert (code, "not an ordinary file" in problem) == (2, True)
    assert pipe.is_fifo()


def test_a_path_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "missing" / "page.html"
    assert run(capsys, str(path), "--no-open") == (2, "", f"truenorm: {path.parent}: there is no such directory.\n")
    below = tmp_path / "file"
    below.write_text("")
    assert run(capsys, str(below / "page.html"), "--no-open") == (
        2,
        "",
        f"truenorm: {below}: there is no such directory.\n",
    )
