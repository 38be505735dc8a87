"""Draws the pictures in the README: the first screen of a comparison's report, light and dark.

    python website/report_picture.py runs/compare/digits

Writes the pictures, and the comparison.json that they show, to docs/images. Each picture contains
the checksum of that file, so that a test can check that they belong together. Needs playwright,
pillow and Chromium.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import sys
from pathlib import Path

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SOURCE = IMAGES / "report.json"
CHECKSUM = "comparison-sha256"
SIZE = {"width": 1280, "height": 980}


def pictures() -> dict[str, Path]:
    """Return the files of the pictures by colour scheme."""
    return {scheme: IMAGES / f"report-{scheme}.png" for scheme in ("light", "dark")}


def checksum() -> str:
    """Return the checksum of the comparison that the pictures show."""
    return hashlib.sha256(SOURCE.read_bytes()).hexdigest()


def draw(directory: Path) -> None:
    """Draw the report in a comparison's directory, and copy its comparison.json to the pictures."""
    from PIL import Image, PngImagePlugin
    from playwright.sync_api import sync_playwright

    SOURCE.write_bytes((directory / "comparison.json").read_bytes())
    mark = PngImagePlugin.PngInfo()
    mark.add_text(CHECKSUM, checksum())
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("chromium-browser"),
            args=["--no-sandbox", "--disable-gpu"],
        )
        for scheme, target in pictures().items():
            page = browser.new_page(viewport=SIZE, color_scheme=scheme)
            page.goto((directory.resolve() / "report.html").as_uri())
            drawn = Image.open(io.BytesIO(page.screenshot()))
            drawn.convert("RGB").save(target, optimize=True, pnginfo=mark)
        browser.close()


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
