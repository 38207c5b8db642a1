"""README, docs and help texts are right: their code runs, their commands work, their links lead somewhere."""

from __future__ import annotations

import doctest
import email
import os
import re
import shlex
import subprocess
import sys
import tarfile
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    return [text for found, text in BLOCK.findall(page.read_text("utf-8")) if found == language]


def run_examples(text: str, name: str) -> doctest.TestResults:
    test = doctest.DocTestParser().get_doctest(text, {}, name, name, 0)
    return doctest.DocTestRunner().run(test)


SLOW = ["deployment.md"]  # torch.export takes long, the first time in a process


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow) if page.name in SLOW else page for page in PAGES],
    ids=lambda page: page.name,
)
def test_python_blocks_print_what_they_say(page: Path) -> None:
    found = blocks(page, "python")
    for text in found:
        assert ">>>" in text, f"{page.name}: a block that shows no result proves nothing:\n{text}"
    results = run_examples("\n".join(found), page.name)
    assert results.failed == 0
    assert results.attempted >= len(found)


def test_a_wrong_number_in_a_page_would_be_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_examples(">>> 1 + 1\n3\n", "wrong").failed == 1
    capsys.readouterr()


def commands() -> list[str]:
    lines = [line for page in PAGES for text in blocks(page, "sh") for line in text.splitlines()]
    helped = subprocess.run([sys.executable, "-m", "truenorm", "explain", "--help"], capture_output=True, text=True)
    lines += helped.stdout.split("Examples:\n")[1].splitlines()
    return sorted({line.strip() for line in lines if re.search(r"(^|\| )\s*truenorm ", line)})


@pytest.mark.parametrize("command", commands())
def test_commands_shown_to_people_work(command: str, tmp_path: Path) -> None:
    for name in ("data.csv", "gradient.csv"):
        (tmp_path / name).write_text("1,2,3\n4,5,7\n9,8,7\n5,6,5\n")
    (tmp_path / "padded.csv").write_text("1,2\n4,5\n0,0\n0,0\n9,8\n3,4\n5,6\n7,9\n")
    line = command.replace("truenorm ", f"{shlex.quote(sys.executable)} -m truenorm ")
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_named_files_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text) + re.findall(r'src="([^"]+)"', text):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
    for target in re.findall(r"`((?:src|docs|tests|bench|tools)/[\w./-]+)`", text):
        assert (ROOT / target).exists(), f"{page.name} names {target}"


def test_the_files_that_contributing_names_exist() -> None:
    folders = "|".join(folder.name for folder in (ROOT / "src/truenorm").iterdir() if folder.is_dir())
    named = set(re.findall(rf"`((?:{folders})/[\w./]*)`", (ROOT / "CONTRIBUTING.md").read_text("utf-8")))
    assert len(named) > 15
    assert {name for name in named if not (ROOT / "src/truenorm" / name).exists()} == set()


@pytest.fixture(scope="module")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> Message:
    """The metadata that a package index reads from a source archive."""
    folder = tmp_path_factory.mktemp("archive")
    code = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(folder)], cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        file = archive.extractfile(f"{path.name.removesuffix('.tar.gz')}/PKG-INFO")
        assert file is not None
        return email.message_from_bytes(file.read())


def test_the_long_description_has_no_relative_links(metadata: Message) -> None:
    text = str(metadata.get_payload())
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "tnt.BatchNorm1d(1)" in text
    assert "docs/torch.md" in text
    links = re.findall(r"\]\(([^)]*)\)", text) + re.findall(r"(?:src|href)=\"([^\"]*)", text)
    assert [link for link in links if not link.startswith("https://")] == []
    assert "<!--" not in text


def test_the_metadata_says_what_the_package_is(metadata: Message) -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    assert metadata["Summary"].startswith("Drop-in PyTorch normalization layers that ignore padding")
    assert "\nDrop-in PyTorch normalization layers that ignore padding.\n" in readme
    assert metadata["License-Expression"] == "MIT"
    assert metadata.get_all("Provides-Extra") == ["torch", "triton", "lab", "cluster", "report", "all", "docs", "dev"]
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])


def test_the_readme_names_the_oldest_supported_torch(metadata: Message) -> None:
    (required,) = [line for line in metadata.get_all("Requires-Dist", []) if re.match(r"torch\b", line)]
    (oldest,) = re.findall(r"PyTorch\s+(\S+) or newer", (ROOT / "README.md").read_text("utf-8"))
    assert required.split(";")[0].strip() == f"torch>={oldest}"


def test_the_readme_is_in_american_english() -> None:
    found = re.findall(r"\w*(?:alis|eris|olour|icence)\w*", (ROOT / "README.md").read_text("utf-8"))
    assert found == []


def test_references_in_docstrings_are_listed() -> None:
    listed = set(re.findall(r"^\| (\[\w+\])", (ROOT / "docs/references.md").read_text("utf-8"), re.MULTILINE))
    for file in (ROOT / "src").rglob("*.py"):
        for line in re.findall(r"References: (.*)", file.read_text("utf-8")):
            assert set(re.findall(r"\[\w+\]", line)) <= listed, file


def test_the_three_first_files_stay_short() -> None:
    for name in ("norm", "moments", "reference"):
        lines = (ROOT / f"src/truenorm/core/{name}.py").read_text("utf-8").splitlines()
        assert len(lines) <= 220, f"{name}.py has {len(lines)} lines"


def test_commits_are_checked_by_the_parts_of_make_lint() -> None:
    parts = re.findall(r"^lint: (.*) ##", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)[0].split()
    hooks = (ROOT / ".pre-commit-config.yaml").read_text("utf-8")
    assert re.findall(r"entry: make --silent (.*)", hooks) == parts
