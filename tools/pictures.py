"""Take the screenshots of docs/page.md: desktop and phone, light and dark, with Debian's chromium.

python -m tools.pictures [FOLDER]
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from truenorm import page

if TYPE_CHECKING:
    from playwright.sync_api import ViewportSize

CHROMIUM = "/usr/bin/chromium"
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
DESKTOP: ViewportSize = {"width": 1280, "height": 860}
PHONE: ViewportSize = {"width": 390, "height": 844}
TOP = ""
# File name, fragment of the address, heading to scroll to, window size, colour scheme.
PICTURES: dict[str, tuple[str, str, ViewportSize, Literal["light", "dark"]]] = {
    "overview": ("part=overview", TOP, DESKTOP, "light"),
    "why": ("part=why", TOP, DESKTOP, "light"),
    "table": ("part=table&norm=layer", TOP, DESKTOP, "light"),
    "padding": ("part=padding&padding.length=13", "4. So the mean shrinks", DESKTOP, "light"),
    "backward": ("part=backward&backward.step=dvar", TOP, DESKTOP, "light"),
    "network": ("part=network&network.step=dC", TOP, DESKTOP, "light"),
    "running": ("part=running", TOP, DESKTOP, "light"),
    "training": ("part=training", TOP, DESKTOP, "dark"),
    "table-phone": ("part=table", TOP, PHONE, "light"),
    "backward-phone": ("part=backward&backward.step=dvar", TOP, PHONE, "dark"),
    "padding-phone": ("part=padding&padding.length=13", "4. So the mean shrinks", PHONE, "dark"),
    "training-phone": ("part=training", TOP, PHONE, "light"),
}
STEPS = 3000  # of live training


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default=Path("docs/page"))
def main(folder: Path) -> None:
    """Write a screenshot of each part of the page into FOLDER."""
    from playwright.sync_api import sync_playwright

    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        file = page.write(Path(scratch) / "truenorm.html")
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        for name, (fragment, heading, size, scheme) in PICTURES.items():
            context = browser.new_context(viewport=size, color_scheme=scheme, offline=True)
            tab = context.new_page()
            tab.goto(f"{file.as_uri()}#{fragment}")
            shown = tab.locator("section:visible, [role=tabpanel]:visible")
            if heading:
                target = shown.get_by_role("heading", name=heading).first
                target.evaluate("heading => scrollTo(0, heading.getBoundingClientRect().top + scrollY - 84)")
            if fragment == "part=training":
                tab.get_by_role("button", name="Run", exact=True).click()
                reached = f"() => Number(document.querySelector('.live output').textContent.replace(',', '')) > {STEPS}"
                tab.wait_for_function(reached, timeout=120_000)
                tab.get_by_role("button", name="Pause", exact=True).click()
            tab.wait_for_timeout(300)
            tab.screenshot(path=folder / f"{name}.png")
            context.close()
            click.echo(folder / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
