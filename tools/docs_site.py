"""The documentation site, for reading from disk: `make docs` builds it in build/site.

    build/docs   the pages: docs/ as it is, SECURITY.md, the interactive page, a list of decisions, and the reference
    build/site   what zensical makes of them, by mkdocs.yml

The pages of the reference name every public class and function; mkdocstrings fills in what `help` shows. `check` finds
links that lead nowhere, and whatever would be loaded from the network.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES, SITE = ROOT / "build/docs", ROOT / "build/site"
# Links between docs/ and the files above it.
MOVED = {"../SECURITY.md": "security.md", "../README.md": "index.md", "docs/reliability.md": "reliability.md"}
SHIM = "https://unpkg.com/iframe-worker/shim"  # what zensical's pages load; offline_worker.js takes its place

REFERENCE = ("truenorm", "layers", "models", "functional", "running")  # its pages
LAYERS = "Layers: torch's, with masks. `layer(x, lengths=lengths)` calls `forward`."
MODELS = "Functions for whole models, and what they report."


def main() -> None:
    write_pages()
    shutil.rmtree(SITE, ignore_errors=True)
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--clean", "--config-file", "mkdocs.yml"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode or not (SITE / "index.html").exists():
        sys.exit(f"docs_site: zensical failed.\n{done.stdout}{done.stderr}")
    make_offline()
    if wrong := check():
        sys.exit("\n".join(["docs_site: all links must work, without a network.", *wrong]))
    print(f"Written: {(SITE / 'index.html').relative_to(ROOT)}; open it in a browser, it works offline.")


def write_pages() -> None:
    """Fill build/docs."""
    from truenorm import page

    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES)
    shutil.copy(ROOT / "SECURITY.md", PAGES / "security.md")
    for file in PAGES.rglob("*.md"):
        text = file.read_text("utf-8")
        for link, target in MOVED.items():
            text = text.replace(f"]({link})", f"]({target})")
        text = re.sub(r"\| `(#part=[^`]+)` \|", r"| [`\1`](<truenorm.html\1>) |", text)  # in the table of the notes
        file.write_text(text, "utf-8")
    page.write(PAGES / "truenorm.html")
    (PAGES / "page.md").write_text(with_link(PAGES / "page.md", "[Open the page](truenorm.html)."), "utf-8")
    decisions = sorted((PAGES / "decisions").glob("0*.md"))
    lines = [f"* [{title_of(file)}]({file.name})" for file in decisions]
    (PAGES / "decisions/index.md").write_text("\n".join(["# Decisions", "", *lines, ""]), "utf-8")
    (PAGES / "reference").mkdir()
    for name, text in reference().items():
        (PAGES / "reference" / f"{name}.md").write_text(text, "utf-8")


def make_offline(site: Path = SITE) -> None:
    """Nothing from the network, also where pages are opened from disk."""
    (site / "404.html").unlink()  # for servers; its links begin at their root
    shutil.copy(Path(__file__).with_name("offline_worker.js"), site / "assets/javascripts")
    for file in site.rglob("*.html"):
        above = "../" * (len(file.relative_to(site).parts) - 1)
        text = file.read_text("utf-8")
        file.write_text(text.replace(SHIM, f"{above}assets/javascripts/offline_worker.js"), "utf-8")


def title_of(file: Path) -> str:
    return file.read_text("utf-8").splitlines()[0].removeprefix("# ")


def with_link(file: Path, link: str) -> str:
    """The page, with a line behind its title."""
    title, rest = file.read_text("utf-8").split("\n", 1)
    return f"{title}\n\n{link}\n{rest}"


def reference() -> dict[str, str]:
    """The pages of the reference: every public name, on one of them."""
    from torch import nn

    import truenorm as tn
    import truenorm.torch as tnt

    public = [name for name in tnt.__all__ if name != "functional"]
    layers = [name for name in public if isinstance(one := getattr(tnt, name), type) and issubclass(one, nn.Module)]
    models = [name for name in public if name not in layers]
    core = [name for name in tn.__all__ if name != "running"]
    return {
        "truenorm": _page("truenorm", "The NumPy core: `import truenorm as tn`.", "truenorm", core),
        "layers": _page("truenorm.torch: layers", LAYERS, "truenorm.torch", layers, ["forward"]),
        "models": _page("truenorm.torch: models", MODELS, "truenorm.torch", models),
        "functional": _page(
            "truenorm.torch.functional",
            "`torch.nn.functional`'s normalizations, with masks.",
            "truenorm.torch.functional",
            tnt.functional.__all__,
        ),
        "running": _page(
            "truenorm.running", "Running statistics in NumPy.", "truenorm.core.running", tn.running.__all__
        ),
    }


def _page(title: str, text: str, module: str, names: list[str], methods: list[str] | None = None) -> str:
    parts = [f"# {title}", text]
    for name in names:
        options = f"\n    options:\n      members: {methods}\n      inherited_members: {methods}" if methods else ""
        parts.append(f"::: {module}.{name}{options}".replace("'", '"'))
    return "\n\n".join(parts) + "\n"


def check(site: Path = SITE) -> list[str]:
    """What is wrong with the links of a site: pages and anchors that are missing, and what is loaded from elsewhere."""
    pages = {file: file.read_text("utf-8") for file in sorted(site.rglob("*.html")) if file.name != "truenorm.html"}
    anchors = {file: set(re.findall(r'\bid="?([^"\s>]+)', text)) for file, text in pages.items()}
    wrong = []
    for file, text in pages.items():
        where = file.relative_to(site)
        for tag in re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", text):
            for address in re.findall(r'\b(?:src|href)="?([^"\s>]+)', tag):
                if re.match(r"(?:https?:)?//", address) and 'rel="canonical"' not in tag:
                    wrong.append(f"{where} loads {address}")
        for address in re.findall(r'\b(?:href|src)="?([^"\s>]+)', text):
            if re.match(r"[a-z]+:|//", address):
                continue
            path, _, anchor = address.partition("#")
            target = (file.parent / path.partition("?")[0]).resolve() if path else file
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                wrong.append(f"{where} links to {address}, which is not there")
            elif anchor and target in anchors and anchor not in anchors[target]:
                wrong.append(f"{where} links to {address}, which has no such anchor")
    return wrong


if __name__ == "__main__":
    main()
