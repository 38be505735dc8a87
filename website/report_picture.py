"""Draws the pictures in the README: the first screen of a comparison's report, light and dark.

    python website/report_picture.py docs/experiments/demo

Writes the pictures, and the comparison.json that they show, to docs/images. Each picture contains
the checksum of that file, so that a test can check that they belong together. Needs pillow and
Chromium.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SOURCE = IMAGES / "report.json"
CHECKSUM = "comparison-sha256"
SIZE = {"width": 1280, "height": 980}
_SCHEMES = {"dark": 0, "light": 1}
"""Chromium's numbers of the colour schemes."""


def pictures() -> dict[str, Path]:
    """Return the files of the pictures by colour scheme."""
    return {scheme: IMAGES / f"report-{scheme}.png" for scheme in ("light", "dark")}


def checksum() -> str:
    """Return the checksum of the comparison that the pictures show."""
    return hashlib.sha256(SOURCE.read_bytes()).hexdigest()


def draw(directory: Path) -> None:
    """Draw the report in a comparison's directory, and copy its comparison.json to the pictures."""
    from PIL import Image, PngImagePlugin

    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        raise FileNotFoundError("Chromium is not installed")
    SOURCE.write_bytes((directory / "comparison.json").read_bytes())
    mark = PngImagePlugin.PngInfo()
    mark.add_text(CHECKSUM, checksum())
    for scheme, target in pictures().items():
        with tempfile.TemporaryDirectory() as scratch:
            drawn = Path(scratch, "drawn.png")
            size = ",".join(map(str, SIZE.values()))
            settings = (
                *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                *(f"--window-size={size}", f"--screenshot={drawn}"),
                f"--blink-settings=preferredColorScheme={_SCHEMES[scheme]}",
            )
            uri = (directory.resolve() / "report.html").as_uri()
            command = [browser, *settings, uri]
            subprocess.run(command, check=True, capture_output=True)  # noqa: S603  (our own file)
            Image.open(drawn).convert("RGB").save(target, optimize=True, pnginfo=mark)


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
